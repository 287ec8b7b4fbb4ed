"""Checks a configuration and turns it into a job without starting anything; then places the job in a cluster."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.checkpoints import newest_complete, point_latest_to
from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.config.method import ANSWERS
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.features.function import FROM_TEXTS, FeatureFunction, load_function
from meds_openrlhf.features.settings import feature_transform, features_of_rows, transform_of
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.settings import memory_format
from meds_openrlhf.memory.snapshot import MemoryFormat
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.model_shape import FoundShape
from meds_openrlhf.placement.plan import Plan
from meds_openrlhf.placement.report import PlanReport
from meds_openrlhf.placement.shortage import Shortage, when_free
from meds_openrlhf.runtime import devices
from meds_openrlhf.training.host import cpu
from meds_openrlhf.training.host.openrlhf import steps_of_an_epoch
from meds_openrlhf.training.start import checks, dataset
from meds_openrlhf.training.start.dataset import longest_prompt
from meds_openrlhf.training.start.placing import (
    PROVISIONAL,
    models_of,
    place_flags,
    provisional_arguments,
    require_saved_ranks,
)

REWARD_FILES = Path(__file__).parents[2] / "rewards"
# DeepSpeed's optimizer files, one per rank: zero_pp_rank_3_mp_rank_00_optim_states.pt
OPTIMIZER_PART = re.compile(r"(bf16_)?zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A run that has passed every check and has not started anything.

    Counts in ``args`` that depend on the cluster are provisional; ``place`` sets them.
    """

    config: RunConfig
    paths: RunPaths
    flags: dict[str, Any]
    args: SimpleNamespace
    models: dict[str, FoundShape]  # by role
    on_cpu: bool
    memory: MemoryFormat
    transform: FeatureTransform
    function: FeatureFunction | None  # the user's own feature
    records_layers: bool  # whether the policy records what the memory stores
    left_out: str | None  # a line about prompts that are too long, if there are any
    prompts: int  # that are trained on
    resume: bool
    first_step: int  # 0, or the step of the checkpoint to resume
    saved_ranks: dict[str, int]  # of policy and critic in that checkpoint


@dataclass(frozen=True)
class PlacedJob(Job):
    """A job with its placement in the cluster, and the number of its steps if no prompt is filtered out."""

    placement: PlanReport
    total_steps: int

    @property
    def plan(self) -> Plan:
        """The placement plan."""
        return self.placement.plan


def prepare(config: RunConfig, paths: RunPaths, resume: bool) -> Job:
    """Run every check that needs no cluster, quick checks first. Loads no model."""
    checks.require_reward(config)
    refusal = "but this machine has no GPU; set RAY_ADDRESS to a cluster, or allow the CPU"
    on_cpu = devices.runs_on_cpu(config.meds.allow_cpu, "meds.allow_cpu", refusal)
    if on_cpu:
        cpu.install()
    checkpoint = newest_complete(paths) if resume else None
    flags = openrlhf_flags(config, paths, on_cpu, load=checkpoint is not None)
    args = provisional_arguments(config, flags)
    saved_ranks = ranks_saved(paths, checkpoint.tag) if checkpoint and not args.ds.use_universal_ckpt else {}
    if config.meds.placement.mode == "flags":
        require_saved_ranks(args, saved_ranks)
    require_flags(config, args)
    if checkpoint is not None:
        checks.require_same_adapters(config, paths)
    data = dataset.load_prompts(args)
    checks.require_labels(config, data, args.data.label_key)
    policy = checks.model_config(args.actor.model_name_or_path)
    function = function_of(config, policy)
    memory = _memory_of(config, paths, args, policy, function)
    checks.require_lora_targets(args, policy)
    from transformers import AutoTokenizer  # late: refusals above need no model code

    tokenizer = AutoTokenizer.from_pretrained(args.actor.model_name_or_path, trust_remote_code=True)
    too_long = dataset.count_too_long(data, args, tokenizer)
    if checkpoint is not None:
        point_latest_to(paths, checkpoint.tag)
    return Job(
        config=config,
        paths=paths,
        flags=flags,
        args=args,
        models=models_of(args),
        on_cpu=on_cpu,
        memory=memory,
        transform=feature_transform(features_of_rows(config.meds.features, config.meds.memory)),
        function=function,
        records_layers=are_recorded(config, function),
        left_out=_left_out(too_long, len(data), longest_prompt(args)),
        prompts=len(data) - too_long,
        resume=resume,
        first_step=checkpoint.step if checkpoint else 0,
        saved_ranks=saved_ranks,
    )


def require_flags(config: RunConfig, args: SimpleNamespace) -> None:
    """Raise ConfigError for flags that do not go together; `meds plan` asks the same."""
    checks.require_two_checkpoints(args)
    checks.require_lora(args)
    checks.require_length_penalties(args)
    checks.require_filtering(config, args)
    checks.require_minibatches(config, args)
    checks.require_exploration(config, args)
    checks.require_readable_answers(args)


def _memory_of(
    config: RunConfig, paths: RunPaths, args: SimpleNamespace, policy: Any, function: FeatureFunction | None
) -> MemoryFormat:
    """Return the format of the run's memory. Raises ConfigError if the run cannot have it."""
    memory = memory_format(config.meds, policy, function)
    records_layers = are_recorded(config, function)
    if records_layers:
        transform_of(features_of_rows(config.meds.features, config.meds.memory), memory.layers)
    if config.meds.enabled:
        memory = checks.require_memory_of(config, paths, memory)
    if records_layers:
        checks.require_recordable(args, policy)  # the last checks: they import the model's code
    return memory


