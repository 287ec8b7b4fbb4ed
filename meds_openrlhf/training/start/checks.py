"""Every check of a run before anything starts, one a function. Checks write nothing, and raise ConfigError.

Those in `OF_FLAGS`, `OF_ARGUMENTS` and `OF_MODELS` need no file but a model's configuration: `meds train`, `meds plan`
and the trainings of `meds doctor` run all of them. The others are about models, data and an existing run;
`start.prepare` runs them when it has loaded these.
"""

from __future__ import annotations

import os
import re
import symtable
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.checkpoints import Checkpoint, type_saved
from meds_openrlhf.config import ConfigError, RunConfig, load_config
from meds_openrlhf.config.loader import REPLACED_REWARDS
from meds_openrlhf.features.token_bytes import token_bytes
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.placement.batching import Batching, even_batch, listed
from meds_openrlhf.placement.model_shape import FoundShape
from meds_openrlhf.placement.roles import COUNTS, TENSOR_PARALLEL, engines_share_gpus
from meds_openrlhf.runtime.devices import uses_cpu
from meds_openrlhf.runtime.hub import WITH_ITS_CODE, require_trusted

DATA_SUFFIXES = frozenset({".json", ".jsonl", ".csv", ".parquet", ".arrow"})
AT_LEAST_ONE = (
    *("train.num_episodes", "train.async_queue_size"),
    *(*COUNTS, "data.max_len"),
    *("rollout.batch_size", "rollout.micro_batch_size", "rollout.n_samples_per_prompt", "rollout.max_tokens_per_gpu"),
    *("train.batch_size", "train.micro_batch_size", "train.max_tokens_per_gpu"),
    *("ds.ring_attn_size", "ds.tensor_parallel_size"),
)
ALL_LINEAR = "all-linear"

# ── flags, before OpenRLHF parses them ──


def require_positive(config: RunConfig, flags: Mapping[str, Any]) -> None:
    """Require engines, and counts and sizes of at least 1, because OpenRLHF divides by them without a check."""
    for key in AT_LEAST_ONE:
        value = flags.get(key)  # the parser checks values that are not numbers
        if isinstance(value, int | float) and value < 1:
            raise ConfigError(key, value, "must be at least 1.")
    for key in ("ckpt.save_steps", "eval.steps"):
        if flags.get(key) == 0:
            raise ConfigError(key, 0, "must be at least 1, or -1 for never.")
    if flags.get("vllm.num_engines") is None and config.meds.placement.mode == "flags":
        raise ConfigError("vllm.num_engines", None, "is not set. Set it to at least 1.")


def require_reward(config: RunConfig, flags: Mapping[str, Any]) -> None:
    """Require a reward, and no setting of a reward that another setting overrides."""
    names = ("reward.remote_url", "reward.model_name_or_path", "train.agent_func_path")
    given = {"meds.reward": config.meds.reward, **{name: flags.get(name) for name in names}}
    if config.meds.reward:  # sets the flag reward.remote_url
        given["reward.remote_url"] = config.openrlhf.get("reward.remote_url")
    for name, other in REPLACED_REWARDS:
        if given[name] and given[other]:
            raise ConfigError(name, given[name], f"would not be used, because {other} is set. Set one of them to null.")
    if not any(given.values()):
        raise ConfigError("meds.reward", None, f"the run has no reward. Set meds.reward=math, or {' or '.join(names)}.")


# ── OpenRLHF's arguments ──


