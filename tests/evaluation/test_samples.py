"""Sample files: what is appended stays, what a crash tore is cut, all other damage is an error."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.evaluation.samples import Sample, SampleStore, iterate_samples

A, B = Problem("a", "p", "1"), Problem("b", "p", "2")
SAMPLE = Sample("a", 0, "so \\boxed{1}\u2028\nü \ud800", 5, False, "1", True)


def _sample(problem: str, index: int) -> Sample:
    return replace(SAMPLE, problem=problem, index=index, answer=None, right=False)


def test_samples_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "eval" / "aime24.jsonl"
    with SampleStore(path) as store:
        store.append([SAMPLE, _sample("b", 3)])
        store.append([_sample("a", 1)])
        store.append([])
        assert list(iterate_samples(path)) == [SAMPLE, _sample("b", 3), _sample("a", 1)]
    with SampleStore(path) as store:
        store.append([_sample("b", 0)])
    assert list(iterate_samples(path)) == [SAMPLE, _sample("b", 3), _sample("a", 1), _sample("b", 0)]


def test_missing_says_what_is_left_to_sample(tmp_path: Path) -> None:
    with SampleStore(tmp_path / "s.jsonl") as store:
        assert store.missing([A, B], 2) == [(A, [0, 1]), (B, [0, 1])]
        store.append([_sample("b", 1), _sample("a", 0), _sample("a", 1), _sample("a", 5)])
        assert store.missing([A, B], 2) == [(B, [0])]
    with SampleStore(tmp_path / "s.jsonl") as store:
        assert store.missing([A, B], 3) == [(A, [2]), (B, [0, 2])]
        with pytest.raises(ConfigError, match=r"samples=.*s.jsonl: contains samples of other problems \('b'\)"):
            store.missing([A], 2)


def test_a_torn_tail_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with SampleStore(path) as store:
        store.append([_sample("a", 0), _sample("a", 1)])
        store.append([replace(SAMPLE, problem="b")])
    whole = path.read_bytes()
    ends = [position + 1 for position, byte in enumerate(whole) if byte == ord("\n")]
    for length in sorted({*range(0, len(whole), 10), *ends, *(end - 1 for end in ends)}):
        path.write_bytes(whole[:length])
        survivors = sum(end <= length for end in ends)
        assert len(list(iterate_samples(path))) == survivors
        assert path.stat().st_size == length  # who only reads cuts nothing
        with SampleStore(path) as store:
            assert len(list(iterate_samples(path))) == survivors
            store.append([_sample("c", 0)])
        assert path.read_bytes() == whole[: ([0, *ends][survivors])] + whole_line(_sample("c", 0))


def whole_line(sample: Sample) -> bytes:
    return json.dumps(asdict(sample)).encode() + b"\n"


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (b"\x00" * 20, "Expecting value"),
        (b"\xff\xfe{}", "can't decode|invalid"),
        (b"[]", "must be a mapping"),
        (b'{"problem": "a"}', "missing 6 required"),
        (json.dumps({**asdict(SAMPLE), "score": 1}).encode(), "unexpected keyword argument 'score'"),
        (whole_line(_sample("a", 7))[:-1], "sample 7 of problem 'a' occurs twice"),
    ],
)
def test_other_damage_is_named_and_left_alone(tmp_path: Path, second: bytes, message: str) -> None:
    path = tmp_path / "s.jsonl"
    content = whole_line(_sample("a", 7)) + second + b"\n" + whole_line(_sample("b", 0)) + b'{"torn'
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"samples=.*s.jsonl, line 2: is damaged \(.*({message})"):
        SampleStore(path)
    assert path.read_bytes() == content
    with pytest.raises(ConfigError, match="line 2"):
        list(iterate_samples(path))
    path.write_bytes(whole_line(_sample("a", 7)))
    with SampleStore(path):  # the refusal gave the lock back
        assert len(list(iterate_samples(path))) == 1


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with SampleStore(path) as store:
        store.append([SAMPLE])
        with pytest.raises(ConfigError, match=r"s.jsonl: is being written by another process"):
            SampleStore(path)
        assert list(iterate_samples(path)) == [SAMPLE]
        with SampleStore(tmp_path / "other.jsonl"):
            pass
    with SampleStore(path):
        pass


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_append_that_fails_leaves_the_file_as_it_was(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.jsonl"
    with SampleStore(path) as store:
        store.append([SAMPLE])
        before = path.read_bytes()
        write = os.write

        def write_some(descriptor: int, content: memoryview) -> int:
            if len(content) < 100:
                raise error
            return write(descriptor, content[: len(content) - 90])

        monkeypatch.setattr(os, "write", write_some)
        with pytest.raises(type(error)):
            store.append([_sample("a", 1)])
        monkeypatch.undo()
        assert path.read_bytes() == before
        store.append([_sample("a", 1)])
        assert list(iterate_samples(path)) == [SAMPLE, _sample("a", 1)]
