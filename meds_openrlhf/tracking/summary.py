"""A short summary of a run: its first steps against its last, and the paths of its results."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from statistics import fmean

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog

ROWS = (
    ("reward (raw)", "rollout/reward_mean"),
    ("reward (shaped)", "meds/reward_shaped"),
    ("pass@1 of the rollouts", "meds/accuracy"),
    ("penalty, mean", "meds/penalty_mean"),
    ("rollouts penalized", "meds/penalized_share"),
    ("noise among stored rows", "meds/noise_share"),
    ("top-1 eigen ratio, step", "meds/eigen_ratio_step"),
    ("top-1 eigen ratio, all", "meds/eigen_ratio_all"),
    ("response length, tokens", "rollout/response_length_mean"),
    ("seconds per step", "timing/step_total"),
)


def summarize(run_dir: Path, window: int = 5) -> str:
    """A table of the means of the first and the last ``window`` steps, and the paths of the run's files."""
    paths = RunPaths(run_dir)
    steps = StepLog(paths.metrics).read()
    if not steps:
        return f"{run_dir}: no step was finished"
    window = min(window, len(steps))
    lines = ["", f"{len(steps)} steps in {run_dir}", f"{'':26}{f'first {window}':>10}{f'last {window}':>10}"]
    for title, name in ROWS:
        first, last = _mean(steps[:window], name), _mean(steps[-window:], name)
        if last is not None:
            lines.append(f"{title:26}{'--' if first is None else f'{first:10.3f}':>10}{last:>10.3f}")
    if "meds/rows" in steps[-1]:
        last_step = steps[-1]
        lines.append(
            f"memory: {last_step['meds/rows']:.0f} rollouts of {last_step['meds/prompts']:.0f} prompts in "
            f"{last_step['meds/clusters']:.0f} clusters, {last_step['meds/bytes'] / 1e6:.1f} MB"
        )
    lines += [
        "",
        f"curves   {_command('tensorboard')} --logdir {paths.tensorboard}",
        f"metrics  {paths.metrics}",
        f"policy   {paths.model}",
    ]
    if "meds/rows" in steps[-1]:
        lines.append(f"errors   {_command('meds')} memory inspect {paths.root}")
    return "\n".join(lines)


def _command(name: str) -> str:
    """How the user starts a command of this installation: by its path unless that is on the PATH."""
    beside = Path(sys.executable).with_name(name)
    return name if shutil.which(name) == str(beside) else os.path.relpath(beside)


def _mean(steps: list[dict[str, float]], name: str) -> float | None:
    values = [step[name] for step in steps if name in step]
    return fmean(values) if values else None
