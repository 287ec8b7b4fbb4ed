"""All tables and figures of a model's runs: what is there is made, and what is missing has its command."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.paper import main
from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.evaluation.settings import Settings, problems_hash, write_settings
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog
from tests.analysis.judge.judge_server import Judge, Request, Response, judge_server
from tests.analysis.runs import Rollout, kind, write_run

pytestmark = pytest.mark.usefixtures("plain_surroundings")
STEPS = range(1, 25)  # two epochs of twelve; the judge sees the steps from 21 on
PROBLEMS = [Problem(f"p{number}", f"Question {number}?", "1") for number in range(3)]


def _run(path: Path) -> None:
    """Each prompt comes back after twelve steps, with four wrong responses of two kinds."""
    steps = []
    for step in STEPS:
        prompt = f"p{step % 12}"
        steps.append([Rollout(prompt, str(i % 2), logits=kind(i % 2, 0.05, 4 * step + i)) for i in range(4)])
    write_run(path, steps)
    log = StepLog(RunPaths(path).metrics)
    for step in STEPS:
        log.append(step, {"policy_entropy": 1 / step, "timing/step_total": 6.0, "meds/eigen_ratio_all": 0.5})


def _evaluated(out: Path, label: str, right: int) -> None:
    """Two samples of each problem, so many of them right."""
    settings = Settings("model", label, 1.0, 1.0, 0, 9, {"problems": problems_hash(PROBLEMS)})
    write_settings(out / label, settings)
    samples = [
        {"problem": one.id, "index": index, "text": "", "tokens": 3, "truncated": False, "answer": "1"}
        for index in range(2)
        for one in PROBLEMS
    ]
    lines = [json.dumps({**sample, "right": number < right}) for number, sample in enumerate(samples)]
    (out / label / "problems.jsonl").write_text("\n".join(lines) + "\n")


def _judge(request: Request, _: int) -> Response:
    form = request.body["messages"][0]["content"].splitlines()
    labels = [line.split(":")[0] for line in form if line.endswith(">")]
    return Response("\n".join(f"{label}: 2" for label in labels))


@pytest.fixture
def judge() -> Iterator[Judge]:
    with judge_server(_judge) as server:
        yield server


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A folder with two runs of a model, an evaluation of three models, and the command that makes the rest of it."""
    monkeypatch.chdir(tmp_path)
    config = Path("configs/tiny/dapo.yaml")
    config.parent.mkdir(parents=True)
    config.write_text("meds: {run_dir: runs/tiny-dapo}\nactor: {model_name_or_path: models/base}\n")
    problems = [json.dumps({"id": one.id, "prompt": one.prompt, "answer": one.answer}) for one in PROBLEMS]
    Path("problems.jsonl").write_text("\n".join(problems) + "\n")
    for name, right in (("tiny-dapo", 2), ("tiny-meds-reference", 5)):
        _run(Path("runs", name))
        _evaluated(Path("eval"), name, right)
    _evaluated(Path("eval"), "base", 0)
    return ["tiny", "--benchmarks", "problems.jsonl", "--n", "2"]


