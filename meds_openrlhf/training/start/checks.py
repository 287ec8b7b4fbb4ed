"""Every reason to refuse a run before anything starts, one a function. A check looks and never writes.

Those in `OF_FLAGS` and `OF_ARGUMENTS` need no file: `meds train`, `meds plan` and the trainings of `meds doctor` ask
all of them. The others are about models, data and an existing run; `start.prepare` asks them where it has these. All
raise ConfigError.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config import ConfigError, RunConfig, load_config
from meds_openrlhf.memory.branch import read_branch_point
from meds_openrlhf.memory.snapshot import MemoryFormat, read_format
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.placement.plan import SECTIONS
from meds_openrlhf.rewards import gym_problem
from meds_openrlhf.training.host.openrlhf import batching_of, role_requests

# Settings that may name local files, and the suffixes of those with data.
FILE_SETTINGS = (
    *("actor.model_name_or_path", "critic.model_name_or_path", "reward.model_name_or_path"),
    *("data.prompt_dataset", "eval.dataset", "reward.remote_url", "train.agent_func_path"),
)
DATA_SUFFIXES = frozenset({".json", ".jsonl", ".csv", ".parquet", ".arrow"})
AT_LEAST_ONE = (
    *("actor.num_nodes", "actor.num_gpus_per_node", "vllm.num_engines", "vllm.tensor_parallel_size", "data.max_len"),
    *("rollout.batch_size", "rollout.micro_batch_size", "rollout.n_samples_per_prompt", "rollout.max_tokens_per_gpu"),
    *("train.batch_size", "train.micro_batch_size", "train.max_tokens_per_gpu"),
    *("ds.ring_attn_size", "ds.tensor_parallel_size"),
)
ALL_LINEAR = "all-linear"

# ── flags, before OpenRLHF parses them ──


def require_positive(_config: RunConfig, flags: Mapping[str, Any]) -> None:
    """Counts and sizes are at least 1, since OpenRLHF divides by them without a check, and engines are needed."""
    for key in AT_LEAST_ONE:
        value = flags.get(key)  # the parser checks values that are not numbers
        if isinstance(value, int | float) and value < 1:
            raise ConfigError(key, value, "must be at least 1.")
    if flags.get("vllm.num_engines") is None:
        raise ConfigError("vllm.num_engines", None, "must be at least 1.")


def require_reward(config: RunConfig, flags: Mapping[str, Any]) -> None:
    """A run has a reward, and none that another replaces."""
    names = ("reward.remote_url", "reward.model_name_or_path", "train.agent_func_path")
    given = {"meds.reward": config.meds.reward, **{name: flags.get(name) for name in names}}
    if config.meds.reward:  # is passed on as reward.remote_url
        given["reward.remote_url"] = config.openrlhf.get("reward.remote_url")
    replaced_by = {name: "train.agent_func_path" for name in ("meds.reward", *names[:2])}
    for name, other in (*replaced_by.items(), ("meds.reward", "reward.remote_url")):
        if given[name] and given[other]:
            raise ConfigError(name, given[name], f"would not be used, because {other} is set. Set one of them to null.")
    if not any(given.values()):
        raise ConfigError("meds.reward", None, f"the run has no reward. Set meds.reward=math, or {' or '.join(names)}.")


# ── OpenRLHF's arguments; counts of GPUs may be provisional ──


def require_counts(_config: RunConfig, args: SimpleNamespace) -> None:
    """Every role of the run has GPUs; the counts of roles that it does not have may be 0."""
    for request in role_requests(args):
        for count, value in (("num_nodes", request.blocks), ("num_gpus_per_node", request.block_gpus)):
            if request.role in SECTIONS and value < 1:
                raise ConfigError(f"{SECTIONS[request.role]}.{count}", value, "must be at least 1.")


def require_two_checkpoints(_config: RunConfig, args: SimpleNamespace) -> None:
    """There is room for two checkpoints, because OpenRLHF removes the old one before it saves the new one."""
    if args.ckpt.save_steps > 0 and args.ckpt.max_num < 2:
        hint = "leaves no whole checkpoint while the next one is saved. Set at least 2."
        raise ConfigError("ckpt.max_num", args.ckpt.max_num, hint)


def require_length_penalties(_config: RunConfig, args: SimpleNamespace) -> None:
    """The penalized range of lengths is part of a response; OpenRLHF asserts it in the first step."""
    buffer, longest = args.reward.overlong_buffer_len, args.rollout.max_new_tokens or args.data.max_len
    if buffer is not None and buffer > longest:
        hint = f"is more than the {longest} tokens of the longest response. Lower it."
        raise ConfigError("reward.overlong_buffer_len", buffer, hint)


def require_readable_answers(_config: RunConfig, args: SimpleNamespace) -> None:
    """Answers can be located in the tokenizer's tokens."""
    if args.data.disable_fast_tokenizer:
        hint = "only a fast tokenizer shows the bytes of tokens, in which answers are found. Leave this out."
        raise ConfigError("data.disable_fast_tokenizer", True, hint)


