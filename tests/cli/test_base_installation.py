"""Every command where no extra is installed: it works, or names the extra in one line."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.base_installation import REPOSITORY, make_site, run_program

CONFIG = str(REPOSITORY / "configs/cpu/meds.yaml")
GPU = "in a clone of the project: `make setup-gpu`, or without a GPU `make setup`"
ATLAS = (
    "in a clone of the project: `pip install '.[atlas]'`, "
    "from a wheel: `pip install 'PATH/TO/meds_openrlhf-X.whl[atlas]'`"
)
MISSING = {
    f"train {CONFIG}": f"train needs ray, which is not installed; {GPU}",
    f"plan {CONFIG} --cluster 1x8": f"plan needs wrapt, which is not installed; {GPU}",
    "eval x --benchmarks dump.jsonl --allow-cpu": f"eval needs matplotlib, which is not installed; {GPU}",
    f"demo --config {CONFIG}": f"demo needs torch, which is not installed; {GPU}",
    "data arithmetic": f"data needs torch, which is not installed; {GPU}",
    "data prepare aime24": "aime24=HuggingFaceH4/aime_2024: ",
    "atlas dump.jsonl --model m": f"atlas needs torch, which is not installed; {ATLAS}",
    "report tour": f"report needs numba, which is not installed; {ATLAS}",
    "memory inspect tour": f"memory needs numba, which is not installed; {ATLAS}",
    "memory replay tour --out rows.arrow": f"memory needs numba, which is not installed; {ATLAS}",
    "memory inspect tour --preset reference": f"memory needs hdbscan, which is not installed; {ATLAS}",
    "track tour": "track needs tensorboard, which is not installed; in a clone of the project: `pip install '.[",
}
WORKING = {
    "--help": "usage: meds",
    "atlas dump.jsonl --out answers": "wrong  3, of which 3 are in the memory",
    "report answers --output report.html": "report.html",
    "report real --out real.html": "real.html",
    "whatif real": "1,600 rollouts of 24 prompts in 25 steps",
    "memory inspect answers": "clusters   2 with the preset answers",
    "memory replay answers --out rows.arrow": "written    rows.arrow",
    "memory verify tour": "sound",
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
# What takes seconds to import or to compile, and no final answer needs.
HEAVY = {"hdbscan", "llvmlite", "matplotlib", "numba", "scipy", "sklearn", "torch", "transformers"}


def write_dump(path: Path) -> None:
    rollout = {"id": "1", "answer": "4", "prompt": "2+2", "reward": 0}
    path.write_text("".join(json.dumps({**rollout, "response": f"\\boxed{{{answer}}}"}) + "\n" for answer in (5, 5, 6)))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """The exit code and outputs of each command, in one process and beside two runs and a dump."""
    folder = tmp_path_factory.mktemp("folder")
    shutil.copytree(REPOSITORY / "examples" / "tour_run", folder / "tour")  # with a memory of layer logits
    shutil.copytree(REPOSITORY / "examples" / "real_model", folder / "real")
    write_dump(folder / "dump.jsonl")
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


def test_atlas_of_final_answers_imports_no_extra(tmp_path: Path) -> None:
    write_dump(tmp_path / "dump.jsonl")
    program = f"{PROGRAM}print(json.dumps([*sys.modules]))"
    lines = "atlas dump.jsonl --out answers\nreport answers --out again.html\nmemory inspect answers\n"
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, input=lines, capture_output=True, text=True, timeout=100
    )
    assert finished.returncode == 0, finished.stderr
    *ended, modules = map(json.loads, finished.stdout.splitlines())
    assert [code for code, *_ in ended] == [0, 0, 0], ended
    assert HEAVY & {name.partition(".")[0] for name in modules} == set()
