"""`meds eval` on a real engine: it is killed in the middle, and the next one goes on."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.conftest import MEDS, finished, start
from tests.processes import wait_until

PROBLEMS, N = 8, 64


def command(assets: Path, out: Path, n: int, *more: str) -> list[str]:
    words = ["eval", f"{assets}/policy", "--benchmarks", f"{assets}/eval.jsonl", "--out", str(out), "--n", str(n)]
    return [*MEDS, *words, "--engines=1", "--max-tokens=80", "--allow-cpu", *more]


def samples(out: Path) -> dict[tuple[str, int], dict[str, object]]:
    """All samples by problem and index, each of which comes once."""
    lines = [json.loads(line) for line in (out / "policy" / "eval.jsonl").read_text().split("\n")[:-1]]  # whole ones
    assert set(Counter((line["problem"], line["index"]) for line in lines).values()) == {1}
    return {(line["problem"], line["index"]): line for line in lines}


@pytest.fixture(scope="module")
def evaluated(assets: Path, cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an evaluation that was killed in the middle, and started again."""
    out = tmp_path_factory.mktemp("evaluated") / "eval"
    words = command(assets, out, N)
    file = out / "policy" / "eval.jsonl"
    killed = start(words, cluster, stdout=None, stderr=None)
    try:
        wait_until(lambda: killed.poll() is not None or (file.exists() and file.stat().st_size > 0))
        assert killed.poll() is None
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    drawn = samples(out)
    assert 0 < len(drawn) < PROBLEMS * N
    ended = finished(words, cluster)
    assert ended.returncode == 0
    missing = PROBLEMS * N - len(drawn)
    assert f"policy: {missing} of {PROBLEMS * N} samples to draw; starting engines: 1 GPU" in ended.stderr
    assert ended.stdout == (out / "table.md").read_text().split("\n### ")[0]
    assert {key: sample for key, sample in samples(out).items() if key in drawn} == drawn
    return out


def test_every_sample_is_drawn_once_and_reported(evaluated: Path, assets: Path) -> None:
    from meds_openrlhf.rewards.grading import is_right

    problems = [json.loads(line) for line in (assets / "eval.jsonl").read_text().splitlines()]
    answers = {problem["id"]: problem["answer"] for problem in problems}
    found = samples(evaluated)
    assert set(found) == {(problem, index) for problem in answers for index in range(N)}
    for (problem, _), sample in found.items():
        assert sample["right"] == is_right(str(sample["text"]), answers[problem])
        assert 0 < int(str(sample["tokens"])) <= 80
    assert len({sample["text"] for sample in found.values()}) > PROBLEMS  # seeds differ
    assert any(sample["right"] for sample in found.values())
    assert "policy" in (evaluated / "table.md").read_text()
    assert (evaluated / "pass_at_k.png").read_bytes().startswith(b"\x89PNG")
    assert {"report.md", "results.json", "table.csv"} <= {path.name for path in evaluated.iterdir()}


def test_what_is_there_needs_no_engine(evaluated: Path, assets: Path) -> None:
    nowhere = "127.0.0.1:1"
    again = finished(command(assets, evaluated, N // 2), nowhere)
    assert again.returncode == 0
    assert "policy" in again.stdout
    _, there, report = again.stderr.splitlines()
    assert there == f"all {PROBLEMS * N // 2} samples are there already"
    assert report == f"report: {evaluated}/report.md"
    other = finished(command(assets, evaluated, N, "--temperature=0.5"), nowhere)
    assert other.returncode == 2
    assert other.stderr.splitlines()[-1].startswith("meds: --temperature=0.5: does not fit the samples in")
    assert other.stderr.count("\n") == 2