def require_sound_flags(config: RunConfig, args: SimpleNamespace) -> None:
    """Refuse what OpenRLHF accepts and then loses, does wrong without a word, or asserts only in the first step."""
    ckpt, ds, kl, rollout = args.ckpt, args.ds, args.algo.kl, args.rollout
    longest, overlong = rollout.max_new_tokens or args.data.max_len, args.reward.overlong_buffer_len
    backend, on_cpu = config.openrlhf.get("vllm.sync_backend"), uses_cpu(config.meds.allow_cpu)
    lost = "so no run could resume. Leave it out."
    for field, value, is_wrong, hint in (
        # It removes the old checkpoint before it saves the new one.
        ("ckpt.max_num", ckpt.max_num, ckpt.save_steps > 0 and ckpt.max_num < 2,
         "leaves no complete checkpoint while the next one is saved. Set at least 2."),
        # With these a resumed run would start over, and save a wrong model.
        ("train.enable_ema", args.train.enable_ema, args.train.enable_ema, f"is in no checkpoint, {lost}"),
        ("algo.kl.target", kl.target, kl.target, f"adapts a coefficient that is in no checkpoint, {lost}"),
        ("ds.use_universal_ckpt", ds.use_universal_ckpt, ds.use_universal_ckpt,
         f"would load the converted checkpoint at every resume, {lost}"),
        # It would train on the smaller batch.
        ("rollout.vllm_generate_batch_size", rollout.vllm_generate_batch_size,
         rollout.vllm_generate_batch_size < rollout.batch_size,
         f"is below rollout.batch_size, {rollout.batch_size}, which a step generates at once. Leave it out."),
        # It does not gather the partitions of ZeRO-3 before it sends the weights.
        ("ds.tensor_parallel_size", ds.tensor_parallel_size, ds.tensor_parallel_size > 1 and ds.zero_stage == 3,
         "does not work with ds.zero_stage=3: engines would get parts of weights. Set ds.zero_stage to 2 or less."),
        ("reward.overlong_buffer_len", overlong, (overlong or 0) > longest,
         f"is more than the {longest} tokens of the longest response. Lower it."),
        # Engines may have newer weights by the time that a step's evaluation comes to its turn.
        ("train.async_queue_size", args.train.async_queue_size,
         args.train.async_enable and args.train.async_queue_size > 1 and bool(args.eval.dataset),
         "would log evaluations of newer policies than their step's. Set 1, or evaluate checkpoints with `meds eval`."),
        # Engines compute in bfloat16, or without a GPU in float32, and take no weights of other types.
        ("ds.param_dtype", ds.param_dtype, ds.param_dtype == "fp16", "does not reach engines. Leave it out."),
        ("ds.param_dtype", ds.param_dtype, config.openrlhf.get("ds.param_dtype") == "fp32" and not on_cpu,
         "is for machines without a GPU. Leave it out."),
        ("ds.load_in_4bit", True, ds.load_in_4bit, "does not reach engines, which need whole weights. Leave it out."),
        # Only with nccl does it hand weights over within a GPU; a group of NCCL cannot contain a GPU twice.
        ("vllm.sync_backend", backend, backend not in (None, "nccl") and engines_share_gpus(args) and not on_cpu,
         "does not work where engines and policy share GPUs (train.colocate_all). Leave it out."),
        # Engines scale the probabilities of the tokens that are left, and the policy those of all.
        ("rollout.top_p", rollout.top_p, rollout.top_p < 1 and args.algo.advantage.is_correction_level != "off",
         "shifts all ratios of algo.advantage.is_correction_level. Set one of them to its default, 1 or off."),
        ("data.disable_fast_tokenizer", True, args.data.disable_fast_tokenizer,
         "only a fast tokenizer gives the bytes of tokens, which are needed to find answers. Leave this out."),
    ):  # fmt: skip
        if is_wrong:
            raise ConfigError(field, value, hint)


def require_extras(config: RunConfig, args: SimpleNamespace) -> None:
    """Require dynamic filtering, whose dropped groups ``meds.penalty.extras`` are, and whole mini-batches of them."""
    extras, each = config.meds.penalty.extras, args.rollout.n_samples_per_prompt
    if extras and not args.algo.dynamic_filtering_enable:
        raise ConfigError(
            "meds.penalty.extras", extras, "needs algo.dynamic_filtering_enable, which drops such groups."
        )
    if extras and extras * each % (even := even_batch(args)):
        hint = f"must be a multiple of {even // each} groups, which are whole mini-batches on all ranks."
        raise ConfigError("meds.penalty.extras", extras, hint)


def require_relative_advantages(config: RunConfig, args: SimpleNamespace) -> None:
    """Require advantages relative to a prompt's group for weights and extras, which act on them."""
    estimator, penalty = args.algo.advantage.estimator, config.meds.penalty
    if (penalty.form == "weights" or penalty.extras) and estimator not in ("group_norm", "dr_grpo", "rloo"):
        key = "form" if penalty.form == "weights" else "extras"
        hint = f"meds.penalty.{key} needs advantages relative to a prompt's group. Set group_norm, dr_grpo or rloo."
        raise ConfigError("algo.advantage.estimator", estimator, hint)


def require_minibatches(config: RunConfig, args: SimpleNamespace) -> None:
    """Require that a step is whole mini-batches, and these whole prompts if meds.policy.minibatches is "prompts"."""
    of_prompts = config.meds.policy.minibatches == "prompts"
    Batching.of(args).require_whole_minibatches(of_prompts)
    if of_prompts and args.critic.model_name_or_path:
        hint = "a critic would train on other mini-batches. Set it to `responses`."
        raise ConfigError("meds.policy.minibatches", "prompts", hint)