def require_filtering(config: RunConfig, args: SimpleNamespace) -> None:
    """``keep_all_wrong`` changes what dynamic filtering keeps, for the sake of penalties."""
    meds = config.meds
    if not meds.rollout.keep_all_wrong:
        return
    penalized = meds.enabled and meds.memory.remember != "right" and meds.penalty.alpha and meds.penalty.beta
    if not args.algo.dynamic_filtering_enable or not penalized:
        hint = "changes which groups dynamic filtering keeps, for their penalties"
        missing = (
            "Set algo.dynamic_filtering_enable." if penalized else "No wrong rollout has a penalty here: set false."
        )
        raise ConfigError("meds.rollout.keep_all_wrong", True, f"{hint}. {missing}")


def require_minibatches(config: RunConfig, args: SimpleNamespace) -> None:
    """The sizes of batches allow mini-batches of whole prompts, if meds.policy.minibatches asks for them."""
    if config.meds.policy.minibatches != "prompts":
        return
    batching_of(args).require_whole_prompts()
    if args.critic.model_name_or_path:
        hint = "a critic would train on other mini-batches. Set responses."
        raise ConfigError("meds.policy.minibatches", "prompts", hint)


def require_exploration(config: RunConfig, args: SimpleNamespace) -> None:
    """Methods that compare responses have some to compare, and an estimator that they go with."""
    exploration, responses = config.meds.exploration, args.rollout.n_samples_per_prompt
    estimator, k = args.algo.advantage.estimator, exploration.pass_at_k
    if k is not None and estimator != "group_norm":
        hint = "meds.exploration.pass_at_k takes the place of group_norm's advantages. Set group_norm."
        raise ConfigError("algo.advantage.estimator", estimator, hint)
    if k is not None and k >= responses:
        raise ConfigError("meds.exploration.pass_at_k", k, f"must be below rollout.n_samples_per_prompt, {responses}.")
    if exploration.answer_bonus and estimator == "gae":
        hint = "meds.exploration.answer_bonus does not know a critic. Use an estimator without one."
        raise ConfigError("algo.advantage.estimator", estimator, hint)
    if responses == 1 and config.meds.enabled and config.meds.penalty.scope == "batch":
        hint = "compares the responses to a prompt. Raise rollout.n_samples_per_prompt, which is 1."
        raise ConfigError("meds.penalty.scope", "batch", hint)


def require_lora(_config: RunConfig, args: SimpleNamespace) -> None:
    """LoRA's adapters can be merged for the engines."""
    lora = args.ds.lora
    if not lora.rank:
        return
    for name, fits, rule in (
        ("rank", lora.rank > 0, "must be at least 1, or 0 to train all weights."),
        ("alpha", lora.alpha >= 1, "must be at least 1. Adapters are scaled by alpha / rank."),
        ("dropout", 0 <= lora.dropout < 1, "must be at least 0 and below 1."),
    ):
        if not fits:
            raise ConfigError(f"ds.lora.{name}", getattr(lora, name), rule)
    for field, value, off, reason in (
        ("ds.load_in_4bit", args.ds.load_in_4bit, False, "adapters cannot be merged into quantized weights"),
        ("ds.tensor_parallel_size", args.ds.tensor_parallel_size, 1, "adapters cannot be merged into split weights"),
        ("train.enable_ema", args.train.enable_ema, False, "the averaged model has no adapters"),
    ):
        if value != off:
            raise ConfigError(field, value, f"does not work with ds.lora.rank={lora.rank}: {reason}. Leave it out.")


