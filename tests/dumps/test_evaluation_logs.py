"""Sample logs of lm-eval and Inspect, as they wrote them, and what of them is refused.

Two problems, two responses to each. lm-eval: a task with three filters and two metrics, and one of multiple choice.
Inspect: two epochs of both problems as an archive, and one of the first as JSON, with two scorers.
"""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.dumps.formats import Format, Rollout
from meds_openrlhf.dumps.reading import Dump
from meds_openrlhf.dumps.recognition import chosen, recognized
from meds_openrlhf.dumps.unpack import INSPECT_SAMPLE
from meds_openrlhf.dumps.values import LeftOut
from tests.dumps.evaluation_logs import write_inspect, write_lm_eval

DATA = Path(__file__).parent / "data"
LM_EVAL, INSPECT = DATA / "lm-eval-0.4.13", DATA / "inspect-0.3.285"
SUMS = ("Question: 2+2\nAnswer:", "Question: 3+4\nAnswer:")
SYSTEM, ASKED = {"role": "system", "content": "be brief"}, {"role": "user", "content": "3+4"}
TWO, SEVEN = ("2+2", [{"role": "user", "content": "2+2"}]), ("be brief\n\n3+4", [SYSTEM, ASKED])


def read(*files: Path, **columns: str) -> tuple[list[tuple[int, list[Rollout]]], Dump]:
    dump = Dump(files, columns=columns)
    return list(dump), dump


@pytest.fixture(params=["stored", "written"])
def lm_eval(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The stored logs and, where the program is installed, logs that it writes now."""
    return LM_EVAL if request.param == "stored" else written("lm_eval", write_lm_eval, tmp_path)


@pytest.fixture(params=["stored", "written"])
def inspect(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same of Inspect."""
    return INSPECT if request.param == "stored" else written("inspect_ai", write_inspect, tmp_path)


def written(package: str, write: Callable[[Path], None], folder: Path) -> Path:
    pytest.importorskip(package)
    write(folder)
    return folder


def test_logs_of_lm_eval_are_read(lm_eval: Path) -> None:
    first = [Rollout(SUMS[0], "\\boxed{4}", 0.0, "4"), Rollout(SUMS[1], "\\boxed{8}", 0.0, "7")]
    steps, dump = read(lm_eval, reward="exact")
    assert (steps, dump.format_name) == ([(1, first)], "lm-eval")
    choices = {"of a multiple-choice task": 2}
    assert dump.counts.left_out == {
        "of the filter boxed, not of whole": 2, "of the filter both, not of whole": 2, **choices,
    }  # fmt: skip
    [(_, rollouts)], _ = read(lm_eval, reward="exact", filter="boxed")
    assert [rollout.reward for rollout in rollouts] == [1.0, 0.0]
    [(_, rollouts)], _ = read(lm_eval, reward="short", filter="boxed", prompt="doc.question")
    assert [(rollout.prompt, rollout.reward) for rollout in rollouts] == [("2+2", 1.0), ("3+4", 1.0)]
    steps, dump = read(lm_eval, reward="exact", filter="both")
    assert steps == []
    assert dump.counts.left_out["with a single score for several responses"] == 2
    with pytest.raises(ConfigError, match=r"several columns of numbers \(exact, short\)\. Choose one with --columns"):
        read(lm_eval)
    with pytest.raises(ConfigError, match=r"it has prompt, response, target, doc, exact, short, doc\."):
        read(lm_eval, reward="acc")


def test_logs_of_inspect_are_read(inspect: Path) -> None:
    [archive, log] = [*inspect.glob("*.eval"), *inspect.glob("*.json")]
    epochs = [(TWO, "4", 1.0), (SEVEN, "8", 0.0), (TWO, "5", 0.0), (SEVEN, "7", 1.0)]
    truths = {"2+2": "4", "be brief\n\n3+4": "7 or seven"}
    expected = [
        Rollout(prompt, f"\\boxed{{{answer}}}", reward, truths[prompt], messages=tuple(messages))
        for (prompt, messages), answer, reward in epochs
    ]
    steps, dump = read(archive, reward="includes")
    assert (steps, dump.format_name) == ([(1, expected)], "inspect")
    assert read(log, reward="includes")[0] == [(1, expected[:1])]
    with pytest.raises(ConfigError, match=r"several columns of numbers \(includes, length\)\. Choose one"):
        read(inspect)


def lm_eval_line(**more: Any) -> dict[str, Any]:
    [path] = LM_EVAL.rglob("samples_sums_*.jsonl")
    return {**json.loads(path.read_text().splitlines()[0]), "metrics": ["exact"], **more}


def inspect_line(**more: Any) -> dict[str, Any]:
    [path] = INSPECT.glob("*.json")
    sample = json.loads(path.read_text())["samples"][0]
    return {"model": "m", INSPECT_SAMPLE: {**sample, "scores": {"includes": {"value": "C"}}, **more}}


def form_of(row: dict[str, Any], **columns: str) -> Format:
    look = recognized([row], "auto", columns)
    assert look is not None
    return chosen([look], "FILE")


def rollout_of(row: dict[str, Any], **columns: str) -> Rollout:
    return form_of(row, **columns).rollout(row)


def test_a_conversation_for_an_api_is_a_prompt_of_messages() -> None:
    asked = {"gen_args_0": {"arg_0": [json.dumps([SYSTEM, ASKED])], "arg_1": {"until": []}}}
    rollout = rollout_of(lm_eval_line(arguments=asked))
    assert (rollout.prompt, list(rollout.messages)) == SEVEN


@pytest.mark.parametrize(
    ("value", "reward"),
    [("C", 1.0), ("P", 0.5), ("I", 0.0), ("N", 0.0), (0.25, 0.25), ("Yes", 1.0), ("FALSE", 0.0), ("0.75", 0.75)],
)
def test_grades_of_inspect_are_numbers(value: object, reward: float) -> None:
    assert rollout_of(inspect_line(scores={"judge": {"value": value}})).reward == reward
    parts = inspect_line(scores={"judge": {"value": {"fact": value, "form": "I"}}})
    assert rollout_of(parts, reward="judge.fact").reward == reward


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (lm_eval_line(arguments=[["2+2", {}]]), "whose fields are not those of lm-eval"),
        (lm_eval_line(exact=None), "without exact"),
        (inspect_line(error={"message": "no network"}), "of a rollout that failed"),
        (inspect_line(scores=None), "without a score"),
        (inspect_line(scores={"includes": {"value": float("nan")}}), "whose includes is not a finite number"),
        (inspect_line(output={}), "whose fields are not those of a sample"),
        ({INSPECT_SAMPLE: None}, "whose fields are not those of a sample"),
    ],
)
def test_a_sample_that_is_no_rollout_says_why(row: dict[str, Any], reason: str) -> None:
    form = form_of(lm_eval_line() if "doc" in row else inspect_line())
    with pytest.raises(LeftOut, match=f"^{reason}$"):
        form.rollout(row)


