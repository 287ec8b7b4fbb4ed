"""All tables and figures of a model's runs: what is there is made, and what is missing has its command."""

from pathlib import Path

import pytest

from analysis.paper import main
from meds_openrlhf.paths import RunPaths
from tests.analysis import runs
from tests.judge.judge_server import judge_server


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A folder with two runs of a model, an evaluation of three models, and the command that makes the rest of it."""
    monkeypatch.chdir(tmp_path)
    runs.write_tiny()
    return runs.COMMAND


def test_every_item_of_the_runs_is_made_and_what_is_missing_has_its_command(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 0
    page = Path("paper/README.md").read_text()
    train = "meds train configs/tiny/{} --meds.tracking.rollouts all"
    variants = "--variant configs/ablations.yaml:reference --variant configs/ablations.yaml:"
    for words in ("grpo.yaml", "grpo-entropy.yaml", f"meds.yaml {variants}28-diff", f"meds.yaml {variants}single"):
        assert f"    {train.format(words)}\n" in page
    again = "python -m analysis.paper tiny --benchmarks problems.jsonl --n 4 --judge-model NAME --judge-url URL\n"
    assert again in page
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[2].strip() for line in lines if "diversity" in line] == ["not made", "not made"]
    assert "no run tiny-grpo; no run tiny-grpo-entropy" in next(line for line in lines if "Table 1" in line)

    with judge_server(runs.judge) as judge:
        assert main([*command, "--judge-url", judge.url, "--judge-model", "m"]) == 0
    assert "not made" not in capsys.readouterr().out + Path("paper/README.md").read_text()
    for name in ("entropy", "within-step", "across-steps", "eigen-ratio", "agreement", "case-study"):
        assert Path("paper", name, "figure.png").read_bytes().startswith(b"\x89PNG")

    table = Path("paper/ablation/table.md").read_text()
    assert main([*command[:-1], "8"]) == 0  # without a judge, and with more samples than there are
    assert "not made" not in capsys.readouterr().out
    assert Path("paper/ablation/table.md").read_text() == table


def test_models_that_were_not_evaluated_are_missing(command: list[str]) -> None:
    Path("eval/tiny-dapo/settings.json").unlink()
    (Path("eval/base/problems.jsonl")).write_text("")
    assert main(command) == 0
    page = Path("paper/README.md").read_text()
    assert "no samples of tiny-dapo" in page
    assert "meds eval models/base runs/tiny-dapo runs/tiny-meds-reference --benchmarks problems.jsonl --n 4" in page
    assert "| tiny-meds-reference |" in page


def test_another_run_may_stand_for_meds_and_an_item_that_fails_is_named(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    runs.write_tiny_run(Path("runs/tiny-meds"), 3)
    RunPaths(Path("runs/tiny-dapo")).metrics.write_text('{"step": 1, "policy_entropy": 1}\n')
    assert main([*command, "--meds", "meds"]) == 2
    page = Path("paper/README.md").read_text()
    assert "no run tiny-meds-single" in page
    assert "meds.yaml --variant configs/ablations.yaml:single --meds.tracking" in page
    assert "error: RUN=runs/tiny-dapo: logged no eigen ratio" in capsys.readouterr().err
    assert "| RUN=runs/tiny-dapo: logged no eigen ratio" in page
    assert Path("paper/case-study/figure.png").is_file()


def test_what_is_mistyped_is_refused_before_anything_is_made(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--judge-modell", "m"])
    assert main([*command, "--judge-url", "http://localhost/v1"]) == main(["huge", *command[1:]]) == 2
    *_, option, model, configuration = capsys.readouterr().err.splitlines()
    assert "unrecognized arguments: --judge-modell m" in option
    assert model.startswith("error: --judge-model: must be given")
    assert "MODEL=huge: configs/huge/dapo.yaml does not exist." in configuration
    assert not Path("paper").exists()
