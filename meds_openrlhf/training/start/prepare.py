"""Turns a configuration into a job: asks every check, and starts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.checkpoints import Checkpoint, newest_complete, ranks_saved
from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.config.method import ANSWERS
from meds_openrlhf.features.function import FROM_TEXTS, load_function
from meds_openrlhf.features.settings import features_of_rows, transform_of
from meds_openrlhf.memory.snapshot import MemoryFormat
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.report import PlanReport
from meds_openrlhf.runtime import devices
from meds_openrlhf.training.host import cpu
from meds_openrlhf.training.host.openrlhf import longest_prompt, steps_of_an_epoch
from meds_openrlhf.training.start import checks, dataset
from meds_openrlhf.training.start.placing import Request, place, request_of

REWARD_FILES = Path(__file__).parents[2] / "rewards"


@dataclass(frozen=True)
class Start:
    """Where a run begins: at step 0, or at the checkpoint from which it resumes."""

    resume: bool
    checkpoint: Checkpoint | None

    @property
    def step(self) -> int:
        """The number of steps that are done."""
        return self.checkpoint.step if self.checkpoint else 0


@dataclass(frozen=True)
class Prompts:
    """How many prompts are trained on, and how many are left out because they have more than ``most`` tokens."""

    count: int
    too_long: int
    most: int


@dataclass(frozen=True)
class RunMemory:
    """The memory of a run: the format of its rows, and whether the policy records them."""

    format: MemoryFormat
    records_layers: bool


@dataclass(frozen=True)
class Job:
    """A run that has passed every check and has not started anything."""

    config: RunConfig
    paths: RunPaths
    on_cpu: bool
    start: Start
    request: Request
    prompts: Prompts
    memory: RunMemory

    def total_steps(self, args: SimpleNamespace) -> int:
        """Return the number of steps with these arguments of OpenRLHF, if no prompt is filtered out.

        Raises ConfigError if there is none.
        """
        steps: int = steps_of_an_epoch(args, self.prompts.count) * args.train.num_episodes
        return min(steps, self.config.meds.max_steps or steps)


def prepare(config: RunConfig, paths: RunPaths, resume: bool, on_cpu: bool) -> Job:
    """Ask every check that needs no cluster, quick ones first. Loads no model and writes nothing."""
    wanted = ("actor.model_name_or_path", "data.prompt_dataset")
    checks.require_local_paths(config, wanted + ("eval.dataset",) * bool(config.openrlhf.get("eval.dataset")))
    checks.require_code_files(config)
    checkpoint = newest_complete(paths) if resume else None
    flags = openrlhf_flags(config, paths, on_cpu, load=checkpoint is not None)
    request = request_of(config, flags, ranks_saved(paths, checkpoint.tag) if checkpoint else None)
    args = request.args
    if checkpoint is not None:
        checks.require_same_adapters(config, paths)
    data = dataset.load_prompts(args)
    checks.require_labels(config, data, args.data.label_key)
    policy = checks.model_config(args.actor.model_name_or_path)
    memory = _memory_of(config, paths, args, policy)
    checks.require_lora_targets(args, policy)
    prompts = _prompts_of(data, args)
    return Job(config, paths, on_cpu, Start(resume, checkpoint), request, prompts, memory)


def plan_run(config: RunConfig, nodes: Sequence[Node]) -> PlanReport:
    """Plan the placement of a new run on ``nodes``; asks the same checks as `prepare`, except those about files."""
    on_cpu = config.meds.allow_cpu and not devices.has_cuda()
    checks.require_local_paths(config, ("actor.model_name_or_path",))
    flags = openrlhf_flags(config, RunPaths(Path(config.meds.run_dir)), on_cpu, load=False)
    return place(request_of(config, flags), nodes).report


def _memory_of(config: RunConfig, paths: RunPaths, args: SimpleNamespace, policy: Any) -> RunMemory:
    """Return the run's memory. Raises ConfigError if the run cannot have it, or if the user's feature fails."""
    meds, function = config.meds, None
    if meds.features.function is not None and meds.enabled:
        text = policy.get_text_config()
        function = load_function(meds.features.function, text.num_hidden_layers, text.hidden_size)
    from_texts = meds.memory.preset == ANSWERS or (function is not None and function.name == FROM_TEXTS)
    records_layers = meds.enabled and not from_texts
    memory = MemoryFormat.of(meds, policy, function)
    if records_layers:
        transform_of(features_of_rows(meds.features, meds.memory), memory.layers)
    if meds.enabled:
        memory = checks.require_memory_of(config, paths, memory)
    if records_layers:
        checks.require_recordable(args, policy)  # the last check: it imports the model's code
    return RunMemory(memory, records_layers)


def _prompts_of(data: Any, args: SimpleNamespace) -> Prompts:
    from transformers import AutoTokenizer  # late: refusals need no model code

    tokenizer = AutoTokenizer.from_pretrained(args.actor.model_name_or_path, trust_remote_code=True)
    too_long = dataset.count_too_long(data, args, tokenizer)
    return Prompts(len(data) - too_long, too_long, longest_prompt(args))


def openrlhf_flags(config: RunConfig, paths: RunPaths, on_cpu: bool, load: bool) -> dict[str, Any]:
    """Return the run's flags for OpenRLHF, including those that the run folder and the reward determine."""
    decided: dict[str, Any] = {
        "ckpt.path": str(paths.checkpoints),
        "ckpt.output_dir": str(paths.model),
        "ckpt.load_enable": load,
    }
    for key in decided:
        if key in config.openrlhf:
            raise ConfigError(key, config.openrlhf[key], "follows from meds.run_dir and --resume. Leave it out.")
    decided["logger.tensorboard_dir"] = None  # `tracking` writes it from the run's files
    defaults = cpu.FLAGS if on_cpu else {}
    if config.meds.policy.entropy_advantage.alpha > 0 and config.openrlhf.get("actor.entropy_coef") is None:
        decided["actor.entropy_coef"] = 0  # OpenRLHF computes the entropy but does not add it to the loss
    if config.meds.reward is not None:
        decided["reward.remote_url"] = str(REWARD_FILES / f"{config.meds.reward.replace('-', '_')}.py")
    return checks.with_absolute_paths({**defaults, **config.openrlhf, **decided})
