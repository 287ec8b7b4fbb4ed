"""Ways to place and run OpenRLHF's pieces, each a whole training run on the real stack; more are in test_methods."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from meds_openrlhf.memory.tools.stored_memory import open_memory
from meds_openrlhf.memory.tools.verify import verify_memory
from meds_openrlhf.tracking.step_log import StepLog
from tests.e2e.conftest import SAMPLES, STEPS, Run


def read_memory(run: Run) -> pa.Table:
    """All rows, with pyarrow alone."""
    files = sorted(run.paths.memory.root.glob("shard-*/*.arrow"))
    return pa.concat_tables([pa.ipc.open_stream(path.read_bytes()).read_all() for path in files])


def require_memory_at_work(run: Run) -> None:
    """Rows of every step are on the disk once, and wrong rollouts of prompts that came again were penalised."""
    rows = read_memory(run)
    steps = run.steps
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert rows.num_rows == steps[-1]["meds/rows"] > 20
    assert len({(row["step"], row["sample"]) for row in rows.select(["step", "sample"]).to_pylist()}) == rows.num_rows
    sizes, when = rows.column("cluster_size").to_numpy(), rows.column("step").to_numpy()
    assert sizes[when <= STEPS // 2].max() == 0  # first visits
    assert sizes[when > STEPS // 2].max() >= 2
    for step in steps:
        penalties = np.minimum(0.1 * np.log(sizes[when == step["step"]] + 1), 0.2)
        assert step["meds/penalty_mean"] == pytest.approx(penalties.sum() / SAMPLES, abs=1e-6)
        assert step["meds/reward_raw"] - step["meds/reward_shaped"] == pytest.approx(
            step["meds/penalty_mean"], abs=1e-6
        )
        assert step["rollout/reward_mean"] == pytest.approx(step["meds/reward_raw"], abs=1e-6)
    assert any(step["meds/penalized_share"] > 0 for step in steps)
    assert verify_memory(open_memory(run.paths.root)).damage == []


def test_asynchronous_with_a_reference_and_evaluation(train: Callable[..., Run], assets: Path) -> None:
    flags = ("--train.async_enable", "--eval.steps=4", "--eval.n_samples_per_prompt=2", "--algo.kl.init_coef=0.001")
    run = train(*flags, f"--eval.dataset={assets}/eval.jsonl", "--ref.num_gpus_per_node=1")
    require_memory_at_work(run)
    assert "reference: 1 GPU on 1 node" in run.output
    assert any(path.name.startswith("best_") for path in run.paths.complete.iterdir())
    evaluations = StepLog(run.paths.evaluations).read()
    assert [one["step"] for one in evaluations] == [4]  # of the last step nobody waits for one
    assert f"evaluation after step 4: arithmetic pass@1 {evaluations[0]['eval_arithmetic_pass1']:.3f}" in run.output


def test_zero3_with_two_policy_ranks(train: Callable[..., Run]) -> None:
    run = train("--ds.zero_stage=3", "--actor.num_gpus_per_node=2")
    require_memory_at_work(run)
    assert "policy: 2 GPUs on 1 node" in run.output
