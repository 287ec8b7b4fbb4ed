"""Checks of model, data, memory and run folder before anything expensive starts."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config import ConfigError, RunConfig, load_config
from meds_openrlhf.memory.snapshot import MemoryFormat, read_format
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rewards import gym_problem

# Settings that may name local files, and the suffixes of those with data.
_FILE_SETTINGS = (
    *("actor.model_name_or_path", "critic.model_name_or_path", "reward.model_name_or_path"),
    *("data.prompt_dataset", "eval.dataset", "reward.remote_url", "train.agent_func_path"),
)
_DATA_SUFFIXES = frozenset({".json", ".jsonl", ".csv", ".parquet", ".arrow"})
_AT_LEAST_ONE = (
    *("actor.num_nodes", "actor.num_gpus_per_node", "vllm.tensor_parallel_size", "data.max_len"),
    *("rollout.batch_size", "rollout.micro_batch_size", "rollout.n_samples_per_prompt", "rollout.max_tokens_per_gpu"),
    *("train.batch_size", "train.micro_batch_size", "train.max_tokens_per_gpu"),
    *("ds.ring_attn_size", "ds.tensor_parallel_size"),
)


def require_local_paths(config: RunConfig) -> None:
    """Raise ConfigError for local paths that do not exist; hub names (``owner/name``) are left to their loaders."""
    require_local_model(config)
    _require_local(config, "data.prompt_dataset")
    if config.openrlhf.get("eval.dataset"):
        _require_local(config, "eval.dataset")
    require_reward_files(config)


def require_local_model(config: RunConfig) -> None:
    """Raise ConfigError if the policy is not set or its local path does not exist."""
    _require_local(config, "actor.model_name_or_path")


def _require_local(config: RunConfig, key: str) -> None:
    value = config.openrlhf.get(key)
    if not value:
        raise ConfigError(key, value, "is not set; every run needs it")
    for part in str(value).split(","):
        path = part.split("@")[0].strip()
        looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1 or Path(path).suffix in _DATA_SUFFIXES
        if looks_local and not Path(path).exists():
            made = "; `meds data prepare` makes it" if path.startswith("data/") else "; name a folder, file or hub name"
            raise ConfigError(key, value, f"does not exist (looked in {os.getcwd()}){made}")


def require_reward_files(config: RunConfig) -> None:
    """Raise ConfigError for code files that do not exist or that lack the name that OpenRLHF calls."""
    for key, name, kind in (
        ("reward.remote_url", "reward_func", ast.FunctionDef),
        ("train.agent_func_path", "AgentExecutor", ast.ClassDef),
    ):
        value = config.openrlhf.get(key)
        if not isinstance(value, str) or not (value.endswith(".py") or key == "train.agent_func_path"):
            continue  # a server that scores responses
        if not value.endswith(".py"):
            raise ConfigError(key, value, "is no Python file; name one that ends in .py (docs/recipes/tools.md)")
        try:
            tree = ast.parse(Path(value).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(key, value, f"cannot be read ({error.strerror}; looked in {os.getcwd()})") from error
        except (SyntaxError, ValueError) as error:
            line = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
            raise ConfigError(key, value, f"is no Python that can be loaded ({line}{error.args[0]})") from error
        if any(isinstance(node, ast.AsyncFunctionDef) and node.name == name for node in tree.body):
            raise ConfigError(
                key, value, f"defines {name} as async, which OpenRLHF does not await; make it a plain def"
            )
        if not _defines(tree, name, kind):
            page = "rewards.md" if name == "reward_func" else "recipes/tools.md"
            raise ConfigError(key, value, f"defines no {name}, which OpenRLHF calls (docs/{page})")


def _defines(tree: ast.Module, name: str, kind: Any) -> bool:
    """Return whether the module defines, assigns or imports ``name``."""
    for node in tree.body:
        names = {alias.asname or alias.name for alias in getattr(node, "names", []) if isinstance(alias, ast.alias)}
        targets = {target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)}
        if name in names | targets or (isinstance(node, kind) and node.name == name):
            return True
    return False


def require_reward(config: RunConfig) -> None:
    """Raise ConfigError for a run without a reward, or with a reward that an agent's own replaces."""
    sources = ("reward.remote_url", "reward.model_name_or_path", "train.agent_func_path")
    if config.openrlhf.get("train.agent_func_path"):
        others = {"meds.reward": config.meds.reward, **{key: config.openrlhf.get(key) for key in sources[:2]}}
        for key, value in others.items():
            if value:
                hint = "would never be used: train.agent_func_path rewards its own episodes; set one of the two to null"
                raise ConfigError(key, value, hint)
    if config.meds.reward is None and not any(config.openrlhf.get(key) for key in sources):
        raise ConfigError("meds.reward", None, f"leaves the run without a reward; set math, or {_either(sources)}")


