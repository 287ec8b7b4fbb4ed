"""`meds eval` on the real engines: two of them draw; one is killed in the middle, and goes on."""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.conftest import MEDS

PROBLEMS, N, LARGER_N = 8, 8, 64


def command(assets: Path, out: Path, n: int, *more: str, engines: int = 2) -> list[str]:
    words = ["eval", f"{assets}/policy", "--benchmarks", f"{assets}/eval.jsonl", "--out", str(out), "--n", str(n)]
    return [*MEDS, *words, f"--engines={engines}", "--max-tokens=80", "--allow-cpu", *more]


def run(words: list[str], cluster: str) -> subprocess.CompletedProcess[str]:
    finished = subprocess.run(
        words, env={**os.environ, "RAY_ADDRESS": cluster}, capture_output=True, text=True, timeout=300
    )
    print(finished.stdout[-3000:], finished.stderr[-3000:])  # shown when the test fails
    return finished


def samples(out: Path) -> dict[tuple[str, int], dict[str, object]]:
    """All samples by problem and index, each of which comes once."""
    lines = [json.loads(line) for line in (out / "policy" / "eval.jsonl").read_text().splitlines()]
    assert set(Counter((line["problem"], line["index"]) for line in lines).values()) == {1}
    return {(line["problem"], line["index"]): line for line in lines}


@pytest.fixture(scope="module")
def undisturbed(assets: Path, cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an evaluation that ran to its end."""
    out = tmp_path_factory.mktemp("undisturbed") / "eval"
    finished = run(command(assets, out, N), cluster)
    assert finished.returncode == 0
    assert "policy: 64 of 64 samples to draw; starting engines: 2 GPUs on 1 node" in finished.stderr
    assert finished.stdout == (out / "table.md").read_text().split("\n### ")[0]
    return out


def test_two_engines_give_a_table_and_curves(undisturbed: Path, assets: Path) -> None:
    from meds_openrlhf.rewards.grading import is_right

    problems = [json.loads(line) for line in (assets / "eval.jsonl").read_text().splitlines()]
    answers = {problem["id"]: problem["answer"] for problem in problems}
    found = samples(undisturbed)
    assert set(found) == {(problem, index) for problem in answers for index in range(N)}
    for (problem, _), sample in found.items():
        assert sample["right"] == is_right(str(sample["text"]), answers[problem])
        assert 0 < int(str(sample["tokens"])) <= 80
    assert len({sample["text"] for sample in found.values()}) > PROBLEMS  # seeds differ
    assert any(sample["right"] for sample in found.values())
    assert "policy" in (undisturbed / "table.md").read_text()
    assert (undisturbed / "pass_at_k.png").read_bytes().startswith(b"\x89PNG")
    assert {"report.md", "results.json", "table.csv"} <= {path.name for path in undisturbed.iterdir()}


def test_what_is_there_needs_no_engine(undisturbed: Path, assets: Path) -> None:
    nowhere = "127.0.0.1:1"
    again = run(command(assets, undisturbed, N // 2), nowhere)
    assert again.returncode == 0
    assert "policy" in again.stdout
    assert again.stderr == ""
    other = run(command(assets, undisturbed, N, "--temperature=0.5"), nowhere)
    assert other.returncode == 2
    assert other.stderr.startswith("meds: --temperature: 0.5 does not go with the samples in")
    assert other.stderr.count("\n") == 1


def test_killed_in_the_middle_it_goes_on(undisturbed: Path, assets: Path, cluster: str, tmp_path: Path) -> None:
    out = tmp_path / "eval"
    words = command(assets, out, LARGER_N, engines=1)
    killed = subprocess.Popen(words, env={**os.environ, "RAY_ADDRESS": cluster}, start_new_session=True)
    file = out / "policy" / "eval.jsonl"
    deadline = time.monotonic() + 300
    try:
        while not (file.exists() and file.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    drawn = samples(out)
    assert 0 < len(drawn) < PROBLEMS * LARGER_N
    finished = run(words, cluster)
    assert finished.returncode == 0
    missing = PROBLEMS * LARGER_N - len(drawn)
    assert f"policy: {missing} of {PROBLEMS * LARGER_N} samples to draw" in finished.stderr
    found = samples(out)
    assert len(found) == PROBLEMS * LARGER_N
    assert {key: found[key] for key in drawn} == drawn
    assert {key: found[key] for key in samples(undisturbed)} == samples(
        undisturbed
    )  # by two engines or one, at once or in two parts
