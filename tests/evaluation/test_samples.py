"""Samples: what is drawn in blocks, and files, in which only what a crash tore is cut and other damage is an error."""

import json
import os
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.request import Problem
from meds_openrlhf.evaluation.samples import (
    BLOCK_SAMPLES,
    Sample,
    SampleStore,
    iterate_samples,
    make_blocks,
    sample_seed,
)

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


PROBLEMS = [Problem(f"p{number}", "prompt", "1") for number in range(3)]
TOKENS = {problem.id: (number, 7) for number, problem in enumerate(PROBLEMS)}


def test_every_missing_sample_is_in_one_block() -> None:
    missing = [(problem, list(range(start, 40))) for start, problem in enumerate(PROBLEMS)]
    blocks = make_blocks("aime24", missing, TOKENS)
    drawn = Counter((block.problem.id, index) for block in blocks for index in block.indices)
    assert drawn == Counter((problem.id, index) for problem, indices in missing for index in indices)
    assert max(len(block.indices) for block in blocks) == BLOCK_SAMPLES
    assert all(block.tokens == TOKENS[block.problem.id] and block.benchmark == "aime24" for block in blocks)


def test_all_problems_begin_before_any_goes_on() -> None:
    blocks = make_blocks("aime24", [(problem, list(range(48))) for problem in PROBLEMS], TOKENS)
    assert [block.problem.id for block in blocks] == ["p0", "p1", "p2"] * 3


def test_seeds_differ_and_stay() -> None:
    seeds = {
        sample_seed(seed, problem, index) for seed in range(3) for problem in ("1", "11", "p") for index in range(200)
    }
    assert len(seeds) == 3 * 3 * 200
    assert all(0 <= seed < 2**63 for seed in seeds)
    # Samples that are on somebody's disk were drawn with these.
    assert sample_seed(0, "aime24-1", 0) == 7394613888456361208
    assert sample_seed(0, "aime24-1", 127) == 9084923511986020020