def require_labels(config: RunConfig, data: Any, column: str | None) -> None:
    """Raise ConfigError if a built-in reward has no labels, or if a reward and labels of reasoning-gym do not match."""
    reward = config.meds.reward
    if reward is None:
        return
    if column is None:
        raise ConfigError("data.label_key", None, f"names no column, and meds.reward: {reward} compares with labels")
    label = str(data[0][column])
    if reward == "gym":
        try:
            gym_problem.require_label(label)
        except ValueError as error:
            raise ConfigError(
                "meds.reward", reward, f"does not go with the labels in data.label_key: {error}"
            ) from error
    elif gym_problem.is_label(label):
        raise ConfigError("meds.reward", reward, "does not go with labels of reasoning-gym (data.label_key); set gym")


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def require_positive(flags: Mapping[str, Any]) -> None:
    """Raise ConfigError for counts and sizes below 1, since OpenRLHF divides by them without a check."""
    for key in _AT_LEAST_ONE:
        require_at_least_one(key, flags.get(key))
    engines = flags.get("vllm.num_engines")
    if engines != 0:  # `require_engines` explains why 0 is invalid
        require_at_least_one("vllm.num_engines", engines)


def require_at_least_one(key: str, value: Any) -> None:
    """Raise ConfigError for a number below 1; the parser checks values that are not numbers."""
    if isinstance(value, int | float) and value < 1:
        raise ConfigError(key, value, "is below 1; it has to be at least 1")


def model_config(name: str) -> Any:
    """Load the configuration of the policy. Raises ConfigError if it cannot be loaded."""
    from transformers import AutoConfig  # late: it takes seconds

    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError("actor.model_name_or_path", name, f"holds no model that can be loaded: {reason}") from error


def require_filtering(config: RunConfig, args: SimpleNamespace) -> None:
    """Raise ConfigError if keep_all_wrong is set without dynamic filtering or without a penalty for wrong rollouts."""
    meds, hint = config.meds, None
    if not meds.rollout.keep_all_wrong:
        return
    if not args.algo.dynamic_filtering_enable:
        hint = "says which groups dynamic filtering keeps; set algo.dynamic_filtering_enable too"
    elif not meds.enabled or meds.memory.remember == "right" or not meds.penalty.alpha or not meds.penalty.beta:
        hint = "keeps groups for their penalties, but no wrong rollout gets one (meds.enabled, remember, alpha, beta)"
    if hint is not None:
        raise ConfigError("meds.rollout.keep_all_wrong", True, hint)