def write_archive(path: Path, samples: dict[str, str], start: str = "header.json") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(start, json.dumps({"eval": {"model": "m"}}))
        for name, text in samples.items():
            archive.writestr(name, text)
    return path


@pytest.mark.parametrize("start", ["header.json", "_journal/start.json"])
def test_an_archive_may_be_unfinished_and_nothing_in_it_is_written(tmp_path: Path, start: str) -> None:
    sample = json.dumps(inspect_line()[INSPECT_SAMPLE])
    names = ("samples/../../out_epoch_1.json", "samples//tmp/a_epoch_1.json")
    others = {"samples/1_epoch_1/other.json": sample, "summaries.json": "[]", "samples/2_epoch_1.json": "{broken"}
    path = write_archive(tmp_path / "a.eval", {**dict.fromkeys(names, sample), **others}, start)
    [(_, rollouts)], dump = read(path)
    assert [rollout.prompt for rollout in rollouts] == ["2+2", "2+2"]
    assert dump.counts.left_out == {"whose fields are not those of a sample": 1}
    assert list(tmp_path.rglob("*")) == [path]


@pytest.mark.parametrize(("content", "reason"), [("no archive", "BadZipFile"), ("zstd", "OSError"), ("", "KeyError")])
def test_what_is_no_archive_or_a_damaged_one_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = write_archive(tmp_path / "a.eval", {"samples/1_epoch_1.json": "{}"}, start="neither")
    if content == "zstd":
        [archive] = INSPECT.glob("*.eval")
        path.write_bytes(archive.read_bytes().replace(b"\x28\xb5\x2f\xfd", b"none"))  # zstd's first bytes
    elif content:
        path.write_text(content)
    with pytest.raises(ConfigError, match=rf"a\.eval: cannot be read \({reason}: .*\)\. Leave it out\.$"):
        read(path, reward="includes")


def test_what_is_no_log_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "results_2026.json").write_text('{\n  "results": {}\n}')
    (tmp_path / "settings.json").write_text('{\n  "seed": 1\n}')
    (tmp_path / "lines.json").write_text(f"{json.dumps(lm_eval_line())}\n")
    [(_, rollouts)], dump = read(tmp_path)
    assert len(rollouts) == 1
    assert dump.counts.files_left_out == {"without rollouts": 2}
    assert dump.counts.examples == {"without rollouts": str(tmp_path / "results_2026.json")}
