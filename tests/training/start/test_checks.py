"""What is refused before anything starts, on small files."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.config import ConfigError, MedsSettings, RunConfig
from meds_openrlhf.config.schema import (
    ExplorationSettings,
    MemorySettings,
    PenaltySettings,
    PolicySettings,
    RolloutSettings,
)
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.placement.inventory import imagined_cluster
from meds_openrlhf.training.host.openrlhf import parse_openrlhf_arguments
from meds_openrlhf.training.start import checks
from meds_openrlhf.training.start.prepare import plan_run, prepare

BASE = {
    "vllm.num_engines": 2,
    "actor.num_gpus_per_node": 4,
    "algo.advantage.estimator": "group_norm",
    "rollout.n_samples_per_prompt": 4,
    "reward.remote_url": "reward.py",
}
CODE = Path(__file__).parents[3]
CODE_FILES = {
    "reward.remote_url": "meds_openrlhf/rewards/math.py",
    "train.agent_func_path": "examples/calculator_agent.py",
}
GYM_LABEL = '{"reasoning_gym": "chain_sum", "settings": {}, "threshold": 1, "entry": {}}'
CRITIC = {"algo.advantage.estimator": "gae", "critic.model_name_or_path": "some/critic"}
PROMPTS = {"policy": PolicySettings(minibatches="prompts")}
ALL_WRONG = {"rollout": RolloutSettings(keep_all_wrong=True)}
ONE = {"algo.advantage.estimator": "flash_reinforce", "rollout.n_samples_per_prompt": 1}
LORA = {"ds.lora.rank": 8}
FILTERED = {"algo.dynamic_filtering_enable": True}
NO_REWARD = {"reward.remote_url": None}
AGENT = {**NO_REWARD, "train.agent_func_path": "agent.py"}
MATH = {"reward": "math"}
OVERLONG = {"rollout.max_new_tokens": 64, "reward.overlong_buffer_len": 65.0}
PASS_AT_3, PASS_AT_4 = ({"exploration": ExplorationSettings(pass_at_k=k)} for k in (3, 4))
ANSWER_BONUS = {
    "exploration": ExplorationSettings(answer_bonus=0.1),
    "memory": MemorySettings(preset="answers", remember="both"),
}
BATCH_SCOPE = {"penalty": PenaltySettings(scope="batch")}
KEEPS = "meds.rollout.keep_all_wrong=True: needs algo.dynamic_filtering_enable, and a memory that penalizes wrong"

# What each check refuses: settings under meds., OpenRLHF's flags, and a part of the message.
REFUSED: dict[Callable[..., None], list[tuple[dict[str, Any], dict[str, Any], str]]] = {
    checks.require_positive: [
        ({}, {"vllm.num_engines": 0}, "vllm.num_engines=0: must be at least 1."),
        ({}, {"vllm.num_engines": None}, "vllm.num_engines: must be at least 1."),
    ],
    checks.require_reward: [
        ({}, NO_REWARD, "meds.reward: the run has no reward. Set meds.reward="),
        (MATH, {}, "meds.reward=math: would not be used, because reward.remote_url is set. Set one of them to null."),
        (MATH, AGENT, "meds.reward=math: would not be used, because train.agent_func_path is set."),
        ({}, {**AGENT, "reward.remote_url": "mine.py"}, "would not be used, because train.agent_func_path is set."),
    ],
    checks.require_two_checkpoints: [
        ({}, {"ckpt.max_num": 1, "ckpt.save_steps": 5}, "ckpt.max_num=1: leaves no complete checkpoint while the next"),
    ],
    checks.require_lora: [
        ({}, {"ds.lora.rank": -1}, "ds.lora.rank=-1: must be at least 1, or 0 to train all weights."),
        ({}, {**LORA, "ds.lora.alpha": 0}, "ds.lora.alpha=0: must be at least 1."),
        ({}, {**LORA, "ds.lora.dropout": 1}, "ds.lora.dropout=1.0: must be at least 0 and below 1."),
        ({}, {**LORA, "ds.load_in_4bit": True}, "ds.load_in_4bit=True: does not work with ds.lora.rank=8: adapters"),
        ({}, {**LORA, "ds.tensor_parallel_size": 2}, "ds.tensor_parallel_size=2: does not work with ds.lora."),
        ({}, {**LORA, "train.enable_ema": True}, "train.enable_ema=True: does not work with ds.lora."),
    ],
    checks.require_length_penalties: [
        ({}, OVERLONG, "reward.overlong_buffer_len=65.0: is more than the 64 tokens of the longest response."),
    ],
    checks.require_filtering: [
        (ALL_WRONG, {}, KEEPS),
        (ALL_WRONG | {"enabled": False}, FILTERED, KEEPS),
        (ALL_WRONG | {"memory": MemorySettings(remember="right")}, FILTERED, KEEPS),
        (ALL_WRONG | {"penalty": PenaltySettings(alpha=0)}, FILTERED, KEEPS),
    ],
    checks.require_minibatches: [
        (PROMPTS, {"train.batch_size": 10}, "train.batch_size=10: must be a multiple of the 4 responses to a prompt"),
        (PROMPTS, {"train.batch_size": 12}, "to a prompt and divide the 4096 of a step."),
        (PROMPTS, CRITIC, "meds.policy.minibatches=prompts: a critic would train on other mini-batches."),
    ],
    checks.require_exploration: [
        (PASS_AT_4, {}, "meds.exploration.pass_at_k=4: must be below rollout.n_samples_per_prompt, 4."),
        (PASS_AT_3, {"algo.advantage.estimator": "rloo"}, "algo.advantage.estimator=rloo: pass_at_k works only with"),
        (ANSWER_BONUS, CRITIC, "algo.advantage.estimator=gae: meds.exploration.answer_bonus does not support a"),
        (BATCH_SCOPE, ONE, "meds.penalty.scope=batch: compares the responses to a prompt. Raise rollout."),
    ],
    checks.require_readable_answers: [
        ({}, {"data.disable_fast_tokenizer": True}, "data.disable_fast_tokenizer=True: only a fast tokenizer gives"),
    ],
}


@pytest.mark.parametrize(("meds", "flags", "message"), [case for cases in REFUSED.values() for case in cases])
def test_what_train_and_plan_refuse(meds: dict[str, Any], flags: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Both ask all checks, so that a plan that is shown is one that could be trained."""
    policy = {"actor.model_name_or_path": str(tmp_path), "data.prompt_dataset": str(tmp_path)}
    config = RunConfig(MedsSettings(run_dir=str(tmp_path / "run"), **meds), {**BASE, **policy, **flags})
    code = {key: str(CODE / name) for key, name in CODE_FILES.items() if config.openrlhf.get(key)}
    trained = replace(config, openrlhf={**config.openrlhf, **code})
    for ask in (
        lambda: plan_run(config, imagined_cluster("1x8", 140.0)),
        lambda: prepare(trained, RunPaths(tmp_path / "run"), False, True),
    ):
        with pytest.raises(ConfigError) as refused:
            ask()
        assert message in str(refused.value)