def require_minibatches(config: RunConfig, args: SimpleNamespace) -> None:
    """Raise ConfigError if mini-batches cannot consist of whole prompts."""
    if config.meds.policy.minibatches != "prompts":
        return
    name, samples = "meds.policy.minibatches", args.rollout.n_samples_per_prompt
    if args.train.batch_size % samples:
        nearest = max(args.train.batch_size // samples, 1) * samples
        hint = (
            f"is no whole number of prompts with {samples} responses each; take {nearest}, or set {name} to responses"
        )
        raise ConfigError("train.batch_size", args.train.batch_size, hint)
    responses = args.rollout.batch_size * samples
    if responses % args.train.batch_size:
        hint = f"leaves a rest of the {responses} responses of a step; take a divisor, or set {name} to responses"
        raise ConfigError("train.batch_size", args.train.batch_size, hint)
    if args.critic.model_name_or_path:
        hint = "does not go with critic.model_name_or_path: the critic's mini-batches would be others; take responses"
        raise ConfigError(name, "prompts", hint)


def require_exploration(config: RunConfig, args: SimpleNamespace) -> None:
    """Raise ConfigError for a method that has no responses to compare, or an estimator that it does not go with."""
    exploration, responses = config.meds.exploration, args.rollout.n_samples_per_prompt
    estimator, k = args.algo.advantage.estimator, exploration.pass_at_k
    if k is not None and estimator != "group_norm":
        hint = "has another baseline than meds.exploration.pass_at_k, which takes the place of group_norm's; set that"
        raise ConfigError("algo.advantage.estimator", estimator, hint)
    if k is not None and k >= responses:
        hint = f"is not below rollout.n_samples_per_prompt, {responses}: subsets of a group would not differ; lower it"
        raise ConfigError("meds.exploration.pass_at_k", k, hint)
    if exploration.answer_bonus and estimator == "gae":
        hint = "has a critic, which meds.exploration.answer_bonus does not know; use an estimator without one"
        raise ConfigError("algo.advantage.estimator", estimator, hint)
    if responses == 1 and config.meds.enabled and config.meds.penalty.scope == "batch":
        hint = "compares the responses to a prompt, of which rollout.n_samples_per_prompt asks for one"
        raise ConfigError("meds.penalty.scope", "batch", hint)


def require_engines(flags: Mapping[str, Any]) -> None:
    """Raise ConfigError if there are no vLLM engines; OpenRLHF needs them and would fail late."""
    engines = flags.get("vllm.num_engines")
    if not engines:
        raise ConfigError("vllm.num_engines", engines, "starts no engine, and nothing else generates")


def require_length_penalties(args: SimpleNamespace) -> None:
    """Raise ConfigError for a penalized range of lengths longer than any response; OpenRLHF asserts it in the step."""
    buffer, longest = args.reward.overlong_buffer_len, args.rollout.max_new_tokens or args.data.max_len
    if buffer is not None and buffer > longest:
        hint = f"is more than the {longest} tokens of the longest response, whose last tokens it penalizes; lower it"
        raise ConfigError("reward.overlong_buffer_len", buffer, hint)


def require_two_checkpoints(args: SimpleNamespace) -> None:
    """Require room for two checkpoints, because OpenRLHF removes the old one before it saves the new one."""
    if args.ckpt.save_steps > 0 and args.ckpt.max_num < 2:
        raise ConfigError(
            "ckpt.max_num", args.ckpt.max_num, "leaves no whole checkpoint while the next one is saved; keep at least 2"
        )


def with_absolute_paths(flags: dict[str, Any]) -> dict[str, Any]:
    """Make paths of local files absolute, since workers of a cluster have other working directories."""
    changed = dict(flags)
    for key in _FILE_SETTINGS:
        if isinstance(flags.get(key), str):
            changed[key] = ",".join(_absolute(part.strip()) for part in flags[key].split(","))
    return changed


def _absolute(name: str) -> str:
    """Make the path of a local file or folder absolute, also in ``FOLDER@data_dir``; other names stay."""
    folder, at, data_dir = name.partition("@")
    if Path(name).exists():
        return str(Path(name).absolute())
    return f"{Path(folder).absolute()}{at}{data_dir}" if at and Path(folder).exists() else name


_NOT_WITH_A_MEMORY = "does not go with a memory ({}); set it or meds.enabled to false"


def require_readable_answers(args: SimpleNamespace) -> None:
    """Raise ConfigError for a tokenizer in whose tokens answers cannot be located."""
    if args.data.disable_fast_tokenizer:
        hint = "hides the bytes of tokens, in which final answers are found; leave it out"
        raise ConfigError("data.disable_fast_tokenizer", True, hint)


def require_recordable(args: SimpleNamespace, policy: Any) -> None:
    """Raise ConfigError if layer logits of this policy cannot be recorded (docs/recorder.md explains why)."""
    if args.ds.deepcompile:
        raise ConfigError("ds.deepcompile", True, _NOT_WITH_A_MEMORY.format("compiled code runs no hooks"))
    from meds_openrlhf.features.decoder import find_decoder_parts

    try:
        find_decoder_parts(without_weights(policy))
    except ValueError as error:
        name = type(policy).__name__
        raise ConfigError("actor.model_name_or_path", args.actor.model_name_or_path, f"({name}) {error}") from error


def without_weights(policy: Any) -> Any:
    """Create the policy's modules on the meta device, without allocating weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    auto = AutoModelForImageTextToText if hasattr(policy, "vision_config") else AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(policy, trust_remote_code=True)


def require_memory_of(config: RunConfig, paths: RunPaths, wanted: MemoryFormat) -> MemoryFormat:
    """Return the format of the run's memory, with the step offset of the existing memory if there is one.

    Raises ConfigError if the existing memory, or the memory to branch from, has another model or feature variant.
    """
    from meds_openrlhf.memory.branch import read_branch_point

    existing, branch_from = read_format(paths.memory), config.meds.memory.branch_from
    if existing is not None:
        existing.require_match(wanted, paths.memory.root)
        return replace(wanted, step_offset=existing.step_offset)
    if branch_from is not None:
        branched = read_branch_point(Path(branch_from)).format
        branched.require_match(wanted, Path(branch_from), "meds.memory.branch_from")
    return wanted


ALL_LINEAR = "all-linear"


def require_lora(args: SimpleNamespace) -> None:
    """Raise ConfigError for LoRA settings that are out of range or that do not go with each other."""
    lora = args.ds.lora
    if lora.rank < 0:
        raise ConfigError("ds.lora.rank", lora.rank, "is negative; 0 trains all weights, without LoRA")
    if not lora.rank:
        return
    if lora.alpha < 1:
        raise ConfigError("ds.lora.alpha", lora.alpha, "scales the adapters, by alpha / rank, and has to be at least 1")
    if not 0 <= lora.dropout < 1:
        raise ConfigError("ds.lora.dropout", lora.dropout, "is no share from 0 up to, and without, 1")
    for field, value, off, reason in (
        ("ds.load_in_4bit", args.ds.load_in_4bit, False, "adapters are not merged into quantised weights"),
        ("ds.tensor_parallel_size", args.ds.tensor_parallel_size, 1, "weights split over ranks are not merged"),
        ("train.enable_ema", args.train.enable_ema, False, "the averaged model has no adapters"),
    ):
        if value != off:
            raise ConfigError(field, value, f"does not go with ds.lora.rank {lora.rank}: {reason}; leave it out")


def require_same_adapters(config: RunConfig, paths: RunPaths) -> None:
    """Raise ConfigError if a resumed run has other adapters than the run in its folder."""
    saved = load_config(paths.config).openrlhf
    for key, default in (("ds.lora.rank", 0), ("ds.lora.alpha", 16), ("ds.lora.target_modules", ALL_LINEAR)):
        now, before = config.openrlhf.get(key, default), saved.get(key, default)
        if before != now:
            hint = f"does not fit the checkpoint, which was saved with {before!r}; resume with that"
            raise ConfigError(key, now, hint)


def require_lora_targets(args: SimpleNamespace, policy: Any) -> None:
    """Raise ConfigError for target modules that the policy lacks, or whose adapters cannot be merged exactly."""
    targets = args.ds.lora.target_modules
    if not args.ds.lora.rank:
        return
    from transformers.pytorch_utils import Conv1D

    model = without_weights(policy)
    modules = dict(model.named_modules())
    linear = {name.rpartition(".")[2]: None for name, module in modules.items() if _is_linear(module)}  # in order
    known = f"this {model.config.model_type} model has {', '.join(linear)}; leave it out for all but the unembedding"
    if not targets:
        raise _refusal(targets, f"names none; {known}")
    if targets == ALL_LINEAR:
        if any(isinstance(module, Conv1D) for module in modules.values()):
            raise _refusal(targets, f"has Conv1D layers in this {model.config.model_type} model, which are not merged")
        return
    for target in targets:
        found = [module for name, module in modules.items() if f".{name}".endswith(f".{target}")]
        if not found:
            raise _refusal(target, f"is no module; {known}")
        if not all(_is_linear(module) for module in found):
            raise _refusal(target, f"is no linear layer, and only those can be merged; {known}")
        if any(module.weight is model.get_input_embeddings().weight for module in found):
            raise _refusal(target, "has the embeddings' weight, which engines cannot have once with and once without")


def _refusal(value: object, hint: str) -> ConfigError:
    return ConfigError("ds.lora.target_modules", value, hint)


def _is_linear(module: Any) -> bool:
    import torch

    return isinstance(module, torch.nn.Linear)
