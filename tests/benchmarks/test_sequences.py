"""The benchmark of an engine's sequences at a time, on a model with random weights."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_an_engine_as_openrlhf_starts_it_has_the_least_limits(tmp_path: Path) -> None:
    make = [sys.executable, "ray_jobs/validate/random_model.py", "tiny", f"{tmp_path}/model"]
    subprocess.run([*make, "--problems", f"{tmp_path}/train.jsonl"], cwd=REPOSITORY, check=True)
    first = json.loads((tmp_path / "train.jsonl").read_text().splitlines()[0])
    assert first == {"id": "sum-0", "prompt": "What is 0 + 7? ", "answer": "7"}
    sizes = [
        "--sequences",
        "--requests=8",
        "--prompt=10",
        "--tokens=10",
        "--share=0.3",
        f"--json={tmp_path}/found.json",
    ]
    command = [sys.executable, "-m", "benchmarks.sequences", f"{tmp_path}/model", *sizes]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (found,) = json.loads((tmp_path / "found.json").read_text())
    assert found["limits"] == [128, 2048]  # whatever the cache holds
    assert found["tokens_per_second"] == pytest.approx(80 / found["seconds"])