def _left_out(too_long: int, prompts: int, most: int) -> str | None:
    return f"{too_long} of {prompts} prompts have more than {most} tokens, and are left out" if too_long else None


def ranks_saved(paths: RunPaths, tag: str) -> dict[str, int]:
    """Return how many ranks of policy and critic saved their part of the optimizer in the checkpoint ``tag``."""
    folders = {"policy": paths.checkpoints / "_actor" / tag, "critic": paths.checkpoints / "_critic" / tag}
    parts = {
        role: sum(1 for file in folder.iterdir() if OPTIMIZER_PART.fullmatch(file.name)) if folder.is_dir() else 0
        for role, folder in folders.items()
    }
    return {role: count for role, count in parts.items() if count}


def place(job: Job, nodes: Sequence[Node], sized_to: Sequence[Node] | None = None) -> PlacedJob:
    """Place the job on ``nodes``, with counts chosen for ``sized_to`` if given, otherwise for ``nodes``.

    Raises Shortage, a ConfigError, if the nodes do not have enough room, and ConfigError if no step could be trained.
    """
    placed = place_flags(job.config, job.flags, job.args, nodes, job.models, job.saved_ranks, sized_to)
    steps = steps_of_an_epoch(placed.args, job.prompts) * placed.args.train.num_episodes
    steps = min(steps, job.config.meds.max_steps or steps)
    return PlacedJob(**{**vars(job), "args": placed.args, "placement": placed.report, "total_steps": steps})


def place_when_free(job: Job, inventory: Callable[[], Sequence[Node]]) -> PlacedJob:
    """Place the job as soon as the nodes have room, within the timeout.

    A new run is sized as if the cluster were empty and waits for enough free resources; Shortage is raised immediately
    if even the empty cluster is too small. A resumed run may have lost a node that comes back, so it waits in any case
    and is sized to the free resources. Raises Shortage after the timeout.
    """

    def placed(nodes: Sequence[Node]) -> PlacedJob:
        try:
            return place(job, nodes, None if job.resume else [node.emptied() for node in nodes])
        except Shortage as shortage:
            raise _with_smaller_counts(job, nodes, shortage) from None

    seconds = job.config.meds.placement.timeout_seconds
    return when_free(placed, inventory, seconds, logger.warning, may_grow=job.resume)


def _with_smaller_counts(job: Job, nodes: Sequence[Node], shortage: Shortage) -> Shortage:
    """Return the shortage with advice on counts that fit the free resources; unchanged if no counts fit."""
    try:
        sized = place(job, nodes).placement.sizing.flags
    except ConfigError:
        return shortage
    counts = " ".join(f"--{flag}={count}" for flag, count in sized.items() if flag in PROVISIONAL)
    return Shortage(shortage.text, f"To run on what is free, set the counts: {counts}")


def openrlhf_flags(config: RunConfig, paths: RunPaths, on_cpu: bool, load: bool) -> dict[str, Any]:
    """Return the run's flags for OpenRLHF, including those that the run folder and the reward determine."""
    decided: dict[str, Any] = {
        "ckpt.path": str(paths.checkpoints),
        "ckpt.output_dir": str(paths.model),
        "ckpt.load_enable": load,
    }
    for key in decided:
        if key in config.openrlhf:
            raise ConfigError(key, config.openrlhf[key], "is decided by meds.run_dir (and --resume); leave it out")
    decided["logger.tensorboard_dir"] = None  # `tracking` writes it from the run's files
    defaults = cpu.FLAGS if on_cpu else {}
    if config.meds.policy.entropy_advantage.alpha > 0 and config.openrlhf.get("actor.entropy_coef") is None:
        decided["actor.entropy_coef"] = 0  # OpenRLHF computes the entropy but does not add it to the loss
    if config.meds.reward is not None:
        if config.openrlhf.get("reward.remote_url"):
            raise ConfigError("meds.reward", config.meds.reward, "and reward.remote_url exclude each other")
        decided["reward.remote_url"] = str(REWARD_FILES / f"{config.meds.reward.replace('-', '_')}.py")
    return checks.with_absolute_paths({**defaults, **config.openrlhf, **decided})


def function_of(config: RunConfig, policy: Any) -> FeatureFunction | None:
    """Return the user's own feature, if the run has one. Raises ConfigError if it does not work."""
    file = config.meds.features.function
    if file is None or not config.meds.enabled:
        return None
    text = policy.get_text_config()
    return load_function(file, text.num_hidden_layers, text.hidden_size)


def are_recorded(config: RunConfig, function: FeatureFunction | None) -> bool:
    """Whether the policy records what the memory stores, layer logits or a function of hidden states."""
    from_texts = config.meds.memory.preset == ANSWERS or (function is not None and function.name == FROM_TEXTS)
    return config.meds.enabled and not from_texts


def with_absolute_function(meds: MedsSettings) -> MedsSettings:
    """Return the settings with an absolute path of the function, since workers have other working directories."""
    file = meds.features.function
    return meds if file is None else replace(meds, features=replace(meds.features, function=str(Path(file).absolute())))


def plan_run(config: RunConfig, nodes: Sequence[Node]) -> PlanReport:
    """Plan the placement of a new run on ``nodes``.

    Raises the same errors as ``meds train``, except those about files other than the model.
    """
    on_cpu = config.meds.allow_cpu and not devices.has_cuda()
    checks.require_local_model(config)
    checks.require_reward(config)
    flags = openrlhf_flags(config, RunPaths(Path(config.meds.run_dir)), on_cpu, load=False)
    args = provisional_arguments(config, flags)
    require_flags(config, args)
    return place_flags(config, flags, args, nodes, models_of(args)).report