def test_with_a_judge_every_item_of_the_runs_is_made(
    command: list[str], judge: Judge, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--judge-url", judge.url, "--judge-model", "m"]) == 0
    printed, page = capsys.readouterr().out, Path("paper/README.md").read_text()
    assert "not made" not in printed + page
    made = sorted(path.name for path in Path("paper").iterdir())
    assert made == [
        *("README.md", "ablation", "across-steps", "agreement", "case-study", "cost"),
        *("eigen-ratio", "entropy", "main", "within-step"),
    ]
    for name in ("entropy", "within-step", "across-steps", "eigen-ratio", "agreement", "case-study"):
        assert Path("paper", name, "figure.png").read_bytes().startswith(b"\x89PNG")
        assert f"({name}/figure.png)" in page
    table = [line for line in Path("paper/main/table.md").read_text().splitlines() if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in table[2:]] == ["base", "tiny-dapo", "tiny-meds-reference"]
    # 4 steps of one question each; 12 returns; 4 responses of 24 steps; nothing is asked twice
    asked = len(judge.requests)
    assert main(command) == 0
    assert len(judge.requests) == asked
    assert "not made" not in capsys.readouterr().out


def test_the_ablation_has_the_agreement_of_each_feature(command: list[str], judge: Judge) -> None:
    assert main([*command, "--judge-url", judge.url, "--judge-model", "m"]) == 0
    header, _, dapo, meds = Path("paper/ablation/table.md").read_text().splitlines()[2:]
    assert header.endswith("| agreement (%) |")
    numbers = json.loads(Path("paper/agreement/numbers.json").read_text())
    own = next(one for one in numbers["agreement"] if one["variant"] == "4")  # the last half of 8 layers
    assert meds.split("|")[-2].strip() == f"{100 * own['noise_together']:.2f}"
    assert dapo.split("|")[-2].strip() == ""


def test_a_table_that_is_there_is_not_written_again_without_samples(command: list[str]) -> None:
    assert main(command) == 0
    table = Path("paper/ablation/table.md").read_text()
    assert main([*command[:-1], "4"]) == 0  # more samples than there are
    assert Path("paper/ablation/table.md").read_text() == table


def test_what_is_missing_has_its_command(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 0
    page = Path("paper/README.md").read_text()
    train = "meds train configs/tiny/{} --meds.tracking.rollouts all"
    variants = "--variant configs/ablations.yaml:reference --variant configs/ablations.yaml:"
    for words in ("grpo.yaml", "grpo-entropy.yaml", f"meds.yaml {variants}28-diff", f"meds.yaml {variants}single"):
        assert f"    {train.format(words)}\n" in page
    again = "python -m analysis.paper tiny --benchmarks problems.jsonl --n 2 --judge-model NAME --judge-url URL\n"
    assert again in page
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[2].strip() for line in lines if "diversity" in line] == ["not made", "not made"]
    assert "no run tiny-grpo; no run tiny-grpo-entropy" in next(line for line in lines if "Table 1" in line)


def test_models_that_were_not_evaluated_are_missing(command: list[str]) -> None:
    Path("eval/tiny-dapo/settings.json").unlink()
    (Path("eval/base/problems.jsonl")).write_text("")
    assert main(command) == 0
    page = Path("paper/README.md").read_text()
    assert "no samples of tiny-dapo" in page
    assert "meds eval models/base runs/tiny-dapo runs/tiny-meds-reference --benchmarks problems.jsonl --n 2" in page
    assert "| tiny-meds-reference |" in page


def test_another_run_may_stand_for_meds(command: list[str]) -> None:
    _run(Path("runs/tiny-meds"))
    assert main([*command, "--meds", "meds"]) == 0
    page = Path("paper/README.md").read_text()
    assert "no run tiny-meds-single" in page
    assert "meds.yaml --variant configs/ablations.yaml:single --meds.tracking" in page


def test_a_model_without_a_configuration_is_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["huge", *command[1:]]) == 2
    assert "MODEL=huge: has no configs/huge/dapo.yaml here" in capsys.readouterr().err


def test_a_mistyped_option_is_refused_before_anything_is_made(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--judge-modell", "m"])
    assert "the following arguments are required: --judge-model" in capsys.readouterr().err
    assert not Path("paper").exists()


def test_an_item_that_fails_is_named_and_the_others_are_made(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    RunPaths(Path("runs/tiny-dapo")).metrics.write_text('{"step": 1, "policy_entropy": 1}\n')
    assert main(command) == 2
    printed = capsys.readouterr()
    assert "error: RUN=runs/tiny-dapo: logged no eigen ratio" in printed.err
    assert Path("paper/case-study/figure.png").is_file()
    assert "| RUN=runs/tiny-dapo: logged no eigen ratio" in Path("paper/README.md").read_text()
