"""The four methods of the paper, each trained for twenty steps on the real stack."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from meds_openrlhf.report import write_report
from meds_openrlhf.tracking.step_log import StepLog
from tests.e2e.conftest import Run
from tests.e2e.test_modes import read_memory
from tests.tracking.sending.wandb_server import wandb_server

# 2 prompts a step, 8 responses each: 8 steps an episode, fewer where groups are filtered out.
SMALL = ("--rollout.batch_size=2", "--train.batch_size=16", "--ckpt.save_steps=20")
REFERENCE = "reference: 1 GPU on 1 node"


def require_trained(run: Run, step: int = 20) -> None:
    assert len(run.steps) >= step
    assert (run.paths.model / "config.json").exists()
    assert any(one["actor_grad_norm"] > 0 for one in run.steps)
    rates = [one["actor_lr"] for one in run.steps]
    assert rates[0] < rates[1] == pytest.approx(3e-4)  # warmed up after two steps, and constant from there
    assert rates[-1] == pytest.approx(3e-4)
    assert run.paths.rollout_steps() == [one["step"] for one in run.steps]
    assert write_report([run.paths.root], run.paths.report).stat().st_size > 50_000


def test_grpo_on_a_users_own_reward_with_nothing_of_ours(train: Callable[..., Run], tmp_path: Path) -> None:
    reward = tmp_path / "my_reward.py"
    reward.write_text(
        "import torch\n\n"
        "def reward_func(queries, prompts, labels):\n"
        "    boxes = ['boxed{' + str(label) + '}' for label in labels]\n"
        "    right = torch.tensor([float(box in query) for box, query in zip(boxes, queries)])\n"
        "    return {'rewards': right, 'scores': right, 'extra_logs': {'mine': right}}\n"
    )
    run = train(
        *SMALL, "--train.num_episodes=3", "--meds.enabled=false", "--meds.reward=null", f"--reward.remote_url={reward}",
        method="grpo",
    )  # fmt: skip
    require_trained(run)
    assert REFERENCE in run.output
    assert not any(name.startswith("meds/") for step in run.steps for name in step)
    assert not run.paths.memory.root.exists()
    assert all(step["mine"] == pytest.approx(step["rollout/reward_mean"]) for step in run.steps)


def test_grpo_with_the_entropy_advantage(train: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a tracking server that takes connections and never answers."""
    with wandb_server() as server:
        server.behaviour = "hangs"
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "b7" * 20)
        monkeypatch.delenv("WANDB_MODE", raising=False)
        run = train(*SMALL, "--train.num_episodes=3", method="grpo-entropy")
    require_trained(run)
    assert run.output.count("W&B") == run.output.count("W&B does not answer since 20 s; training goes on") == 1
    events = EventAccumulator(str(run.paths.tensorboard / run.paths.root.name)).Reload()
    assert [one.step for one in events.Scalars("train/meds/rows")] == [step["step"] for step in run.steps]
    assert REFERENCE in run.output
    assert all(step["entropy_loss"] > 0 for step in run.steps)
    assert all(step["kl"] >= 0 for step in run.steps)
    assert run.steps[-1]["meds/rows"] > 20  # remembered, to be compared with,
    assert all(step["meds/penalty_mean"] == 0 for step in run.steps)  # at no cost


def test_dapo_colocated_that_keeps_groups_without_a_right_answer(train: Callable[..., Run]) -> None:
    """For the penalty of a memory of final answers, which makes their rewards differ."""
    flags = ("--algo.dynamic_filtering_enable=true", "--meds.rollout.keep_all_wrong=true", "--train.num_episodes=5")
    answers = ("--meds.memory.preset=answers", "--meds.penalty.alpha=0.1")
    run = train(*SMALL, *flags, *answers, "--meds.placement.mode=colocate", method="dapo")
    require_trained(run)
    assert "policy + engines: 1 GPU on 1 node; memory: 2 shards on CPUs" in run.output
    assert any(step["meds/penalized_share"] > 0 for step in run.steps)
    assert not any("eigen" in name for name in run.steps[-1])
    groups = read_memory(run).group_by(["step", "prompt"]).aggregate([("sample", "count")])
    assert max(groups.column("sample_count").to_pylist()) == 8  # wrong throughout, and trained on


def test_meds_with_evaluation(train: Callable[..., Run], assets: Path) -> None:
    flags = ("--algo.dynamic_filtering_enable=true", "--train.num_episodes=5", "--ckpt.save_hf=true")
    # On the problems that it trains on: of the others this small policy may well solve none in 32 samples.
    evaluation = (f"--eval.dataset={assets}/train.jsonl", "--eval.steps=20", "--eval.n_samples_per_prompt=4")
    run = train(*SMALL, *flags, *evaluation)
    require_trained(run)
    assert any(step["meds/penalized_share"] > 0 for step in run.steps)
    assert all(0 < step["rollout/reward_mean"] < 1 for step in run.steps)  # no group is all right or all wrong
    first, *_ = StepLog(run.paths.evaluations).read()
    assert first["step"] == 20
    assert 0 < first["eval_arithmetic_pass1"] <= first["eval_arithmetic_pass2"] <= first["eval_arithmetic_pass4"] <= 1
    assert any(run.paths.tensorboard.rglob("events*"))
    saved = {path.name for path in run.paths.complete.iterdir()}
    best = {name for name in saved if name.startswith("best_")}
    assert "best_global_step20" in best  # the best evaluation's checkpoint is whole as well
    assert "global_step20" in saved
    assert {path.stem for path in run.paths.memory.snapshots.iterdir()} == saved
