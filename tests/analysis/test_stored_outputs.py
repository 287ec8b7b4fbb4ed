"""Every analysis of small runs prints what is stored in tests/analysis/stored, digit by digit, or refuses them.

If a change is meant, this writes the files again: python -m tests.analysis.test_stored_outputs
"""

import io
import json
import os
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from analysis import case_study, cost, eigen_ratio, known_mistakes, paper
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.step_log import StepLog
from tests.analysis.runs import COMMAND, judge, write_arithmetic_run, write_tiny
from tests.judge.judge_server import judge_server

STORED = Path(__file__).parent / "stored"
JUDGED = ("within-step", "across-steps", "agreement")
COMMANDS: dict[str, tuple[Callable[[list[str]], int], list[str]]] = {
    "known_mistakes": (known_mistakes.main, ["runs/arithmetic"]),
    "eigen_ratio": (eigen_ratio.main, ["runs/tiny-dapo", "runs/tiny-meds-reference"]),
    "cost": (cost.main, ["runs/tiny-dapo", "runs/tiny-meds-reference", "--steps", "10", "24", "50"]),
    "case_study": (case_study.main, ["runs/arithmetic", "--preset", "robust"]),
}


def _rounded(value: Any) -> Any:
    """Numbers to nine digits, and none for a rounding error: sums may differ in the last bits on other machines."""
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    if isinstance(value, float):
        return 0.0 if abs(value) < 1e-12 else float(f"{value:.9g}")
    return value


def outputs() -> dict[str, str]:
    """All outputs by file name, made in the working directory."""
    write_tiny()
    write_arithmetic_run(Path("runs/arithmetic"), shuffled=True)
    found: dict[str, str] = {}
    for name, (command, words) in COMMANDS.items():
        found[f"{name}.txt"] = _printed(command, [*words, "--json", f"{name}.json"])
        found[f"{name}.json"] = Path(f"{name}.json").read_text()
    with judge_server(judge) as server:
        options = ["--judge-model", "m", "--judge-url", server.url]
        found["paper.txt"] = _printed(paper.main, [*COMMAND, *options])
    found["paper.md"] = Path("paper/README.md").read_text()
    for name in JUDGED:
        found[f"{name}.json"] = Path("paper", name, "numbers.json").read_text()
    compact = {"indent": 0, "ensure_ascii": False}
    return {
        name: json.dumps(_rounded(json.loads(text)), **compact) if name.endswith(".json") else text
        for name, text in found.items()
    }


def _printed(command: Callable[[list[str]], int], words: list[str]) -> str:
    with redirect_stdout(io.StringIO()) as printed:
        assert command(words) == 0
    return printed.getvalue()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.delenv("OPENAI_API_KEY", raising=False)
        patch.chdir(tmp_path_factory.mktemp("analyses"))
        return outputs()


@pytest.mark.parametrize("name", sorted(path.name for path in STORED.iterdir()))
def test_an_analysis_prints_and_writes_what_is_stored(name: str, found: dict[str, str]) -> None:
    assert found[name] == (STORED / name).read_text()


def test_a_run_without_eigen_ratios_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    StepLog(RunPaths(tmp_path).metrics).append(1, {"reward": 1.0})
    assert eigen_ratio.main([str(tmp_path / "nowhere")]) == eigen_ratio.main([str(tmp_path)]) == 2
    missing, plain = capsys.readouterr().err.splitlines()
    assert missing.endswith("nowhere: does not exist. Name the folder of a run that has trained.")
    assert "logged no eigen ratio. A baseline needs a memory of layer logits too" in plain


if __name__ == "__main__":
    os.environ["NO_PROXY"] = "127.0.0.1"
    with TemporaryDirectory() as scratch:
        os.chdir(scratch)
        for file, content in outputs().items():
            (STORED / file).write_text(content)