@pytest.mark.parametrize(
    "key",
    [
        *("actor.num_nodes", "actor.num_gpus_per_node", "ref.num_gpus_per_node", "vllm.tensor_parallel_size"),
        *("rollout.micro_batch_size", "train.batch_size", "train.micro_batch_size", "train.max_tokens_per_gpu"),
        "ds.ring_attn_size",
    ],
)
def test_counts_and_sizes_are_positive(key: str) -> None:
    config = RunConfig(MedsSettings(run_dir="runs/x"), {})
    checks.require_positive(config, BASE | {key: 1})
    with pytest.raises(ConfigError, match=rf"^{key}=0: must be at least 1\.$"):
        checks.require_positive(config, BASE | {key: 0})


def test_every_check_refuses_something() -> None:
    assert set(REFUSED) == {*checks.OF_FLAGS, *checks.OF_ARGUMENTS}


@pytest.mark.parametrize(
    ("meds", "flags"),
    [
        ({}, {}),
        ({}, {"ckpt.max_num": 1}),  # nothing is saved on the way
        ({}, {"ds.load_in_4bit": True, "train.enable_ema": True}),
        ({}, {**LORA, "ds.lora.dropout": 0.5}),
        ({}, AGENT),
        ({}, OVERLONG | {"reward.overlong_buffer_len": 64.0}),
        (ALL_WRONG, FILTERED),
        (PROMPTS, {"train.batch_size": 16}),
        (PASS_AT_3, {}),
        (ANSWER_BONUS, ONE),
        (BATCH_SCOPE | {"enabled": False}, ONE),
    ],
)
def test_what_goes_together(meds: dict[str, Any], flags: dict[str, Any]) -> None:
    config = RunConfig(MedsSettings(run_dir="runs/x", **meds), {**BASE, **flags})
    for check in checks.OF_FLAGS:
        check(config, config.openrlhf)
    args = parse_openrlhf_arguments({**BASE, **flags})
    for ask in checks.OF_ARGUMENTS:
        ask(config, args)


