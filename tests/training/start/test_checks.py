"""What is refused before anything starts, on small files."""

import json
from collections.abc import Callable
from dataclasses import replace
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
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.placement.inventory import imagined_cluster
from meds_openrlhf.placement.plan import RoleRequest
from meds_openrlhf.training.host.openrlhf import parse_openrlhf_arguments, role_requests
from meds_openrlhf.training.start import checks
from meds_openrlhf.training.start.prepare import plan_run, prepare

BASE = {
    "vllm.num_engines": 2,
    "actor.num_gpus_per_node": 4,
    "ref.num_gpus_per_node": 4,
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
    with pytest.raises(ConfigError, match=r"actor.model_name_or_path=some/model: T5Config "):
        checks.require_recordable(args, T5Config())


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


COUNTS = {"memory": MemorySettings(preset="answers", remember="both")}
CRITIC = {"algo.advantage.estimator": "gae", "critic.model_name_or_path": "some/critic"}
PROMPTS = {"policy": PolicySettings(minibatches="prompts")}
ALL_WRONG = {"rollout": RolloutSettings(keep_all_wrong=True)}
ONE = {"algo.advantage.estimator": "flash_reinforce", "rollout.n_samples_per_prompt": 1}
LORA = {"ds.lora.rank": 8}
FILTERED = {"algo.dynamic_filtering_enable": True}
AGENT = {"reward.remote_url": None, "train.agent_func_path": "agent.py"}

# For each check what it refuses: settings under meds., OpenRLHF's flags, and the beginning of the message.
REFUSED: list[tuple[Callable[..., None], dict[str, Any], dict[str, Any], str]] = [
    (checks.require_positive, {}, {"vllm.num_engines": 0}, "vllm.num_engines=0: must be at least 1."),
    (checks.require_positive, {}, {"vllm.num_engines": None}, "vllm.num_engines: must be at least 1."),
    (checks.require_positive, {}, {"train.micro_batch_size": 0}, "train.micro_batch_size=0: must be at least 1."),
    (checks.require_reward, {}, {"reward.remote_url": None}, "meds.reward: the run has no reward. Set meds.reward="),
    (checks.require_reward, {"reward": "math"}, {}, "meds.reward=math: would not be used, because reward.remote_url"),
    (checks.require_reward, {"reward": "math"}, AGENT, "meds.reward=math: would not be used, because train.agent_func"),
    (
        checks.require_reward,
        {},
        {**AGENT, "reward.remote_url": "mine.py"},
        "would not be used, because train.agent_func_path is set. Set one of them to null.",
    ),
    (checks.require_counts, {}, {"actor.num_nodes": 0}, "actor.num_nodes=0: must be at least 1."),
    (
        checks.require_two_checkpoints,
        {},
        {"ckpt.max_num": 1, "ckpt.save_steps": 5},
        "ckpt.max_num=1: leaves no whole checkpoint while the next one is saved. Set at least 2.",
    ),
    (checks.require_lora, {}, {"ds.lora.rank": -1}, "ds.lora.rank=-1: must be at least 1, or 0 to train all weights."),
    (checks.require_lora, {}, {**LORA, "ds.lora.alpha": 0}, "ds.lora.alpha=0: must be at least 1."),
    (checks.require_lora, {}, {**LORA, "ds.lora.dropout": 1}, "ds.lora.dropout=1.0: must be at least 0 and below 1."),
    (
        checks.require_lora,
        {},
        {**LORA, "ds.load_in_4bit": True},
        "ds.load_in_4bit=True: does not work with ds.lora.rank=8: adapters cannot be merged into quantized weights.",
    ),
    (checks.require_lora, {}, {**LORA, "ds.tensor_parallel_size": 2}, "ds.tensor_parallel_size=2: does not work with"),
    (checks.require_lora, {}, {**LORA, "train.enable_ema": True}, "train.enable_ema=True: does not work with ds.lora."),
    (
        checks.require_length_penalties,
        {},
        {"rollout.max_new_tokens": 64, "reward.overlong_buffer_len": 65.0},
        "reward.overlong_buffer_len=65.0: is more than the 64 tokens of the longest response. Lower it.",
    ),
    (
        checks.require_filtering,
        ALL_WRONG,
        {},
        "meds.rollout.keep_all_wrong=True: changes which groups dynamic filtering keeps, for their penalties. Set ",
    ),
    *(
        (
            checks.require_filtering,
            {**ALL_WRONG, **without},
            FILTERED,
            "meds.rollout.keep_all_wrong=True: changes which",
        )
        for without in (
            {"enabled": False},
            {"memory": MemorySettings(remember="right")},
            {"penalty": PenaltySettings(alpha=0)},
        )
    ),
    (
        checks.require_minibatches,
        PROMPTS,
        {"train.batch_size": 10},
        "train.batch_size=10: must be a multiple of the 4 responses to a prompt and divide the 4096 of a step.",
    ),
    (
        checks.require_minibatches,
        PROMPTS,
        {"train.batch_size": 12},
        "train.batch_size=12: must be a multiple of the 4 responses",
    ),
    (
        checks.require_minibatches,
        PROMPTS,
        CRITIC,
        "meds.policy.minibatches=prompts: a critic would train on other mini-batches. Set responses.",
    ),
    (
        checks.require_exploration,
        {"exploration": ExplorationSettings(pass_at_k=4)},
        {},
        "meds.exploration.pass_at_k=4: must be below rollout.n_samples_per_prompt, 4.",
    ),
    (
        checks.require_exploration,
        {"exploration": ExplorationSettings(pass_at_k=2)},
        {"algo.advantage.estimator": "rloo"},
        "algo.advantage.estimator=rloo: meds.exploration.pass_at_k takes the place of group_norm's advantages.",
    ),
    (
        checks.require_exploration,
        {"exploration": ExplorationSettings(answer_bonus=0.1), **COUNTS},
        CRITIC,
        "algo.advantage.estimator=gae: meds.exploration.answer_bonus does not know a critic.",
    ),
    (
        checks.require_exploration,
        {"penalty": PenaltySettings(scope="batch")},
        ONE,
        "meds.penalty.scope=batch: compares the responses to a prompt. Raise rollout.n_samples_per_prompt, which is 1.",
    ),
    (
        checks.require_readable_answers,
        {},
        {"data.disable_fast_tokenizer": True},
        "data.disable_fast_tokenizer=True: only a fast tokenizer shows the bytes of tokens",
    ),
]


@pytest.mark.parametrize(("_check", "meds", "flags", "message"), REFUSED)
def test_what_train_and_plan_refuse(
    _check: object, meds: dict[str, Any], flags: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Both ask all checks, so that a plan that is shown is one that could be trained."""
    policy = {"actor.model_name_or_path": str(tmp_path), "data.prompt_dataset": str(tmp_path)}
    config = RunConfig(MedsSettings(run_dir=str(tmp_path / "run"), **meds), {**BASE, **policy, **flags})
    for ask in (
        lambda: plan_run(config, imagined_cluster("1x8", 140.0)),
        lambda: prepare(replace(config, openrlhf=without_code(config)), RunPaths(tmp_path / "run"), False, True),
    ):
        with pytest.raises(ConfigError) as refused:
            ask()
        assert message in str(refused.value)


def without_code(config: RunConfig) -> dict[str, Any]:
    """The flags, with files of code that are there."""
    files = {key: str(CODE / name) for key, name in CODE_FILES.items() if config.openrlhf.get(key)}
    return {**config.openrlhf, **files}


def test_every_check_refuses_something() -> None:
    assert {check for check, *_ in REFUSED} == {*checks.OF_FLAGS, *checks.OF_ARGUMENTS}


@pytest.mark.parametrize(
    ("meds", "flags"),
    [
        ({}, {}),
        ({}, {"ckpt.max_num": 1}),  # nothing is saved on the way
        ({}, {"ds.load_in_4bit": True, "train.enable_ema": True}),
        ({}, {**LORA, "ds.lora.dropout": 0.5}),
        ({}, AGENT),
        ({}, {"reward.overlong_buffer_len": 64.0, "rollout.max_new_tokens": 64}),
        (ALL_WRONG, FILTERED),
        (PROMPTS, {"train.batch_size": 16}),
        ({"exploration": ExplorationSettings(pass_at_k=3)}, {}),
        ({"exploration": ExplorationSettings(answer_bonus=0.1), **COUNTS}, ONE),
        ({"enabled": False, "penalty": PenaltySettings(scope="batch")}, ONE),
    ],
)
def test_what_goes_together(meds: dict[str, Any], flags: dict[str, Any]) -> None:
    config = RunConfig(MedsSettings(run_dir="runs/x", **meds), {**BASE, **flags})
    for check in checks.OF_FLAGS:
        check(config, config.openrlhf)
    args = args_of(**flags)
    for ask in checks.OF_ARGUMENTS:
        ask(config, args)


@pytest.mark.parametrize("estimator", ["rloo", "reinforce_baseline", "group_norm", "dr_grpo"])
def test_estimators_that_need_a_group_are_refused_for_one_rollout(estimator: str) -> None:
    with pytest.raises(ConfigError, match=f"{estimator} requires n_samples_per_prompt > 1"):
        args_of(**{"algo.advantage.estimator": estimator, "rollout.n_samples_per_prompt": 1})


def test_groups_of_one_rollout_cannot_be_filtered() -> None:
    one = {"algo.advantage.estimator": "flash_reinforce", "rollout.n_samples_per_prompt": 1}
    with pytest.raises(ConfigError, match="n_samples_per_prompt must be greater than 1 when using dynamic filtering"):
        args_of(**one, **{"algo.dynamic_filtering_enable": True})


URL, AGENT_FILE = "reward.remote_url", "train.agent_func_path"


@pytest.mark.parametrize(
    ("key", "content", "message"),
    [
        (URL, None, "cannot be read (No such file or directory; looked in"),
        (URL, "def reward_func(:\n", "is not valid Python (line 1: invalid syntax)."),
        (
            URL,
            "def reward_fn(queries, prompts, labels): ...\n",
            "must define reward_func, a function that is not async",
        ),
        (URL, "async def reward_func(queries, prompts, labels): ...\n", "must define reward_func, a function that is"),
        (AGENT_FILE, None, "cannot be read (No such file or directory; looked in"),
        (
            AGENT_FILE,
            "import openrlhf\n",
            "must define AgentExecutor, a class, which OpenRLHF calls. See docs/recipes/",
        ),
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
        ("math", GYM_LABEL, r"meds.reward=math: cannot read the labels of reasoning-gym in data.label_key. Set gym."),
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
