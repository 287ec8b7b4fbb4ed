"""The theorem on recorded runs: in how many groups does its assumption hold, and what is the gain?

A group is a prompt's rollouts in a step. q1 is its empirical distribution, r the logged reward, and lambda c =
min(alpha ln(size + 1), beta), with the run's alpha and beta.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from analysis.gibbs import Floats, gain_by_covariance, repeats_score_no_higher, repeats_score_no_higher_on_average
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.loader import load_config
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report.output import markdown_table
from meds_openrlhf.runs.log import place_key, prompt_codes
from meds_openrlhf.shaping.penalty import cluster_penalty

COLUMNS = ("reward", "cluster_size")  # of the log


@dataclass(frozen=True)
class PenaltyWeights:
    """The penalty's slope ``alpha`` and maximum ``beta``."""

    alpha: float
    beta: float


@dataclass(frozen=True)
class RunCheck:
    """A run's groups; ``telling`` groups differ in rewards and in penalties, all others have a gain of exactly 0.

    ``holds`` and ``holds_on_average`` are shares of all groups, ``holds_telling`` is a share of the telling groups, and
    ``prompts_always`` is the share of prompts with all groups holding. ``mean_gain``, ``least_gain`` and ``negative``
    (the number of groups that lose) are by eta.
    """

    run: str
    weights: PenaltyWeights
    groups: int
    telling: int
    holds: float
    holds_telling: float | None
    holds_on_average: float
    prompts_always: float
    mean_gain: dict[str, float]
    least_gain: dict[str, float]
    negative: dict[str, int]


def weights_of(run: Path, alpha: float | None, beta: float | None) -> PenaltyWeights:
    """The weights ``alpha`` and ``beta``; None means the run's own value.

    Raises ConfigError if the run's settings are needed, but are missing or use a bonus within the step.
    """
    if alpha is not None and beta is not None:
        return PenaltyWeights(alpha, beta)
    config = RunPaths(run).config
    if not config.exists():
        raise ConfigError("RUN", str(run), "has no config.yaml with its penalty. Give --alpha and --beta.")
    penalty = load_config(config).meds.penalty
    if penalty.scope == "batch":
        hint = "gives a bonus within the step (meds.penalty.scope: batch), not a penalty. Give --alpha and --beta."
        raise ConfigError("RUN", str(run), hint)
    return PenaltyWeights(penalty.alpha if alpha is None else alpha, penalty.beta if beta is None else beta)


def recorded_groups(rollouts: pa.Table, weights: PenaltyWeights) -> Iterator[tuple[int, Floats, Floats]]:
    """Yield the prompt's number, rewards (n,) and penalties (n,) of each group in the log."""
    prompts = prompt_codes(rollouts)
    penalty = cluster_penalty(rollouts["cluster_size"].to_numpy(), alpha=weights.alpha, beta=weights.beta)
    reward = rollouts["reward"].to_numpy().astype(np.float64)
    group = place_key(rollouts["step"].to_numpy(), prompts)
    order = np.argsort(group, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        yield int(prompts[rows[0]]), reward[rows], penalty[rows]


def check_run(name: str, rollouts: pa.Table, weights: PenaltyWeights, etas: Sequence[float]) -> RunCheck:
    """Check every group of a run's log; ``rollouts`` needs the columns `COLUMNS`.

    Raises ConfigError for a run with one response to each prompt: of one response the theorem holds, but says nothing.
    """
    groups = list(recorded_groups(rollouts, weights))
    if all(len(reward) == 1 for _, reward, _ in groups):
        hint = "has one response to each prompt in a step, but the theorem is about several. Leave the run out."
        raise ConfigError("RUN", name, hint)
    uniform = [np.full(len(reward), 1 / len(reward)) for _, reward, _ in groups]
    holds = np.array([repeats_score_no_higher(reward, penalty) for _, reward, penalty in groups])
    average = [repeats_score_no_higher_on_average(q, r, c) for q, (_, r, c) in zip(uniform, groups)]
    telling = np.array([np.ptp(reward) > 0 and np.ptp(penalty) > 0 for _, reward, penalty in groups])
    gains = {
        f"{eta:g}": np.array([gain_by_covariance(q, r, c, eta) for q, (_, r, c) in zip(uniform, groups)])
        for eta in etas
    }
    prompts = {prompt for prompt, _, _ in groups}
    failing = {prompt for (prompt, _, _), fits in zip(groups, holds) if not fits}
    return RunCheck(
        run=name,
        weights=weights,
        groups=len(groups),
        telling=int(telling.sum()),
        holds=float(holds.mean()),
        holds_telling=float(holds[telling].mean()) if telling.any() else None,
        holds_on_average=float(np.mean(average)),
        prompts_always=1 - len(failing) / len(prompts),
        mean_gain={eta: float(values.mean()) for eta, values in gains.items()},
        least_gain={eta: float(values.min()) for eta, values in gains.items()},
        negative={eta: int((values[telling] < -1e-12).sum()) for eta, values in gains.items()},
    )


def table_of(checks: Sequence[RunCheck]) -> str:
    """A row per run and eta."""
    rows = [
        [
            check.run,
            f"{check.weights.alpha:g}",
            f"{check.weights.beta:g}",
            str(check.groups),
            f"{check.holds:.1%}",
            f"{check.holds_on_average:.1%}",
            str(check.telling),
            "" if check.holds_telling is None else f"{check.holds_telling:.1%}",
            f"{check.prompts_always:.1%}",
            eta,
            f"{check.mean_gain[eta]:+.5f}",
            f"{check.least_gain[eta]:+.5f}",
            str(check.negative[eta]),
        ]
        for check in checks
        for eta in check.mean_gain
    ]
    of = ("run", "alpha", "beta", "groups", "holds", "on average", "telling", "holds of them", "prompts always")
    return markdown_table((*of, "eta", "mean gain", "least gain", "losing"), rows)
