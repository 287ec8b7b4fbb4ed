"""Turns a configuration into a job: runs every check, and starts nothing."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.checkpoints import Checkpoint, newest_complete, ranks_saved
from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.data.sources import require_own_files
from meds_openrlhf.features.kind import Feature, transform_of
from meds_openrlhf.memory.snapshot import MemoryFormat, read_format
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.placement.batching import steps_of_an_epoch
from meds_openrlhf.placement.engine_limits import EngineLimits, engine_limits
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.model_shape import FoundShape
from meds_openrlhf.placement.plan import Plan
from meds_openrlhf.placement.report import PlanReport
from meds_openrlhf.placement.sizing import decided_mode
from meds_openrlhf.rewards.labels import require_labels
from meds_openrlhf.runtime import devices
from meds_openrlhf.runtime.hub import WITH_ITS_CODE, loading
from meds_openrlhf.training.openrlhf import cpu
from meds_openrlhf.training.openrlhf.access import is_too_long, longest_prompt, module_alone
from meds_openrlhf.training.start import checks
from meds_openrlhf.training.start.placing import arguments_of, plan_of

REWARD_FILES = Path(__file__).parents[2] / "rewards"
# Settings that may name local files.
FILE_SETTINGS = (
    *("actor.model_name_or_path", "critic.model_name_or_path", "reward.model_name_or_path"),
    *("data.prompt_dataset", "eval.dataset", "reward.remote_url", "train.agent_func_path"),
)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that has passed every check and has not started anything."""

    config: RunConfig
    paths: RunPaths
    on_cpu: bool
    resume: bool
    checkpoint: Checkpoint | None  # from which the run resumes; None if it begins at step 0
    args: SimpleNamespace  # OpenRLHF's, with all counts
    models: Mapping[str, FoundShape]  # by role
    saved_ranks: Mapping[str, int]  # by role, in the checkpoint
    prompts: int  # prompts to train on
    too_long: int  # prompts that are skipped
    total_steps: int  # if no prompt is filtered out
    longest_prompt: int  # the most tokens that a prompt may have
    tokenizer: Any
    feature: Feature  # what the memory's rows are

    @property
    def first_step(self) -> int:
        """The number of steps that the checkpoint includes."""
        return self.checkpoint.step if self.checkpoint else 0

    def plan(self, nodes: Sequence[Node]) -> Plan:
        """Plan the placement on ``nodes``. Raises Shortage, a ConfigError, if they have no room."""
        return plan_of(self.config, self.args, nodes, self.saved_ranks)

    def engine_limits(self, plan: Plan) -> EngineLimits:
        """Return what an engine works on at a time, on the GPUs of the plan."""
        shape = self.models["engines"].shape
        return engine_limits(self.args, shape, self.config.meds.rollout, plan.gpu_memory_gb)

    def report(self, plan: Plan) -> PlanReport:
        """Return the plan with its estimates of memory."""
        mode = decided_mode(self.config.meds.placement.mode, self.config.openrlhf)
        return PlanReport(plan, mode, self.args, self.models, self.engine_limits(plan))


def prepare(config: RunConfig, paths: RunPaths, resume: bool, on_cpu: bool, nodes: Callable[[], Sequence[Node]]) -> Job:
    """Run every check, quick checks first, and size the run to ``nodes``. Loads no weights and writes nothing."""
    wanted = ("actor.model_name_or_path", "data.prompt_dataset")
    checks.require_local_paths(config, wanted + ("eval.dataset",) * bool(config.openrlhf.get("eval.dataset")))
    checks.require_code_files(config)
    checkpoint = newest_complete(paths) if resume else None
    flags = openrlhf_flags(config, paths, on_cpu, load=checkpoint is not None)
    saved_ranks = ranks_saved(paths, checkpoint.tag) if checkpoint else {}
    args, models = arguments_of(config, flags, nodes, saved_ranks, must_find=True)  # OpenRLHF runs what it loads
    if checkpoint is not None:
        checks.require_same_parts(config, paths, checkpoint, args.ds.param_dtype)
    data = load_prompts(args)
    if config.meds.reward is not None:
        require_labels(config.meds.reward, data, args.data.label_key, resume=checkpoint is not None)
    policy = _model_config(args.actor.model_name_or_path, config.meds.trust_remote_code)
    feature = _feature_of(config, paths, args, policy)
    checks.require_lora_targets(args, policy)
    from transformers import AutoTokenizer  # late: earlier checks fail fast without it

    tokenizer = AutoTokenizer.from_pretrained(args.actor.model_name_or_path, **WITH_ITS_CODE)
    checks.require_readable_tokens(args, tokenizer)
    too_long = count_too_long(data, args, tokenizer)
    steps: int = steps_of_an_epoch(args, len(data) - too_long) * args.train.num_episodes
    return Job(
        config=config, paths=paths, on_cpu=on_cpu, resume=resume, checkpoint=checkpoint, args=args,
        models=models, saved_ranks=saved_ranks, prompts=len(data) - too_long, too_long=too_long,
        total_steps=min(steps, config.meds.max_steps or steps),
        longest_prompt=longest_prompt(args), feature=feature,
        tokenizer=tokenizer,
    )  # fmt: skip


