"""Sample logs of lm-eval and Inspect, as they wrote them, and what of them is refused."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.dumps.formats import INSPECT_SAMPLE, LeftOut, Rollout, recognise
from meds_openrlhf.dumps.reading import Dump
from tests.dumps.evaluation_logs import write_inspect, write_lm_eval

DATA = Path(__file__).parent / "data"
LM_EVAL, INSPECT = DATA / "lm-eval-0.4.13", DATA / "inspect-0.3.285"
SUMS = ("Question: 2+2\nAnswer:", "Question: 3+4\nAnswer:")
SYSTEM, ASKED = {"role": "system", "content": "be brief"}, {"role": "user", "content": "3+4"}
TWO, SEVEN = ("2+2", [{"role": "user", "content": "2+2"}]), ("be brief\n\n3+4", [SYSTEM, ASKED])


def read(*files: Path, **columns: str) -> tuple[list[tuple[int, list[Rollout]]], Dump]:
    dump = Dump(files, columns=columns)
    return list(dump), dump


def check_lm_eval(folder: Path) -> None:
    first = [Rollout(SUMS[0], "\\boxed{4}", 0.0, "4"), Rollout(SUMS[1], "\\boxed{8}", 0.0, "7")]
    steps, dump = read(folder, reward="exact")
    assert (steps, dump.format_name) == ([(1, first)], "lm-eval")
    choices = {"of a multiple-choice task": 2}
    assert dump.counts.left_out == {
        "of the filter boxed, not of whole": 2, "of the filter both, not of whole": 2, **choices,
    }  # fmt: skip
    [(_, rollouts)], _ = read(folder, reward="exact", filter="boxed")
    assert [rollout.reward for rollout in rollouts] == [1.0, 0.0]
    [(_, rollouts)], _ = read(folder, reward="short", filter="boxed", prompt="doc.question")
    assert [(rollout.prompt, rollout.reward) for rollout in rollouts] == [("2+2", 1.0), ("3+4", 1.0)]
    steps, dump = read(folder, reward="exact", filter="both")
    assert steps == []
    assert dump.counts.left_out["with a single score for several responses"] == 2
    with pytest.raises(ConfigError, match=r"several columns of numbers \(exact, short\)\. Choose one with --columns"):
        read(folder)
    with pytest.raises(ConfigError, match=r"no known trainer: prompt, response, target, doc, exact, short, doc\."):
        read(folder, reward="acc")


def check_inspect(folder: Path) -> None:
    archive, log = sorted(folder.glob("*.eval")) + sorted(folder.glob("*.json"))
    epochs = [(TWO, "4", 1.0), (SEVEN, "8", 0.0), (TWO, "5", 0.0), (SEVEN, "7", 1.0)]
    truths = {"2+2": "4", "be brief\n\n3+4": "7 or seven"}
    expected = [
        Rollout(prompt, f"\\boxed{{{answer}}}", reward, truths[prompt], messages=tuple(messages))
        for (prompt, messages), answer, reward in epochs
    ]
    steps, dump = read(archive, reward="includes")
    assert (steps, dump.format_name) == ([(1, expected)], "inspect")
    assert read(log, reward="includes")[0] == [(1, expected[:1])]
    steps, dump = read(folder, reward="length")
    assert [[rollout.reward for rollout in rollouts] for _, rollouts in steps] in (
        [[9.0] * 4, [9.0]],
        [[9.0], [9.0] * 4],
    )
    with pytest.raises(
        ConfigError, match=r"several columns of numbers \(includes, length\)\. Choose one with --columns"
    ):
        read(folder)


def test_logs_of_lm_eval_are_read() -> None:
    check_lm_eval(LM_EVAL)


def test_logs_of_inspect_are_read() -> None:
    check_inspect(INSPECT)


def test_what_the_installed_lm_eval_writes_is_read(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    write_lm_eval(tmp_path)
    check_lm_eval(tmp_path)


def test_what_the_installed_inspect_writes_is_read(tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai")
    write_inspect(tmp_path)
    check_inspect(tmp_path)


def lm_eval_line(**more: Any) -> dict[str, Any]:
    [path] = LM_EVAL.rglob("samples_sums_*.jsonl")
    return {**json.loads(path.read_text().splitlines()[0]), "metrics": ["exact"], **more}


def inspect_line(**more: Any) -> dict[str, Any]:
    [path] = INSPECT.glob("*.json")
    sample = json.loads(path.read_text())["samples"][0]
    return {"model": "m", INSPECT_SAMPLE: {**sample, "scores": {"includes": {"value": "C"}}, **more}}


def rollout_of(row: dict[str, Any], **columns: str) -> Rollout:
    return recognise("auto", columns, row, "FILE")[1].rollout(row)


def test_a_conversation_for_an_api_is_a_prompt_of_messages() -> None:
    asked = {"gen_args_0": {"arg_0": [json.dumps([SYSTEM, ASKED])], "arg_1": {"until": []}}}
    rollout = rollout_of(lm_eval_line(arguments=asked))
    assert (rollout.prompt, list(rollout.messages)) == SEVEN


@pytest.mark.parametrize(
    ("value", "reward"), [("C", 1.0), ("P", 0.5), ("I", 0.0), ("N", 0.0), (0.25, 0.25), (True, 1.0)]
)
def test_grades_of_inspect_are_numbers(value: object, reward: float) -> None:
    assert rollout_of(inspect_line(scores={"judge": {"value": value}})).reward == reward
    parts = inspect_line(scores={"judge": {"value": {"fact": value, "form": "I"}}})
    assert rollout_of(parts, reward="judge.fact").reward == reward


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (lm_eval_line(arguments=[["2+2", {}]]), "whose fields are not those of lm-eval"),
        (lm_eval_line(resps=[]), "whose fields are not those of lm-eval"),
        (lm_eval_line(exact=None), "without exact"),
        (inspect_line(error={"message": "no network"}), "of a rollout that failed"),
        (inspect_line(scores=None), "without a score"),
        (inspect_line(scores={"includes": {"value": float("nan")}}), "whose includes is not a finite number"),
        (inspect_line(output={}), "whose fields are not those of a sample"),
        ({INSPECT_SAMPLE: None}, "whose fields are not those of a sample"),
    ],
)
def test_a_sample_that_is_no_rollout_says_why(row: dict[str, Any], reason: str) -> None:
    form = recognise("auto", {}, lm_eval_line() if "doc" in row else inspect_line(), "FILE")[1]
    with pytest.raises(LeftOut, match=f"^{reason}$"):
        form.rollout(row)


def write_archive(path: Path, samples: dict[str, str], start: str | None = "header.json", method: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        if start:
            archive.writestr(start, json.dumps({"eval": {"model": "m"}}))
        for name, text in samples.items():
            archive.writestr(name, text)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("start", ["header.json", "_journal/start.json"])
def test_an_archive_may_be_unfinished_and_nothing_in_it_is_written(tmp_path: Path, start: str, method: int) -> None:
    sample = json.dumps(inspect_line()[INSPECT_SAMPLE])
    names = ("samples/../../out_epoch_1.json", "samples//tmp/a_epoch_1.json")
    others = {"samples/1_epoch_1/sample.json": sample, "summaries.json": "[]", "samples/2_epoch_1.json": "{broken"}
    path = write_archive(tmp_path / "a.eval", {**dict.fromkeys(names, sample), **others}, start, method)
    [(_, rollouts)], dump = read(path)
    assert [rollout.prompt for rollout in rollouts] == ["2+2", "2+2"]
    assert dump.counts.left_out == {"whose fields are not those of a sample": 1}
    assert list(tmp_path.rglob("*")) == [path]


def zstd(text: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(text.encode())
    return sink.getvalue().to_pybytes()


def test_content_that_zstd_compressed_in_several_frames_is_read_and_damage_is_refused(tmp_path: Path) -> None:
    text = json.dumps(inspect_line()[INSPECT_SAMPLE])
    frames = zstd(text[:100]) + zstd(text[100:])
    path = write_archive(tmp_path / "a.eval", {})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("samples/1_epoch_1.json", frames)
        info = archive.getinfo("samples/1_epoch_1.json")
        info.compress_type, info.file_size, info.CRC = 93, len(text), zipfile.crc32(text.encode())
    assert len(read(path)[0]) == 1
    path.write_bytes(path.read_bytes().replace(frames[:4], b"none"))
    with pytest.raises(ConfigError, match=r"a\.eval: cannot be read \(OSError: .*\)\. Leave it out\.$"):
        read(path)


def test_what_is_no_log_is_refused_or_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.eval").write_text("no archive")
    with pytest.raises(
        ConfigError, match=r"a\.eval: cannot be read \(BadZipFile: File is not a zip file\)\. Leave it out"
    ):
        read(tmp_path / "a.eval")
    path = write_archive(tmp_path / "b.eval", {"samples/1_epoch_1.json": "{}"}, start=None)
    with pytest.raises(ConfigError, match=r"b\.eval: cannot be read \(KeyError: .*_journal/start.json"):
        read(path)
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "results_2026.json").write_text('{\n  "results": {}\n}')
    (folder / "settings.json").write_text('{\n  "seed": 1\n}')
    (folder / "lines.json").write_text(f"{json.dumps(lm_eval_line())}\n")
    [(_, rollouts)], dump = read(folder)
    assert len(rollouts) == 1
    assert dump.counts.left_out == {"that are not JSON objects": 1}
    assert dump.counts.examples == {"that are not JSON objects": str(folder / "settings.json")}
