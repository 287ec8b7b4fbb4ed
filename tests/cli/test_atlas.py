"""`meds atlas` on dumps in a folder: what it writes, prints, goes on with and refuses."""

import json
import subprocess
import sys
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


def test_atlas_run_again_adds_missing_steps_of_the_same_dump(meds: Meds) -> None:
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
    other = "--out=atlas: contains other rollouts of step 1, or other right answers"
    assert meds.refusal("atlas", "dump", "--columns", "truth=input").startswith(other)
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


def write(path: str, *texts: str, **more: object) -> None:
    """Wrong responses, of a step that their number is."""
    rows = [{"prompt": "2+3", "response": text, "reward": 0.0, **more} for text in texts]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_answers_are_found_where_the_dump_has_them_and_later_steps_too(meds: Meds) -> None:
    write("step_1.jsonl", "so\n#### 7", "#### 7.0", "#### 8", "\\boxed{1}")
    command = "atlas", "step_1.jsonl"
    printed = meds.output(*command)
    assert "found  3 of 4 final answers, by ####\n" in printed
    assert "wrong  4, of which 3 are in the memory\n" in printed
    write("step_2.jsonl", *["\\boxed{9}"] * 9, "#### 9")
    code, printed, trouble = meds(*command, "step_2.jsonl")  # the folder's place stays
    assert (code, "found  4 of 14 final answers, by ####\n" in printed) == (1, True)
    assert trouble.startswith("meds: 10 of 14 rollouts have no final answer; ")
    assert Path("atlas/report.html").exists()
    write("own.jsonl", "\\boxed{5}", "\\boxed{5}", parsed="5")
    for _ in range(2):
        printed = meds.output("atlas", "own.jsonl", "--out", "own", "--columns", "answer=parsed")
        assert "found  2 of 2 final answers, by the trainer's own column\n" in printed
        assert "wrong  2, of which 2 are in the memory\n" in printed


def test_a_penalty_for_length_in_the_score_is_told(meds: Meds) -> None:
    rewards = (1.0, 0.4, 0.2, 0.1), (-1.0, -1.0, -1.7)
    rows = [{"input": "2+3", "output": f"\\boxed{{{answer}}}", "gts": "5", "score": reward, "step": 1}
            for answer, of_answer in zip("57", rewards) for reward in of_answer]  # fmt: skip
    Path("1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    printed = meds.output("atlas", "1.jsonl")
    words = "3 have the label as their answer, and a lower reward perhaps for their length: try --right-from 0\n"
    assert words in printed
    printed = meds.output("atlas", "1.jsonl", "--right-from", "0", "--out", "b")
    assert "right  4 (reward at least 0)" in printed
    assert "length" not in printed


def test_lines_come_from_a_pipe(meds: Meds) -> None:
    lines = "".join(json.dumps({"prompt": "2+3", "response": f"\\boxed{{{n}}}", "reward": 0}) + "\n" for n in (1, 1))
    command = [sys.executable, "-m", "meds_openrlhf.cli.main", "atlas", "-", "--out", "piped"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("read   2 rollouts of 1 prompt, 1 file (plain)\n")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "FILES=-: " in done.stderr
