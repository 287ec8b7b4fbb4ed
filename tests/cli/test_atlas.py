"""`meds atlas` on dumps in a folder: what it writes, prints, goes on with and refuses."""

import json
from pathlib import Path

import pytest

from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.log import read_rollouts
from tests.cli.conftest import Meds

LOGS = Path(__file__).parents[1] / "dumps" / "data"


def dump(step: int, *answers: str | None, prompt: str = "2+3") -> None:
    """Rollouts of verl; 5 is right."""
    Path("dump").mkdir(exist_ok=True)
    with Path(f"dump/{step}.jsonl").open("a") as file:
        for answer in answers:
            text = "I give up" if answer is None else f"\\boxed{{{answer}}}"
            print(json.dumps({"input": prompt, "output": text, "score": float(answer == "5"), "step": step}), file=file)


def test_wrong_rollouts_are_remembered_by_their_answers(meds: Meds) -> None:
    dump(1, "7", "7.0", " 8", None, "5")
    dump(1, "5", prompt="4+1")
    dump(2, "7", "5")
    assert meds.output("atlas", "dump").splitlines() == [
        "read   8 rollouts of 2 prompts, 2 files (verl)",
        "found  7 of 8 final answers, by \\boxed{}",
        "right  3 (reward at least 0.5); 1 prompt without a wrong rollout",
        "wrong  5, of which 4 are in the memory",
        "       1 without a final answer, only in the log",
        "atlas/report.html",
    ]
    log = [row for table in read_rollouts(RunPaths(Path("atlas"))) for row in table.to_pylist()]
    assert [row["answer"] for row in log] == ["7", "7.0", "8", None, "5", "5", "7", "5"]
    assert all(row["response"][row["answer_start"] :].startswith(row["answer"]) for row in log if row["answer"])
    assert log[-2]["cluster_size"] == 2  # 7 and 7.0 were there before
    meds.output("memory", "verify", "atlas")
    assert sum(len(rows) for _, rows in open_memory(Path("atlas")).rows_by_step()) == 4


def test_the_same_command_adds_the_steps_that_are_new_or_lack_but_none_of_another_dump(meds: Meds) -> None:
    dump(1, "7", "5")
    meds.output("atlas", "dump")
    before = Path("atlas/rollouts/000001.arrow").stat().st_mtime_ns
    dump(2, "7")
    printed = meds.output("atlas", "dump")
    assert "read   3 rollouts of 1 prompt, 2 files" in printed
    assert "wrong  2, of which 2 are in the memory" in printed
    assert Path("atlas/rollouts/000001.arrow").stat().st_mtime_ns == before
    assert [json.loads(line)["step"] for line in Path("atlas/metrics.jsonl").read_text().splitlines()] == [1, 2]
    Path("atlas/rollouts/000002.arrow").unlink()  # a stop before the log is written repeats the step
    assert "wrong  2, of which 2 are in the memory" in meds.output("atlas", "dump")
    assert sum(len(rows) for _, rows in open_memory(Path("atlas")).rows_by_step()) == 2
    assert "atlas with other settings" in meds.refusal("atlas", "dump", "--right-from", "0.9")
    dump(1, "8")
    assert meds.refusal("atlas", "dump").startswith("--out=atlas: contains other rollouts of step 1")
    for _ in range(2):  # the second time, the folder's own files are no dumps
        assert "wrong  3, of which 3" in meds.output("atlas", "dump", "--out", "dump/atlas")
    # Without a wrong rollout there are curves alone.
    Path("right.jsonl").write_text(json.dumps({"prompt": "2+3", "response": "\\boxed{5}", "reward": 1}) + "\n")
    assert "wrong  0, of which 0 are in the memory" in meds.output("atlas", "right.jsonl", "--out", "right")


def test_the_sample_logs_of_evaluations_are_read(meds: Meds) -> None:
    printed = meds.output("atlas", LOGS / "inspect-0.3.285", "--columns", "reward=includes")
    assert printed.splitlines()[:3] == [
        "read   5 rollouts of 2 prompts, 2 files (inspect)",
        "found  5 of 5 final answers, by \\boxed{}",
        "right  3 (reward at least 0.5); 0 prompts without a wrong rollout",
    ]
    chosen = "reward=exact", "filter=boxed"
    printed = meds.output("atlas", LOGS / "lm-eval-0.4.13", "--columns", *chosen, "--out", "b")
    assert "read     2 rollouts of 2 prompts, 2 files (lm-eval)" in printed
    assert "skipped  2 lines of the filter whole, not of boxed (the first: " in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("dump --format vrel", "--format=vrel: must be one of auto, nemo-rl"),
        ("dump --columns input", "--columns=input: must be ROLE=COLUMN, with a different ROLE each time."),
        ("dump --columns rewrad=R", "--columns=rewrad=R: the role must be one of prompt, response"),
        ("dump --columns reward=R", "FILES=dump/1.jsonl: "),
        ("nowhere", "FILES=nowhere: "),
        ("dump --meds.penalty.beta 1", "meds.penalty.beta=1: cannot be changed for an atlas. Leave it out."),
        ("dump --meds.memory.shards 2", "meds.memory.shards=2: cannot be changed for an atlas. Leave it out."),
        ("dump --meds.memory.preset paper", "meds.memory.preset=paper: needs fingerprints. Add --model MODEL."),
        ("dump --out dump", "--out=dump: "),
        ("dump --batch-tokens 0", "--batch-tokens=0: must be at least 1."),
        (f"{LOGS}/lm-eval-0.4.13 --columns reward=acc", f"FILES={LOGS}/lm-eval-0.4.13/"),
        (
            f"{LOGS}/lm-eval-0.4.13 --columns filter=all reward=exact",
            f"FILES={LOGS}/lm-eval-0.4.13: contains no rollouts. Skipped ",
        ),
        ("broken.eval", "FILES=broken.eval: cannot be read (BadZipFile: File is not a zip file). Leave it out."),
        ("broken.jsonl", "FILES=broken.jsonl: contains no rollouts. Skipped lines: 3 "),
    ],
)
def test_what_is_refused(meds: Meds, words: str, message: str) -> None:
    dump(1, "7")
    for name in ("broken.jsonl", "broken.eval"):
        Path(name).write_text("{broken\n" * 3)
    assert meds.refusal("atlas", *words.split()).startswith(message)
    assert not Path("atlas").exists()