def require_exploration(config: RunConfig, args: SimpleNamespace) -> None:
    """Require enough responses to a prompt, and a suitable estimator, for methods that compare responses."""
    exploration, responses = config.meds.exploration, args.rollout.n_samples_per_prompt
    estimator, k = args.algo.advantage.estimator, exploration.pass_at_k
    if k is not None and estimator != "group_norm":
        hint = "pass_at_k works only with group_norm. Set algo.advantage.estimator to group_norm."
        raise ConfigError("algo.advantage.estimator", estimator, hint)
    if k is not None and k >= responses:
        raise ConfigError("meds.exploration.pass_at_k", k, f"must be below rollout.n_samples_per_prompt, {responses}.")
    if exploration.answer_bonus and estimator == "gae":
        hint = "meds.exploration.answer_bonus does not support a critic. Use an estimator without one."
        raise ConfigError("algo.advantage.estimator", estimator, hint)


def require_lora(_config: RunConfig, args: SimpleNamespace) -> None:
    """Require LoRA adapters that can be merged for the engines."""
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
    if (parts := args.ds.tensor_parallel_size) != 1:
        hint = (
            f"does not work with ds.lora.rank={lora.rank}: adapters cannot be merged into split weights. Leave it out."
        )
        raise ConfigError("ds.tensor_parallel_size", parts, hint)


OF_FLAGS: tuple[Callable[[RunConfig, Mapping[str, Any]], None], ...] = (require_positive, require_reward)
OF_ARGUMENTS: tuple[Callable[[RunConfig, SimpleNamespace], None], ...] = (
    require_sound_flags,
    require_lora,
    require_extras,
    require_relative_advantages,
    require_minibatches,
    require_exploration,
)


# ── models, as far as their configurations are at hand ──


def require_whole_responses(args: SimpleNamespace, models: Mapping[str, FoundShape]) -> None:
    """Require responses in rows of their own for layers that carry a state along a row.

    Attention finds in positions where a response begins. Convolutions and recurrent layers do not, and would run from
    one response into the next. OpenRLHF packs batches by tokens, and for ring attention.
    """
    field = "train.dynamic_batch_enable" if args.train.dynamic_batch_enable else "ds.packing_samples"
    for role, model in models.items():
        if args.ds.packing_samples and model.unusual.layers and role != "engines":
            layers = ", ".join(model.unusual.layers)
            hint = (
                f"joins responses, and {model.name} has layers that are not attention ({layers}), in which one would "
                "change the next. Set ds.packing_samples and train.dynamic_batch_enable to false."
            )
            raise ConfigError(field, True, hint)


def require_renewable_weights(args: SimpleNamespace, models: Mapping[str, FoundShape]) -> None:
    """Require a policy of which engines keep no copies that a weight sync does not renew, as of latent attention."""
    if models["engines"].unusual.latent_attention:
        hint = "has latent attention (kv_lora_rank), and engines would keep its first weights. Use another model."
        raise ConfigError("actor.model_name_or_path", args.actor.model_name_or_path, hint)


def require_splittable_heads(args: SimpleNamespace, models: Mapping[str, FoundShape]) -> None:
    """Require a tensor parallel size that vLLM can split the model over."""
    width, model = args.vllm.tensor_parallel_size, models["engines"]
    if model.shape and not model.shape.splits_over(width):
        sizes = [size for size in range(1, model.shape.heads + 1) if model.shape.splits_over(size)]
        heads = f"{model.shape.heads} attention heads and {model.shape.kv_heads} key-value heads"
        raise ConfigError(TENSOR_PARALLEL, width, f"cannot split the {heads} of {model.name}. Use {listed(sizes)}.")


OF_MODELS: tuple[Callable[[SimpleNamespace, Mapping[str, FoundShape]], None], ...] = (
    require_whole_responses,
    require_renewable_weights,
    require_splittable_heads,
)


# ── files ──


def require_local_paths(config: RunConfig, keys: tuple[str, ...]) -> None:
    """Require that the local files and folders in flags exist; hub names (``owner/name``) are left to their loaders."""
    for key in keys:
        value = config.openrlhf.get(key)
        if not value:
            raise ConfigError(key, None, "is not set, and every run needs it.")
        for path, _ in named(value):
            looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1 or Path(path).suffix in DATA_SUFFIXES
            if looks_local and not Path(path).exists():
                advice = "Make it with `meds data prepare`" if path.startswith("data/") else "Name a path or a hub name"
                raise ConfigError(key, value, f"does not exist (looked in {os.getcwd()}). {advice}.")


def named(value: object) -> Iterator[tuple[str, str]]:
    """Yield the names in a flag, split as OpenRLHF splits them: ``a,mix@sub`` has ("a", "") and ("mix", "@sub")."""
    for part in str(value).split(","):
        path, at, data_dir = part.strip().partition("@")
        yield (path, at + data_dir) if not Path(part.strip()).exists() else (part.strip(), "")


