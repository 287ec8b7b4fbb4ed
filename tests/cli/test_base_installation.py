"""Every command where no extra is installed: it works, or names the extra in one line."""

import json

import pytest

from meds_openrlhf.config import MedsSettings, RunConfig
from meds_openrlhf.paths import RunPaths
from tests.cli.base_installation import REPOSITORY, make_site, run_program
from tests.memory.written import WrittenMemory, stream

CONFIG = str(REPOSITORY / "configs/cpu/meds.yaml")
GPU = "in a clone of the project: `make setup-gpu`, or without a GPU `make setup`"
MISSING = {
    f"train {CONFIG}": f"train needs ray, which is not installed; {GPU}",
    f"plan {CONFIG} --cluster 1x8": f"plan needs wrapt, which is not installed; {GPU}",
    "eval x --benchmarks dump.jsonl --allow-cpu": f"eval needs ray, which is not installed; {GPU}",
    f"demo --config {CONFIG}": f"demo needs torch, which is not installed; {GPU}",
    "data arithmetic": f"data needs torch, which is not installed; {GPU}",
    "data prepare aime24": "aime24=HuggingFaceH4/aime_2024: ",
    "atlas dump.jsonl --model m": "atlas needs torch, which is not installed; in a clone of the project: `",
    "track run": "track needs tensorboard, which is not installed; in a clone of the project: `pip install '.[",
}
WORKING = {
    "--help": "usage: meds",
    "memory inspect run": "clusters ",
    "memory verify run": "sound",
    "memory replay run --out rows.arrow": "written    rows.arrow",
    "report run --output report.html": "report.html",
    "atlas dump.jsonl": "wrong  1, of which 1 are in the memory",
}
PROGRAM = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from meds_openrlhf.cli.main import main
for line in sys.stdin:
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()) as trouble:
        try:
            code = main(line.split())
        except SystemExit as exit:
            code = exit.code
    print(json.dumps([code, printed.getvalue(), trouble.getvalue()]))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """The exit code and outputs of each command, in one process and beside a run with a memory of two shards."""
    folder = tmp_path_factory.mktemp("folder")
    paths = RunPaths(folder / "run")
    memory = WrittenMemory(paths.memory.root)
    memory.observe(*stream(4))
    memory.stop()
    paths.config.write_text(RunConfig(MedsSettings(run_dir="run"), {}).as_yaml())
    dump = {"id": "1", "answer": "4", "prompt": "2+2", "response": "\\boxed{5}", "reward": 0}
    (folder / "dump.jsonl").write_text(json.dumps(dump) + "\n")
    commands, site = [*MISSING, *WORKING], make_site(tmp_path_factory.mktemp("site"))
    finished = run_program(site, PROGRAM, folder, "".join(f"{command}\n" for command in commands))
    assert finished.returncode == 0, finished.stderr
    return dict(zip(commands, map(json.loads, finished.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("command", MISSING)
def test_a_missing_extra_is_named(ended: dict[str, tuple[int, str, str]], command: str) -> None:
    code, _, trouble = ended[command]
    *first, last = trouble.splitlines()
    assert last.startswith(f"meds: {MISSING[command]}")
    assert [line for line in first if not line.startswith("reading ")] == []  # what eval says meanwhile
    assert code == 2


@pytest.mark.parametrize("command", WORKING)
def test_what_needs_no_extra(ended: dict[str, tuple[int, str, str]], command: str) -> None:
    code, printed, trouble = ended[command]
    assert (code, trouble) == (0, "")
    assert WORKING[command] in printed
