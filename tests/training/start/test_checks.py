"""What is refused before anything starts, on small files."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig, T5Config

from meds_openrlhf.config import ConfigError, MedsSettings, RunConfig
from meds_openrlhf.config.schema import (
    ExplorationSettings,
    MemorySettings,
    PenaltySettings,
    PolicySettings,
    RolloutSettings,
)
from meds_openrlhf.placement.plan import RoleRequest
from meds_openrlhf.training.host.openrlhf import parse_openrlhf_arguments, role_requests
from meds_openrlhf.training.start import checks

BASE = {
    "vllm.num_engines": 2,
    "actor.num_gpus_per_node": 4,
    "ref.num_gpus_per_node": 4,
    "algo.advantage.estimator": "group_norm",
    "rollout.n_samples_per_prompt": 4,
    "reward.remote_url": "reward.py",
}

GYM_LABEL = '{"reasoning_gym": "chain_sum", "settings": {}, "threshold": 1, "entry": {}}'


def args_of(**flags: Any) -> SimpleNamespace:
    return parse_openrlhf_arguments({**BASE, **flags})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"algo.kl.init_coef": 0}, [("policy", 1, 4), ("engines", 2, 1)]),
        ({}, [("policy", 1, 4), ("engines", 2, 1), ("reference", 1, 4)]),
        (
            {"train.colocate_actor_ref": True},
            [("policy", 1, 4), ("engines", 2, 1), ("reference", 1, 4, "policy")],
        ),
        (
            {"train.colocate_all": True, "vllm.num_engines": 2, "vllm.tensor_parallel_size": 2},
            [("policy", 1, 4), ("engines", 2, 2, "policy"), ("reference", 1, 4, "policy")],
        ),
        (
            {"train.colocate_all": True, "train.async_enable": True, "algo.kl.init_coef": 0},
            [("policy", 1, 4), ("engines", 2, 1)],  # they generate while the policy trains
        ),
        (
            {"algo.advantage.estimator": "gae", "critic.num_gpus_per_node": 3, "algo.kl.init_coef": 0},
            [("policy", 1, 4), ("engines", 2, 1), ("critic", 1, 3)],
        ),
    ],
)
def test_roles_ask_for_what_openrlhf_gives_them(flags: dict, expected: list[tuple]) -> None:
    flags = {"actor.model_name_or_path": "m", **flags}
    assert role_requests(args_of(**flags)) == [RoleRequest(*one) for one in expected]


def test_an_architecture_that_cannot_be_recorded_is_refused_without_loading_weights() -> None:
    args = args_of(**{"actor.model_name_or_path": "some/model"})
    checks.require_recordable(args, LlamaConfig(hidden_size=8192, num_hidden_layers=80))  # a 70B one, in no time
    with pytest.raises(ConfigError, match=r"actor.model_name_or_path: 'some/model' \(T5Config\)"):
        checks.require_recordable(args, T5Config())


def test_room_for_one_checkpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ckpt.max_num: 1 leaves no whole checkpoint"):
        checks.require_two_checkpoints(args_of(**{"ckpt.max_num": 1, "ckpt.save_steps": 5}))
    checks.require_two_checkpoints(args_of(**{"ckpt.max_num": 1}))  # nothing is saved on the way


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


def run_with(**meds: Any) -> RunConfig:
    return RunConfig(meds=MedsSettings(run_dir="runs/x", **meds), openrlhf={})


@pytest.mark.parametrize(
    "without",
    [{"enabled": False}, {"memory": MemorySettings(remember="right")}, {"penalty": PenaltySettings(alpha=0)}],
)
def test_groups_are_kept_only_for_their_penalties(without: dict[str, Any]) -> None:
    config = run_with(rollout=RolloutSettings(keep_all_wrong=True), **without)
    with pytest.raises(ConfigError, match="keeps groups for their penalties, but no wrong rollout gets one"):
        checks.require_filtering(config, args_of(**{"algo.dynamic_filtering_enable": True}))


def test_a_tokenizer_that_hides_its_bytes_is_refused() -> None:
    checks.require_readable_answers(args_of())
    with pytest.raises(ConfigError, match=r"data.disable_fast_tokenizer: True hides the bytes of tokens"):
        checks.require_readable_answers(args_of(**{"data.disable_fast_tokenizer": True}))


def test_groups_are_kept_only_where_some_are_left_out() -> None:
    config = run_with(rollout=RolloutSettings(keep_all_wrong=True))
    checks.require_filtering(config, args_of(**{"algo.dynamic_filtering_enable": True}))
    with pytest.raises(ConfigError, match=r"set algo\.dynamic_filtering_enable too"):
        checks.require_filtering(config, args_of())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"train.batch_size": 10}, r"train.batch_size: 10 is no whole number of prompts with 4 responses each"),
        ({"train.batch_size": 12}, r"train.batch_size: 12 leaves a rest of the "),
        ({"critic.model_name_or_path": "some/critic"}, r"'prompts' does not go with critic.model_name_or_path"),
    ],
)
def test_minibatches_that_cannot_be_made_of_prompts(flags: dict[str, Any], message: str) -> None:
    args = args_of(**{"train.batch_size": 16})
    for flag, value in flags.items():
        section, name = flag.split(".")
        setattr(getattr(args, section), name, value)
    checks.require_minibatches(run_with(), args)
    with pytest.raises(ConfigError, match=message):
        checks.require_minibatches(run_with(policy=PolicySettings(minibatches="prompts")), args)


COUNTS = {"memory": MemorySettings(preset="answers", remember="both")}


@pytest.mark.parametrize(
    ("meds", "flags", "message"),
    [
        ({"exploration": ExplorationSettings(pass_at_k=4)}, {}, "meds.exploration.pass_at_k: 4 is not below"),
        (
            {"exploration": ExplorationSettings(pass_at_k=2)},
            {"algo.advantage.estimator": "rloo"},
            "algo.advantage.estimator: 'rloo' has another baseline than meds.exploration.pass_at_k",
        ),
        (
            {"exploration": ExplorationSettings(answer_bonus=0.1), **COUNTS},
            {"algo.advantage.estimator": "gae"},
            "algo.advantage.estimator: 'gae' has a critic, which meds.exploration.answer_bonus does not know",
        ),
        (
            {"penalty": PenaltySettings(scope="batch")},
            {"algo.advantage.estimator": "flash_reinforce", "rollout.n_samples_per_prompt": 1},
            "meds.penalty.scope: 'batch' compares the responses to a prompt",
        ),
    ],
)
def test_methods_without_the_group_or_the_baseline_that_they_need(meds: dict, flags: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checks.require_exploration(run_with(**meds), args_of(**flags))
    checks.require_exploration(run_with(), args_of(**flags))


def test_methods_with_what_they_need() -> None:
    checks.require_exploration(run_with(exploration=ExplorationSettings(pass_at_k=3)), args_of())
    one = {"algo.advantage.estimator": "flash_reinforce", "rollout.n_samples_per_prompt": 1}
    checks.require_exploration(run_with(exploration=ExplorationSettings(answer_bonus=0.1), **COUNTS), args_of(**one))
    checks.require_exploration(run_with(enabled=False, penalty=PenaltySettings(scope="batch")), args_of(**one))


@pytest.mark.parametrize("estimator", ["rloo", "reinforce_baseline", "group_norm", "dr_grpo"])
def test_estimators_that_need_a_group_are_refused_for_one_rollout(estimator: str) -> None:
    with pytest.raises(ConfigError, match=f"{estimator} requires n_samples_per_prompt > 1"):
        args_of(**{"algo.advantage.estimator": estimator, "rollout.n_samples_per_prompt": 1})


def test_groups_of_one_rollout_cannot_be_filtered() -> None:
    one = {"algo.advantage.estimator": "flash_reinforce", "rollout.n_samples_per_prompt": 1}
    with pytest.raises(ConfigError, match="n_samples_per_prompt must be greater than 1 when using dynamic filtering"):
        args_of(**one, **{"algo.dynamic_filtering_enable": True})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (No such file or directory; looked in"),
        ("def reward_func(:\n", "is no Python that can be loaded (line 1: invalid syntax)"),
        ("def reward_fn(queries, prompts, labels): ...\n", "defines no reward_func, which OpenRLHF calls"),
        (
            "async def reward_func(queries, prompts, labels): ...\n",
            "defines reward_func as async, which OpenRLHF",
        ),
    ],
)
def test_a_reward_file_that_could_not_be_called(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "mine.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError) as raised:
        checks.require_reward_files(RunConfig(MedsSettings(run_dir="x"), {"reward.remote_url": str(file)}))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("mine.py", None, "cannot be read (No such file or directory; looked in"),
        ("mine.py", "import openrlhf\n", "defines no AgentExecutor, which OpenRLHF calls (docs/recipes/tools.md)"),
        ("mine.txt", "class AgentExecutor: ...\n", "is no Python file; name one that ends in .py"),
    ],
)
def test_an_agents_file_that_engines_could_not_load(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as raised:
        checks.require_reward_files(
            RunConfig(MedsSettings(run_dir="x"), {"train.agent_func_path": str(tmp_path / name)})
        )
    assert message in str(raised.value)


def test_an_agent_takes_no_second_reward() -> None:
    flags = {"train.agent_func_path": "agent.py"}
    checks.require_reward(RunConfig(MedsSettings(run_dir="x"), flags))
    with pytest.raises(ConfigError, match=r"meds\.reward: 'math' would never be used: train\.agent_func_path"):
        checks.require_reward(RunConfig(MedsSettings(run_dir="x", reward="math"), flags))
    with pytest.raises(ConfigError, match=r"reward\.remote_url: 'mine\.py' would never be used"):
        checks.require_reward(RunConfig(MedsSettings(run_dir="x"), {**flags, "reward.remote_url": "mine.py"}))


@pytest.mark.parametrize(
    "content", ["def reward_func(a, b, c): ...", "from other import score as reward_func", "reward_func = print"]
)
def test_a_reward_file_that_can_be_called(tmp_path: Path, content: str) -> None:
    (tmp_path / "mine.py").write_text(content)
    flags = {"reward.remote_url": str(tmp_path / "mine.py")}
    checks.require_reward_files(RunConfig(MedsSettings(run_dir="x"), flags))
    checks.require_reward_files(RunConfig(MedsSettings(run_dir="x"), {"reward.remote_url": "http://host:5000/score"}))


@pytest.mark.parametrize(("max_new_tokens", "max_len"), [(64, 1000), (None, 64)])
def test_a_penalized_range_longer_than_any_response_is_refused(max_new_tokens: int | None, max_len: int) -> None:
    args = SimpleNamespace(
        reward=SimpleNamespace(overlong_buffer_len=64.0),
        rollout=SimpleNamespace(max_new_tokens=max_new_tokens),
        data=SimpleNamespace(max_len=max_len),
    )
    checks.require_length_penalties(args)
    args.reward.overlong_buffer_len = 65.0
    with pytest.raises(ConfigError, match=r"reward\.overlong_buffer_len: 65\.0 is more than the 64 tokens"):
        checks.require_length_penalties(args)
    args.reward.overlong_buffer_len = None
    checks.require_length_penalties(args)


@pytest.mark.parametrize(
    ("reward", "label", "message"),
    [
        ("gym", "42", r"meds.reward: 'gym' does not go with the labels in data.label_key: '42' is not a problem"),
        ("gym", '{"reasoning_gym": "chain_sun", "settings": {}}', "'chain_sun' not registered"),
        ("math", GYM_LABEL, r"meds.reward: 'math' does not go with labels of reasoning-gym .*; set gym"),
    ],
)
def test_a_reward_that_cannot_read_the_labels_is_refused(reward: str, label: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checks.require_labels(RunConfig(MedsSettings(run_dir="x", reward=reward), {}), [{"answer": label}], "answer")


def test_a_built_in_reward_needs_labels_and_another_does_not() -> None:
    checks.require_labels(RunConfig(MedsSettings(run_dir="x"), {}), [{"prompt": "1+1"}], None)
    with pytest.raises(ConfigError, match=r"data.label_key: None names no column, and meds.reward: math compares"):
        checks.require_labels(RunConfig(MedsSettings(run_dir="x", reward="math"), {}), [{"prompt": "1+1"}], None)


@pytest.mark.parametrize(("reward", "label"), [("gym", GYM_LABEL), ("math", "42"), (None, GYM_LABEL), ("math", 42)])
def test_a_reward_that_reads_the_labels(reward: str | None, label: str | int) -> None:
    checks.require_labels(RunConfig(MedsSettings(run_dir="x", reward=reward), {}), [{"answer": label}], "answer")