def plan_run(config: RunConfig, nodes: Sequence[Node]) -> PlanReport:
    """Plan the placement of a new run on ``nodes``; runs the same checks as `prepare`, except those of files."""
    on_cpu = devices.uses_cpu(config.meds.allow_cpu)
    checks.require_local_paths(config, ("actor.model_name_or_path",))
    flags = openrlhf_flags(config, RunPaths(Path(config.meds.run_dir)), on_cpu, load=False)
    args, models = arguments_of(config, flags, lambda: nodes, {})
    plan = plan_of(config, args, nodes, {})
    limits = engine_limits(args, models["engines"].shape, config.meds.rollout, plan.gpu_memory_gb)
    return PlanReport(plan, decided_mode(config.meds.placement.mode, flags), args, models, limits)


def _feature_of(config: RunConfig, paths: RunPaths, args: SimpleNamespace, policy: Any) -> Feature:
    """Return what the rows of the run's memory are.

    Raises ConfigError if the memory does not fit the run, or if the user's feature fails.
    """
    meds = config.meds
    feature = Feature.of(meds, policy)
    if feature.is_recorded:
        transform_of(meds, feature.values)
    existing = read_format(paths.memory) if meds.enabled else None
    if existing is not None:
        existing.require_match(MemoryFormat.of(meds, feature), paths.memory.root)
    if feature.is_recorded:
        checks.require_recordable(args, policy)  # the last check: it imports the model's code
    return feature


def openrlhf_flags(config: RunConfig, paths: RunPaths, on_cpu: bool, load: bool) -> dict[str, Any]:
    """Return the run's flags for OpenRLHF, including flags that follow from the run folder and the reward."""
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
    return with_absolute_paths({**defaults, **config.openrlhf, **decided})


def with_absolute_paths(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Make paths of local files absolute, because workers of a cluster have other working directories."""
    changed = dict(flags)
    for key in FILE_SETTINGS:
        if isinstance(flags.get(key), str):
            parts = checks.named(flags[key])
            changed[key] = ",".join(
                (str(Path(path).absolute()) if Path(path).exists() else path) + at for path, at in parts
            )
    return changed


def _model_config(name: str, trusted: bool) -> Any:
    """Load the configuration of the policy."""
    from transformers import AutoConfig  # late: it takes seconds

    with loading(name, "actor.model_name_or_path", trusted) as options:
        return AutoConfig.from_pretrained(name, **options)


# ── the training set, as OpenRLHF loads it ──


def load_prompts(args: SimpleNamespace) -> Any:
    """Load the rows to train on, as OpenRLHF does. Raises ConfigError for a missing data set or column."""
    data = _load_dataset(
        "data.prompt_dataset", args.data.prompt_dataset, args.data.prompt_split, args, args.data.prompt_probs
    )
    wanted = {"data.input_key": args.data.input_key, "data.label_key": args.data.label_key}
    _require_columns(data, wanted)
    if args.eval.dataset:
        evaluation = _load_dataset("eval.dataset", args.eval.dataset, args.eval.split, args)
        _require_columns(evaluation, wanted)
    return data.select(range(min(args.data.max_samples, len(data))))


def count_too_long(data: Any, args: SimpleNamespace, tokenizer: Any) -> int:
    """Count the prompts that `RolloutGenerator` skips as too long. Raises ConfigError if it would skip all of them."""
    most, key, template = longest_prompt(args), args.data.input_key, args.data.input_template
    preprocess_data = module_alone("openrlhf.datasets.prompts_dataset").preprocess_data
    chat_template = tokenizer.apply_chat_template if args.data.apply_chat_template else None

    def skips(prompt: Any) -> bool:
        return is_too_long(preprocess_data({key: prompt}, template, key, None, chat_template)[0], most, tokenizer)

    batches = data.select_columns([key]).iter(batch_size=1000)  # many times faster than row by row
    too_long = sum(skips(prompt) for batch in batches for prompt in batch[key])
    if too_long == len(data):
        hint = f"leaves {most} tokens for a prompt, but all are longer. Raise it or lower rollout.max_new_tokens."
        raise ConfigError("data.max_len", args.data.max_len, hint)
    return too_long


def _load_dataset(key: str, name: str, split: str, args: SimpleNamespace, probabilities: str | None = None) -> Any:
    from datasets import disable_progress_bars
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

    for path, _ in checks.named(name):
        if Path(path).is_dir():
            require_own_files(Path(path), key)
    disable_progress_bars()
    strategy = SimpleNamespace(args=args, print=print, is_rank_0=lambda: True)  # the parts that OpenRLHF uses here
    try:
        with redirect_stdout(io.StringIO()):  # OpenRLHF prints what it loads, and prints it again in the trainer
            return module_alone("openrlhf.datasets.utils").blending_datasets(
                name, probabilities, strategy, args.train.seed, args.data.max_samples, dataset_split=split
            )
    except (DatasetNotFoundError, DatasetGenerationError, FileNotFoundError, ValueError, AttributeError) as error:
        raise ConfigError(key, name, f"cannot be loaded (split {split!r}): {str(error).splitlines()[0]}") from error


def _require_columns(data: Any, wanted: dict[str, str | None]) -> None:
    for key, column in wanted.items():
        if column is not None and column not in data.column_names:
            raise ConfigError(key, column, f"the data set has no such column; it has {', '.join(data.column_names)}.")
