"""A run's metrics over its steps, as columns for curves and as a comparison of first and last steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.tracking.step_log import StepLog

DIGITS = 6  # significant digits of a value
WINDOW = 5  # number of first and of last steps that are averaged
SUMMARY = (
    ("reward, raw", ("meds/reward_raw", "rollout/reward_mean"), "number"),
    ("reward, shaped", ("meds/reward_shaped",), "number"),
    ("pass@1 of the rollouts", ("meds/accuracy",), "share"),
    ("penalty, mean", ("meds/penalty_mean",), "number"),
    ("rollouts penalized", ("meds/penalized_share",), "share"),
    ("noise among stored rows", ("meds/noise_share",), "share"),
    ("top-1 eigen ratio, step", ("meds/eigen_ratio_step",), "number"),
    ("top-1 eigen ratio, all", ("meds/eigen_ratio_all",), "number"),
    ("entropy", ("policy_entropy", "entropy_loss", "entropy"), "number"),
    ("KL", ("kl",), "number"),
    ("response length, tokens", ("rollout/response_length_mean", "response_length"), "number"),
    ("responses cut off", ("rollout/truncated_rate", "truncated"), "share"),
    ("responses without an answer", ("rollout/unanswered_rate",), "share"),
    ("seconds per step", ("timing/step_total",), "number"),
)


@dataclass(frozen=True)
class History:
    """Metrics by name, with a value for each of ``steps``, or None. ``every`` is the number of steps per point."""

    steps: list[int]
    columns: dict[str, list[float | None]]
    every: int = 1


def read_lines(path: Path) -> list[dict[str, float]]:
    """The complete lines of a metrics log. Raises ConfigError if a line is not a JSON object with a step."""
    try:
        lines = StepLog(path).read()
    except FileNotFoundError:  # removed since StepLog looked for it
        return []
    except IsADirectoryError as error:
        raise ConfigError("RUN", str(path), "is a folder, but must be a file. Move it away.") from error
    except ValueError as error:
        raise ConfigError("RUN", str(path), f"has a line that is not JSON ({error}). Remove that line.") from error
    if not all(isinstance(line, dict) and isinstance(line.get("step"), int) for line in lines):
        raise ConfigError("RUN", str(path), "has a line without a step. Remove that line.")
    return lines


def history_of(lines: list[dict[str, float]], most: int) -> History:
    """Columns of at most ``most`` points; if there are more steps, each point is the mean of several."""
    names = sorted({name for line in lines for name, value in line.items() if _is_number(value)} - {"step"})
    every = max(-(-len(lines) // most), 1)
    steps = [int(lines[min(end, len(lines)) - 1]["step"]) for end in range(every, len(lines) + every, every)]
    columns = {}
    for name in names:
        values = np.array([_finite(line.get(name)) for line in lines], dtype=np.float64)
        columns[name] = [_rounded(value) for value in _means(values, every).tolist()]
    return History(
        steps, {name: column for name, column in columns.items() if any(v is not None for v in column)}, every
    )


def summary_of(lines: list[dict[str, float]]) -> list[tuple[str, float | None, float | None, str]]:
    """Title, mean of the first steps, mean of the last steps, and number format of each metric that the run has."""
    rows = []
    for title, names, kind in SUMMARY:
        name = next((name for name in names if any(_is_number(line.get(name)) for line in lines)), None)
        if name is not None:
            rows.append((title, _mean(lines[:WINDOW], name), _mean(lines[-WINDOW:], name), kind))
    return rows


def _means(values: NDArray[np.float64], every: int) -> NDArray[np.float64]:
    """Means (ceil(n / every),) of the finite ``values`` (n,) in each bucket; NaN if a bucket has none."""
    if every == 1:
        return values
    starts = np.arange(0, len(values), every)
    known = np.isfinite(values)
    sums, counts = np.add.reduceat(np.where(known, values, 0.0), starts), np.add.reduceat(known.astype(int), starts)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _mean(lines: list[dict[str, float]], name: str) -> float | None:
    values = [value for value in (_finite(line.get(name)) for line in lines) if not math.isnan(value)]
    return _rounded(fmean(values)) if values else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _finite(value: object) -> float:
    return float(value) if _is_number(value) and math.isfinite(value) else math.nan  # type: ignore[arg-type]


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.{DIGITS}g}")
