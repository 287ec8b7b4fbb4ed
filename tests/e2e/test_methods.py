"""Methods that need no memory of logits, each trained on the real stack; MEDS and the entropy method are elsewhere."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from meds_openrlhf.memory.log import all_steps
from meds_openrlhf.memory.stored import open_memory, verify_memory
from meds_openrlhf.memory.successes import Successes
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report import write_report
from meds_openrlhf.rollouts.log import read_rollouts
from meds_openrlhf.step_log import StepLog
from tests.e2e.conftest import REPOSITORY, command, finish, start
from tests.e2e.runs import Run, ray_process, read_memory, wait_for_step

# 2 prompts a step, 8 responses each: 8 steps an episode, fewer where groups are filtered out.
SMALL = ("--rollout.batch_size=2", "--train.batch_size=16")


def require_trained(run: Run, steps: int, extras: bool = False) -> None:
    assert len(run.steps) >= steps
    assert (run.paths.model / "config.json").exists()
    assert any(one["actor_grad_norm"] > 0 for one in run.steps)
    rates = [one["actor_lr"] for one in run.steps]
    assert rates[0] < rates[1] or extras  # whose updates may end the warm-up in the first step
    assert rates[1] == pytest.approx(3e-4)  # warmed up after two steps, and constant from there
    assert rates[-1] == pytest.approx(3e-4)
    assert run.paths.rollout_steps() == [one["step"] for one in run.steps]
    assert write_report([run.paths.root], run.paths.report).stat().st_size > 50_000


def test_grpo_on_a_users_own_reward_with_nothing_of_ours(train: Callable[..., Run], tmp_path: Path) -> None:
    """Asynchronous, with weights that arrive while engines generate, and prompts in advance that they abort."""
    reward = tmp_path / "my_reward.py"
    reward.write_text(
        "import torch\n\n"
        "def reward_func(queries, prompts, labels):\n"
        "    boxes = ['boxed{' + str(label) + '}' for label in labels]\n"
        "    right = torch.tensor([float(box in query) for box, query in zip(boxes, queries)])\n"
        "    return {'rewards': right, 'scores': right, 'extra_logs': {'mine': right}}\n"
    )
    ahead = ("--train.async_enable", "--train.partial_rollout_enable", "--algo.dynamic_filtering_enable=true")
    run = train(
        *SMALL, *ahead, "--train.num_episodes=3", "--meds.enabled=false", "--meds.reward=null",
        f"--reward.remote_url={reward}", method="grpo",
    )  # fmt: skip
    require_trained(run, 8)
    log = pa.concat_tables(read_rollouts(run.paths)).to_pandas()
    groups = log.groupby(["step", "prompt"]).correct
    assert set(groups.size()) == {8}
    assert groups.mean().between(0, 1, inclusive="neither").all()
    assert "reference: 1 GPU on " in run.output
    assert all(step["kl"] >= 0 for step in run.steps)
    assert not any(name.startswith("meds/") for step in run.steps for name in step)
    assert not run.paths.memory.root.exists()
    assert all(step["mine"] == pytest.approx(step["rollout/reward_mean"]) for step in run.steps)


def test_weights_colocated_and_groups_without_a_right_answer_beside_the_others(
    train: Callable[..., Run], assets: Path, tmp_path: Path
) -> None:
    """By a memory of final answers. With evaluations."""
    solvable = (assets / "train.jsonl").read_text()
    others = (assets / "eval.jsonl").read_text().splitlines()[:4]
    unsolvable = [json.loads(line) | {"answer": "-99999"} for line in others]
    (tmp_path / "problems.jsonl").write_text(solvable + "".join(json.dumps(one) + "\n" for one in unsolvable))
    flags = ("--algo.dynamic_filtering_enable=true", "--meds.penalty.extras=2", "--train.num_episodes=6")
    flags += (f"--data.prompt_dataset={tmp_path}/problems.jsonl",)
    answers = ("--meds.memory.preset=answers", "--meds.penalty.form=weights", "--meds.penalty.alpha=0.1")
    # On the problems that it trains on: of the others this small policy may well solve none in 32 samples.
    evaluation = (f"--eval.dataset={assets}/train.jsonl", "--eval.steps=12", "--eval.n_samples_per_prompt=4")
    saving = ("--ckpt.save_steps=12", "--ckpt.save_hf=true")
    # Of four responses, none is right often enough: in one of eight groups at first.
    fours = [f"--{name}_batch_size=8" for name in ("train.micro", "rollout.micro")] + ["--train.batch_size=8"]
    fours.append("--rollout.n_samples_per_prompt=4")
    run = train(
        *SMALL, *fours, *flags, *answers, *evaluation, *saving, "--meds.placement.mode=colocate", method="dapo"
    )  # fmt: skip
    require_trained(run, 12, extras=True)
    assert re.search(r"policy \+ engines: 1 GPU on \S+; memory: 2 shards on CPUs", run.output)
    assert all(0 < step["rollout/reward_mean"] < 1 for step in run.steps)  # no step of extras alone
    assert all(step["meds/penalty_mean"] == 0 for step in run.steps)  # weights act on advantages
    assert any(step["meds/penalty_effect"] > 0 for step in run.steps)
    assert not any("eigen" in name for name in run.steps[-1])
    groups = read_memory(run.paths).group_by(["step", "prompt"]).aggregate([("sample", "count")]).to_pandas()
    assert groups.sample_count.max() == 4  # wrong throughout, and trained on
    rollouts = {step["step"]: step["rollout/num_samples"] for step in run.steps}
    assert max(rollouts.values()) in (12, 16)  # two groups, and one or two more
    for step in run.steps:
        assert step["rollout/trained_tokens"] <= step["rollout/generated_tokens"]
    assert any(step["rollout/trained_tokens"] < step["rollout/generated_tokens"] for step in run.steps)

    evaluations = StepLog(run.paths.evaluations).read()
    first = evaluations[0]
    assert first["step"] == 12
    assert 0 < first["eval_arithmetic_pass1"] <= first["eval_arithmetic_pass2"] <= first["eval_arithmetic_pass4"] <= 1
    assert f"evaluation after step 12: arithmetic pass@1 {first['eval_arithmetic_pass1']:.3f}" in run.output
    assert any(run.paths.tensorboard.rglob("events*"))
    saved = {path.name for path in run.paths.complete.iterdir()}
    best = max(evaluations, key=lambda one: one["eval_arithmetic_pass1"])["step"]
    assert {f"best_global_step{best}", "global_step12"} <= saved  # the best evaluation's checkpoint is whole as well
    assert {path.stem for path in run.paths.memory.snapshots.iterdir()} == saved


def rivals(*names: str) -> list[str]:
    return ["--variant", *(f"{REPOSITORY}/configs/rivals.yaml:{name}" for name in names)]


@pytest.mark.slow
def test_one_rollout_for_each_prompt_with_a_bonus_for_seldom_answers(train: Callable[..., Run]) -> None:
    """16 prompts, 8 a step: from the third step on they come again, and the same answers lose reward and advantage."""
    one = ("--rollout.n_samples_per_prompt=1", "--algo.advantage.estimator=flash_reinforce")
    sizes = [f"--{name}_batch_size=8" for name in ("train.micro", "rollout.micro")]
    sizes += ["--rollout.batch_size=8", "--train.batch_size=8", "--train.num_episodes=4"]
    run = train(*one, *sizes, *rivals("answer-ucb"))
    require_trained(run, 8)
    assert not {"group_reward_std", "dynamic_filtering_pass_rate"} & {name for step in run.steps for name in step}
    rows = read_memory(run.paths)
    assert set(rows.group_by(["step", "prompt"]).aggregate([("sample", "count")])["sample_count"].to_pylist()) == {1}
    assert set(rows["correct"].to_pylist()) == {False, True}
    assert any(step["meds/penalized_share"] > 0 for step in run.steps[2:])
    counts, when = rows["cluster_size"].to_numpy(), rows["step"].to_numpy()
    for step in run.steps:  # rewards less their mean add up to nothing, which leaves the bonus
        seen = counts[when == step["step"]]
        bonus = 0.2 * (1 / np.sqrt(np.maximum(seen, 1)) - 0.5)
        assert step["return"] == pytest.approx(bonus.sum() / 8, abs=1e-5)
    assert counts[when <= 2].max() == 0 < counts.max()


@pytest.mark.slow
def test_other_methods_together_and_with_the_penalty(train: Callable[..., Run]) -> None:
    """One that changes the group's advantages and one that changes those of tokens."""
    entropy = "--meds.policy.entropy_advantage.alpha=0.4"
    run = train(*SMALL, "--train.num_episodes=1", *rivals("pass-at-k"), entropy)
    require_trained(run, 8)
    assert all(step["return"] == pytest.approx(0, abs=1e-5) for step in run.steps)
    assert any(step["group_reward_std"] > 0 for step in run.steps)


