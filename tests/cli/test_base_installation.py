"""Every command where no extra is installed: it works, or names the extra in one line."""

import json
from pathlib import Path

import pytest

from meds_openrlhf.config import MedsSettings, RunConfig
from meds_openrlhf.paths import RunPaths
from tests.cli.base_installation import REPOSITORY, make_site, run_meds
from tests.memory.streams import stream
from tests.memory.written import WrittenMemory

CONFIG = str(REPOSITORY / "configs/cpu/meds.yaml")
GPU = "in a clone of the project: `make setup-gpu`, or without a GPU `make setup`"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with a memory of two shards."""
    paths = RunPaths(tmp_path_factory.mktemp("runs") / "run")
    memory = WrittenMemory(paths.memory.root)
    memory.observe(*stream(4))
    memory.stop()
    paths.config.write_text(RunConfig(MedsSettings(run_dir=str(paths.root)), {}).as_yaml())
    return paths.root


def ended(words: str, site: Path, run: Path, folder: Path) -> tuple[int, str, str]:
    """The exit code and outputs of `meds` with ``words``, where RUN and DUMP stand for what they name."""
    dump = {"id": "1", "answer": "4", "prompt": "2+2", "response": "\\boxed{5}", "reward": 0}
    (folder / "dump.jsonl").write_text(json.dumps(dump) + "\n")
    finished = run_meds(site, *words.replace("RUN", str(run)).replace("DUMP", "dump.jsonl").split(), cwd=folder)
    return finished.returncode, finished.stdout, finished.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (f"train {CONFIG}", f"train needs ray, which is not installed; {GPU}"),
        (f"plan {CONFIG} --cluster 1x8", f"plan needs wrapt, which is not installed; {GPU}"),
        ("eval x --benchmarks DUMP --allow-cpu", f"eval needs ray, which is not installed; {GPU}"),
        (f"demo --config {CONFIG}", f"demo needs transformers, which is not installed; {GPU}"),
        ("data arithmetic", f"data needs transformers, which is not installed; {GPU}"),
        ("data prepare aime24", "aime24=HuggingFaceH4/aime_2024: "),
        ("atlas DUMP --model m", "atlas needs torch, which is not installed; pip install 'meds-openrlhf[atlas]'"),
        ("track RUN", "track needs tensorboard, which is not installed; pip install 'meds-openrlhf[track]'"),
    ],
)
def test_a_missing_extra_is_named(site: Path, run: Path, tmp_path: Path, words: str, line: str) -> None:
    code, _, trouble = ended(words, site, run, tmp_path)
    *first, last = trouble.splitlines()
    assert last.startswith(f"meds: {line}")
    assert [line for line in first if not line.startswith("reading ")] == []  # what eval says meanwhile
    assert code == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--help", "usage: meds"),
        ("memory inspect RUN", "clusters "),
        ("memory verify RUN", "sound"),
        ("memory replay RUN --out rows.arrow", "written    rows.arrow"),
        ("report RUN --output report.html", "report.html"),
        ("atlas DUMP", "wrong  1, of which 1 are in the memory"),
    ],
)
def test_what_needs_no_extra(site: Path, run: Path, tmp_path: Path, words: str, text: str) -> None:
    code, printed, trouble = ended(words, site, run, tmp_path)
    assert (code, trouble) == (0, "")
    assert text in printed