OF_FLAGS: tuple[Callable[[RunConfig, Mapping[str, Any]], None], ...] = (require_positive, require_reward)
OF_ARGUMENTS: tuple[Callable[[RunConfig, SimpleNamespace], None], ...] = (
    require_counts,
    require_two_checkpoints,
    require_lora,
    require_length_penalties,
    require_filtering,
    require_minibatches,
    require_exploration,
    require_readable_answers,
)


# ── files ──


def require_local_paths(config: RunConfig, keys: tuple[str, ...]) -> None:
    """The local files and folders that flags name exist; hub names (``owner/name``) are left to their loaders."""
    for key in keys:
        value = config.openrlhf.get(key)
        if not value:
            raise ConfigError(key, None, "is not set, and every run needs it.")
        for path, _ in _named(value):
            looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1 or Path(path).suffix in DATA_SUFFIXES
            if looks_local and not Path(path).exists():
                advice = "Make it with `meds data prepare`" if path.startswith("data/") else "Name a path or a hub name"
                raise ConfigError(key, value, f"does not exist (looked in {os.getcwd()}). {advice}.")


def with_absolute_paths(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Make paths of local files absolute, since workers of a cluster have other working directories."""
    changed = dict(flags)
    for key in FILE_SETTINGS:
        if isinstance(flags.get(key), str):
            parts = _named(flags[key])
            changed[key] = ",".join(
                (str(Path(path).absolute()) if Path(path).exists() else path) + at for path, at in parts
            )
    return changed


def _named(value: object) -> Iterator[tuple[str, str]]:
    """Yield the names in a flag, split as OpenRLHF splits them: ``a,mix@sub`` has ("a", "") and ("mix", "@sub")."""
    for part in str(value).split(","):
        path, at, data_dir = part.strip().partition("@")
        yield (path, at + data_dir) if not Path(part.strip()).exists() else (part.strip(), "")


def require_code_files(config: RunConfig) -> None:
    """The user's code files are Python and define the name that OpenRLHF calls."""
    for key, name, kind, page in (
        ("reward.remote_url", "reward_func", ast.FunctionDef, "rewards.md"),
        ("train.agent_func_path", "AgentExecutor", ast.ClassDef, "recipes/tools.md"),
    ):
        value = config.openrlhf.get(key)
        if not isinstance(value, str) or (key == "reward.remote_url" and not value.endswith(".py")):
            continue  # a server that scores responses
        try:
            tree = ast.parse(Path(value).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(key, value, f"cannot be read ({error.strerror}; looked in {os.getcwd()}).") from error
        except (SyntaxError, ValueError) as error:
            line = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
            raise ConfigError(key, value, f"is not valid Python ({line}{error.args[0]}).") from error
        if not any(_defines(node, name, kind) for node in tree.body):
            what = "a class" if kind is ast.ClassDef else "a function that is not async"
            raise ConfigError(key, value, f"must define {name}, {what}, which OpenRLHF calls. See docs/{page}.")


def _defines(node: ast.stmt, name: str, kind: type[ast.stmt]) -> bool:
    """Return whether a statement defines, assigns or imports ``name``."""
    imported = {alias.asname or alias.name for alias in getattr(node, "names", []) if isinstance(alias, ast.alias)}
    assigned = {target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)}
    return name in imported | assigned or (isinstance(node, kind) and getattr(node, "name", None) == name)


def require_labels(config: RunConfig, data: Any, column: str | None) -> None:
    """The labels of a built-in reward are there, and are those that it can read."""
    reward = config.meds.reward
    if reward is None:
        return
    if column is None:
        raise ConfigError("data.label_key", None, f"names no column, and meds.reward={reward} compares with labels.")
    label = str(data[0][column])
    if reward == "gym":
        try:
            gym_problem.require_label(label)
        except ValueError as error:
            hint = f"cannot read the labels in data.label_key: {error}"
            raise ConfigError("meds.reward", reward, hint) from error
    elif gym_problem.is_label(label):
        raise ConfigError("meds.reward", reward, "cannot read the labels of reasoning-gym in data.label_key. Set gym.")


# ── the policy ──


def model_config(name: str) -> Any:
    """Load the configuration of the policy."""
    from transformers import AutoConfig  # late: it takes seconds

    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError("actor.model_name_or_path", name, f"holds no model that can be loaded: {reason}") from error


def require_recordable(args: SimpleNamespace, policy: Any) -> None:
    """Layer logits of this policy can be recorded; docs/recorder.md explains why others cannot."""
    if args.ds.deepcompile:
        raise ConfigError(
            "ds.deepcompile", True, "compiled code runs no hooks, and the memory needs them. Leave it out."
        )
    from meds_openrlhf.features.decoder import find_decoder_parts

    try:
        find_decoder_parts(_without_weights(policy))
    except ValueError as error:
        name = type(policy).__name__
        raise ConfigError("actor.model_name_or_path", args.actor.model_name_or_path, f"{name} {error}") from error


def require_lora_targets(args: SimpleNamespace, policy: Any) -> None:
    """The modules to adapt exist, and their adapters can be merged exactly."""
    targets, setting = args.ds.lora.target_modules, "ds.lora.target_modules"
    if not args.ds.lora.rank:
        return
    from torch.nn import Linear
    from transformers.pytorch_utils import Conv1D

    model = _without_weights(policy)
    modules, kind = dict(model.named_modules()), model.config.model_type
    if targets == ALL_LINEAR:
        if any(isinstance(module, Conv1D) for module in modules.values()):
            raise ConfigError(
                setting, targets, f"this {kind} model has Conv1D layers, whose adapters cannot be merged."
            )
        return
    linear = dict.fromkeys(name.rpartition(".")[2] for name, module in modules.items() if isinstance(module, Linear))
    known = f"this {kind} model has {', '.join(linear)}. Leave it out to adapt all of them but the unembedding"
    for target in targets or [targets]:
        found = [module for name, module in modules.items() if f".{name}".endswith(f".{target}")]
        if not found or not all(isinstance(module, Linear) for module in found):
            raise ConfigError(setting, target, f"names no linear layer; {known}.")
        if any(module.weight is model.get_input_embeddings().weight for module in found):
            hint = "has the weight of the embeddings, which engines cannot have with and without an adapter. Remove it."
            raise ConfigError(setting, target, hint)


def _without_weights(policy: Any) -> Any:
    """Create the policy's modules on the meta device, without allocating weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    auto = AutoModelForImageTextToText if hasattr(policy, "vision_config") else AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(policy, trust_remote_code=True)


# ── the run that is there already ──


def require_same_adapters(config: RunConfig, paths: RunPaths) -> None:
    """A resumed run has the adapters of the run in its folder."""
    saved = load_config(paths.config).openrlhf
    for key, default in (("ds.lora.rank", 0), ("ds.lora.alpha", 16), ("ds.lora.target_modules", ALL_LINEAR)):
        now, before = config.openrlhf.get(key, default), saved.get(key, default)
        if before != now:
            raise ConfigError(key, now, f"the checkpoint was saved with {before!r}. Resume with that.")


def require_memory_of(config: RunConfig, paths: RunPaths, wanted: MemoryFormat) -> MemoryFormat:
    """The existing memory, or the one to branch from, is of the same model and features.

    Returns the format of the run's memory, with the step offset of the existing one.
    """
    existing, branch_from = read_format(paths.memory), config.meds.memory.branch_from
    if existing is not None:
        existing.require_match(wanted, paths.memory.root)
        return replace(wanted, step_offset=existing.step_offset)
    if branch_from is not None:
        branched = read_branch_point(Path(branch_from)).format
        branched.require_match(wanted, Path(branch_from), "meds.memory.branch_from")
    return wanted