def require_code_files(config: RunConfig) -> None:
    """Require that the user's code files are valid Python and define or import the name that OpenRLHF calls."""
    for key, name, kind, page in (
        ("reward.remote_url", "reward_func", "non-async function", "rewards.md"),
        ("train.agent_func_path", "AgentExecutor", "class", "recipes/tools.md"),
    ):
        value = config.openrlhf.get(key)
        if not isinstance(value, str) or (key == "reward.remote_url" and not value.endswith(".py")):
            continue  # not set, or a server that scores responses
        try:
            text = Path(value).read_text(encoding="utf-8")
            symbols = symtable.symtable(text, value, "exec").get_symbols()
        except OSError as error:
            raise ConfigError(key, value, f"cannot be read ({error.strerror}; looked in {os.getcwd()}).") from error
        except (SyntaxError, ValueError) as error:
            line = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
            raise ConfigError(key, value, f"is not valid Python ({line}{error.args[0]}).") from error
        is_there = any(symbol.get_name() == name for symbol in symbols if symbol.is_assigned() or symbol.is_imported())
        if not is_there or re.search(rf"^async def {name}\b", text, re.MULTILINE):
            raise ConfigError(key, value, f"must define a {kind} `{name}`, which OpenRLHF calls. See docs/{page}.")


# ── the policy ──


def require_trusted_models(config: RunConfig, args: SimpleNamespace, must_find: bool = False) -> None:
    """Require models without code of their own, unless the user trusts them."""
    for section in ("actor", "critic", "reward"):
        for name in filter(None, (getattr(args, section).model_name_or_path or "").split(",")):
            require_trusted(name, f"{section}.model_name_or_path", config.meds.trust_remote_code, must_find)


def require_recordable(args: SimpleNamespace, policy: Any) -> None:
    """Require a policy whose layer logits can be recorded; see docs/recorder.md."""
    if args.ds.deepcompile:
        raise ConfigError("ds.deepcompile", True, "compiled code runs no hooks, which the memory needs. Leave it out.")
    from meds_openrlhf.features.recorder import find_decoder_parts

    try:
        unembedding = find_decoder_parts(_without_weights(policy)).unembedding
        width, hidden = unembedding.weight.shape[-1], policy.get_text_config().hidden_size
        if width != hidden:
            raise ValueError(f"projects its {hidden} hidden values to {width}, for which layers have no logits.")
    except ValueError as error:
        name = type(policy).__name__
        raise ConfigError("actor.model_name_or_path", args.actor.model_name_or_path, f"{name} {error}") from error


def require_readable_tokens(args: SimpleNamespace, tokenizer: Any) -> None:
    """Require tokens whose bytes are known, by which answers are found."""
    try:
        token_bytes(tokenizer)
    except ValueError as error:
        raise ConfigError("actor.model_name_or_path", args.actor.model_name_or_path, str(error)) from error


def require_lora_targets(args: SimpleNamespace, policy: Any) -> None:
    """Require that the modules to adapt exist, and that their adapters can be merged exactly."""
    targets, setting = args.ds.lora.target_modules, "ds.lora.target_modules"
    if not args.ds.lora.rank:
        return
    from torch.nn import Linear
    from transformers.pytorch_utils import Conv1D

    model = _without_weights(policy)
    modules, kind = dict(model.named_modules()), model.config.model_type
    if targets == ALL_LINEAR:
        if any(isinstance(module, Conv1D) for module in modules.values()):
            hint = f"this {kind} model has Conv1D layers, whose adapters cannot be merged."
            raise ConfigError(setting, targets, hint)
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
        return auto.from_config(policy, **WITH_ITS_CODE)


# ── an existing run ──


# What a checkpoint is saved with, and OpenRLHF's defaults.
SAVED_WITH = {"ds.lora.rank": 0, "ds.lora.alpha": 16, "ds.lora.target_modules": ALL_LINEAR, "ds.zero_stage": 2}


def require_same_parts(config: RunConfig, paths: RunPaths, checkpoint: Checkpoint, param_dtype: str) -> None:
    """Require that a resumed run has the adapters, the ZeRO stage and the type of its checkpoint."""
    saved = load_config(paths.config).openrlhf
    parts = {key: (config.openrlhf.get(key, default), saved.get(key, default)) for key, default in SAVED_WITH.items()}
    parts["ds.param_dtype"] = param_dtype, type_saved(paths, checkpoint.tag) or param_dtype
    for key, (now, before) in parts.items():
        if before != now:
            raise ConfigError(key, now, f"the checkpoint was saved with {before!r}. Resume with that.")
