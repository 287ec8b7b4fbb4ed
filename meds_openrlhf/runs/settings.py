"""A run's name, its settings, its method in words, and its planned number of steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from meds_openrlhf.config.credentials import redacted
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.loader import RunConfig, flatten, load_config, read_mapping
from meds_openrlhf.config.removed import without_removed
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.files import UnusableFileError, read_file
from meds_openrlhf.paths import RunPaths

# Always shown. Other settings are shown if runs differ in them, or on request.
KEY_SETTINGS = (
    "actor.model_name_or_path", "data.prompt_dataset", "algo.advantage.estimator", "meds.enabled",
    "meds.memory.preset", "meds.memory.remember", "meds.features.layers", "meds.features.difference",
    "meds.penalty.form", "meds.penalty.alpha", "meds.penalty.beta", "meds.penalty.shuffled",
    "meds.penalty.extras", "meds.policy.entropy_advantage.alpha",
    "actor.adam.lr", "actor.eps_clip_low_high", "algo.kl.init_coef", "algo.dynamic_filtering_enable",
    "rollout.batch_size", "rollout.n_samples_per_prompt", "rollout.temperature", "rollout.max_new_tokens",
    "train.batch_size", "train.num_episodes",
)  # fmt: skip
# Of an atlas of another trainer's rollouts, where a run has OpenRLHF's flags.
RIGHT_FROM = "atlas.right_from"
ANSWERS_FROM = "atlas.answers"  # "column": final answers are those that the trainer's own grader read
NOT_COMPARED = ("meds.run_dir",)
ESTIMATORS = {
    "group_norm": "GRPO", "dr_grpo": "Dr. GRPO", "rloo": "RLOO", "reinforce": "REINFORCE",
    "reinforce_baseline": "REINFORCE++ with baseline", "gae": "PPO", "flash_reinforce": "FlashREINFORCE",
}  # fmt: skip


def names_of(runs: Sequence[Path]) -> list[str]:
    """A short unique name for each folder. Raises ConfigError if a run is given twice."""
    folders = [run.resolve() for run in runs]
    for parts in (1, 2):
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    names = [str(folder) for folder in folders]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("RUN", name, "is named twice. Name each run once.")
    return names


def config_of(paths: RunPaths) -> RunConfig | None:
    """The run's configuration; None if the folder has none. Raises ConfigError if it cannot be read."""
    return load_config(paths.config) if paths.config.exists() else None


def flat_settings(paths: RunPaths) -> dict[str, Any]:
    """The settings in the run's file by dotted name; credentials are replaced with ``"***"``."""
    if not paths.config.exists():
        return {}
    return flatten(redacted(without_removed(read_mapping(paths.config, "RUN")), os.environ))


def compare_settings(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The settings of all runs side by side: key settings first, then by name.

    ``values`` are strings, or None for a run that does not set it; ``key`` and ``differs`` say why it is of interest.
    """
    found = {name for settings in runs for name in settings} - set(NOT_COMPARED)
    names = [name for name in KEY_SETTINGS if name in found] + sorted(found - set(KEY_SETTINGS))
    rows = []
    for name in names:
        values = [_as_text(settings[name]) if name in settings else None for settings in runs]
        key, differs = name in KEY_SETTINGS, len(set(values)) > 1
        rows.append({"name": name, "values": values, "key": key, "differs": differs})
    return rows


def method_in_words(config: RunConfig | None) -> str:
    """E.g. ``GRPO, clip 0.2 to 0.28, with MEDS (paper, alpha 0.1, beta 0.2)``."""
    if config is None:
        return "unknown: the folder has no config.yaml"
    flags, meds = config.openrlhf, config.meds
    estimator = str(flags.get("algo.advantage.estimator", "gae"))
    words = ["rollouts of another trainer" if RIGHT_FROM in flags else ESTIMATORS.get(estimator, estimator)]
    clip = flags.get("actor.eps_clip_low_high")
    if isinstance(clip, list) and len(clip) == 2 and clip[0] != clip[1]:
        words.append(f"clip {clip[0]} to {clip[1]}")
    entropy, pass_at_k = meds.policy.entropy_advantage.alpha, meds.exploration.pass_at_k
    others = {
        "dynamic sampling": flags.get("algo.dynamic_filtering_enable") is True,
        f"entropy advantage {entropy}": entropy > 0,
        f"pass@{pass_at_k} advantages": pass_at_k,
        f"right responses weighted {meds.exploration.right_weight}": meds.exploration.right_weight != 1,
        f"focal weights, gamma {meds.exploration.focal_gamma}": meds.exploration.focal_gamma,
        f"answer bonus {meds.exploration.answer_bonus}": meds.exploration.answer_bonus,
        f"{meds.penalty.extras} extras": meds.penalty.extras,
    }
    return ", ".join([*words, *(word for word, used in others.items() if used), _memory_in_words(meds)])


def _memory_in_words(meds: MedsSettings) -> str:
    if not meds.enabled:
        return "no memory"
    penalty, preset = meds.penalty, meds.memory.preset
    if meds.memory.remember == "none":
        words = "successes remembered, no errors"
    elif penalty.form == "weights":
        words = f"MEDS by weights ({preset})"
    elif penalty.alpha == 0 or penalty.beta == 0:
        words = f"errors remembered ({preset}), no penalty"
    else:
        words = f"MEDS ({preset}, alpha {penalty.alpha}, beta {penalty.beta})"
    return f"{words}, sizes shuffled" if penalty.shuffled else words


def planned_steps(paths: RunPaths) -> int | None:
    """The number of steps that the run planned when it last started; None for a folder that does not say."""
    if not paths.planned_steps.exists():
        return None
    text = read_file(paths.planned_steps, most=20).strip()
    if not text.isdigit():
        raise UnusableFileError(paths.planned_steps, "is not a number of steps")
    return int(text)


def _as_text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    with suppress(ValueError):  # YAML reads 1e-6 as text
        value = float(value) if isinstance(value, str) and "e-" in value else value
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