@pytest.mark.slow
def test_focal_weights_survive_the_loss_of_the_policy(assets: Path, tmp_path: Path) -> None:
    """Without rows; of the groups that are filtered out, too."""
    paths = RunPaths(tmp_path / "run")
    options = ("--algo.dynamic_filtering_enable=true", "--train.num_episodes=2", "--ckpt.save_steps=2")
    options += ("--meds.memory.preset=answers", "--meds.memory.remember=none")
    # Of two responses, often both are right or none.
    twos = [f"--{name}_batch_size=4" for name in ("train.micro", "rollout.micro")] + ["--train.batch_size=4"]
    twos.append("--rollout.n_samples_per_prompt=2")
    train = command(assets, paths.root, *SMALL, *twos, *options, *rivals("focal"), method="dapo")
    first = start(train)
    wait_for_step(StepLog(paths.metrics), 3, first)
    os.kill(ray_process(first.pid, "PolicyActor").pid, signal.SIGKILL)
    code, output = finish(first)
    assert code == 1, output
    code, output = finish(start([*train, "--resume"]), None)
    assert code == 0, output
    assert "resuming after step" in output
    assert "begin empty" not in output

    memory = open_memory(paths.root)
    assert verify_memory(memory).damage == []
    assert memory.table().num_rows == 0
    lines = {line["step"]: line for line in StepLog(paths.metrics).read()}
    rollouts = pa.concat_tables(read_rollouts(paths)).to_pandas().groupby("step")
    known, remembered = Successes(), 0
    for step, _, visits in all_steps(memory.paths, memory.schema):
        assert visits == known.visits_of({prompt: visit[:2] for prompt, visit in visits.items()})
        groups = rollouts.get_group(step).groupby("prompt").correct
        assert {prompt: visits[prompt][:2] for prompt in groups.groups} == dict(
            zip(groups.groups, zip(groups.sum(), groups.size()))
        )
        remembered += sum(visits[prompt].success is not None for prompt in groups.groups)
        assert lines[step]["rollout/dropped_groups"] == len(visits) - len(groups)
        known.add(visits)
        assert lines[step]["meds/coverage"] == known.solved / known.visited
    assert set(lines) == set(rollouts.groups)
    assert remembered > 0
    assert any(line["rollout/dropped_groups"] > 0 for line in lines.values())