def test_local_files_get_their_full_names_and_hub_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "x"}))
    (tmp_path / "mix").mkdir()
    names = "a.jsonl,owner/name, mix@sub,owner/name@sub"
    flags = {"data.prompt_dataset": names, "actor.model_name_or_path": "owner/model", "train.seed": 1}
    assert checks.with_absolute_paths(flags) == {
        "data.prompt_dataset": f"{tmp_path}/a.jsonl,owner/name,{tmp_path}/mix@sub,owner/name@sub",
        "actor.model_name_or_path": "owner/model",
        "train.seed": 1,
    }


URL, AGENT_FILE = "reward.remote_url", "train.agent_func_path"


@pytest.mark.parametrize(
    ("key", "content", "message"),
    [
        (URL, None, "cannot be read (No such file or directory; looked in"),
        (URL, "def reward_func(:\n", "is not valid Python (line 1: invalid syntax)."),
        (URL, "def reward_fn(queries, prompts, labels): ...\n", "must define a non-async function `reward_func`"),
        (URL, "async def reward_func(queries, prompts, labels): ...\n", "must define a non-async function `reward_f"),
        (AGENT_FILE, None, "cannot be read (No such file or directory; looked in"),
        (AGENT_FILE, "import openrlhf\n", "must define a class `AgentExecutor`, which OpenRLHF calls. See docs/recip"),
    ],
)
def test_code_files_that_could_not_be_called(tmp_path: Path, key: str, content: str | None, message: str) -> None:
    file = tmp_path / "mine.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError) as raised:
        checks.require_code_files(RunConfig(MedsSettings(run_dir="x"), {key: str(file)}))
    assert str(raised.value).startswith(f"{key}={file}: {message}")


@pytest.mark.parametrize(
    "content", ["def reward_func(a, b, c): ...", "from other import score as reward_func", "reward_func = print"]
)
def test_a_reward_file_that_can_be_called(tmp_path: Path, content: str) -> None:
    (tmp_path / "mine.py").write_text(content)
    flags = {"reward.remote_url": str(tmp_path / "mine.py")}
    checks.require_code_files(RunConfig(MedsSettings(run_dir="x"), flags))
    checks.require_code_files(RunConfig(MedsSettings(run_dir="x"), {"reward.remote_url": "http://host:5000/score"}))


@pytest.mark.parametrize(
    ("reward", "label", "message"),
    [
        ("gym", "42", r"meds.reward=gym: cannot read the labels in data.label_key: '42' "),
        ("gym", '{"reasoning_gym": "chain_sun", "settings": {}}', "'chain_sun' not registered"),
        ("math", GYM_LABEL, r"meds.reward=math: cannot read reasoning-gym.s labels in data.label_key. Set it"),
    ],
)
def test_a_reward_that_cannot_read_the_labels_is_refused(reward: str, label: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checks.require_labels(RunConfig(MedsSettings(run_dir="x", reward=reward), {}), [{"answer": label}], "answer")


def test_a_built_in_reward_needs_labels_and_another_does_not() -> None:
    checks.require_labels(RunConfig(MedsSettings(run_dir="x"), {}), [{"prompt": "1+1"}], None)
    with pytest.raises(ConfigError, match=r"data.label_key: names no column, and meds.reward=math compares"):
        checks.require_labels(RunConfig(MedsSettings(run_dir="x", reward="math"), {}), [{"prompt": "1+1"}], None)


@pytest.mark.parametrize(("reward", "label"), [("gym", GYM_LABEL), ("math", "42"), (None, GYM_LABEL), ("math", 42)])
def test_a_reward_that_reads_the_labels(reward: str | None, label: str | int) -> None:
    checks.require_labels(RunConfig(MedsSettings(run_dir="x", reward=reward), {}), [{"answer": label}], "answer")
