"""Does a penalty for repeats cost task reward? The paper's theorem, checked on random problems and on recorded runs.

The theorem: if responses with more recorded repeats do not score higher, then the KL-regularised update under
r - lambda c has at least the expected task reward of the update under r. The checks:

- random problems: is the identity exact, is the gain never negative under the assumption, and how often is it negative
  without the assumption (with the worst case as a table);
- recorded runs: in how many groups (a prompt's rollouts in a step) does the assumption hold, and what is the gain if q1
  is the group's empirical distribution, r the logged reward and lambda c = min(alpha ln(size + 1), beta), with the
  run's alpha and beta unless --alpha and --beta are given.

    python -m analysis.theorem
    python -m analysis.theorem runs/cpu-meds --eta 1 10 100
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.command_line import Command, Finding
from analysis.gibbs import Floats, gain, gain_by_covariance, gibbs, repeats_score_no_higher
from analysis.gibbs import repeats_score_no_higher_on_average as on_average
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.loader import load_config
from meds_openrlhf.options import Seed, folders, option, positive
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.results.figures import look, panels
from meds_openrlhf.results.tables import markdown, shown
from meds_openrlhf.runs.log import logged_rollouts, prompt_codes
from meds_openrlhf.runs.settings import names_of
from meds_openrlhf.shaping.penalty import cluster_penalty

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("reward", "cluster_size")  # of the log


@dataclass(frozen=True)
class Problem:
    """n responses: ``policy`` p, task ``reward`` r and ``penalty`` lambda c, each (n,), and the update's ``eta``."""

    policy: Floats
    reward: Floats
    penalty: Floats
    eta: float

    @property
    def updated(self) -> Floats:
        """q1, the policy after the update under the task reward alone."""
        return gibbs(self.policy, self.eta * self.reward)

    @property
    def gain(self) -> float:
        """J(q2) - J(q1)."""
        return gain(self.policy, self.reward, self.penalty, self.eta)

    @property
    def identity_error(self) -> float:
        """Difference of the identity's two sides, relative to the largest absolute reward."""
        by_covariance = gain_by_covariance(self.updated, self.reward, self.penalty, self.eta)
        return abs(self.gain - by_covariance) / float(np.abs(self.reward).max())

    @property
    def relative_gain(self) -> float:
        """The gain as a share of the rewards' range."""
        return self.gain / float(np.ptp(self.reward))


Check = dict[str, Any]  # numbers by name


def analyse(
    runs: Annotated[Sequence[Path], folders("folders of runs with a rollout log", "*")] = (),
    problems: Annotated[int, option("number of random problems", "N", type=positive)] = 10_000,
    seed: Seed = 0,
    eta: Annotated[
        Sequence[float], option("sizes of the update: 1 / the weight of the KL term", nargs="+", type=float)
    ] = (1.0, 10.0, 100.0),
    alpha: Annotated[float | None, option("alpha of the penalty (default: each run's)", type=float)] = None,
    beta: Annotated[float | None, option("beta of the penalty (default: each run's)", type=float)] = None,
) -> Finding:
    """Check the theorem on random problems and on the groups of runs."""
    for value in eta:
        if not 0 < value < np.inf:
            raise ConfigError("--eta", value, "must be above 0 and finite.")
    weights = [weights_of(run, alpha, beta) for run in runs]
    generator = np.random.default_rng(seed)
    free = [random_problem(generator) for _ in range(problems)]
    fitting = [random_problem(generator, under_assumption=True) for _ in range(problems)]
    random, worst = check_random(free, fitting), min(free, key=lambda problem: problem.relative_gain)
    checks = [
        check_run(name, logged_rollouts(run, COLUMNS), of_run, eta)
        for name, run, of_run in zip(names_of(runs), runs, weights)
    ]
    text = "\n\n".join([random_lines(random, worst), *([markdown(table_of(checks))] if checks else [])])
    facts = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(worst).items()}
    numbers = {"random": {**random, "worst": facts}, "runs": checks}
    return Finding(text, numbers, draw(free, fitting, checks))


# ── random problems ──


def random_problem(generator: np.random.Generator, *, under_assumption: bool = False) -> Problem:
    """A problem of 2 to 12 responses with random repeats, or with more repeats for lower scores."""
    count = int(generator.integers(2, 13))
    reward = generator.normal(size=count)
    repeats = generator.integers(0, 50, count)
    if under_assumption:
        ranks = np.argsort(np.argsort(reward))
        repeats = np.sort(repeats)[::-1][ranks]
    alpha, eta = generator.uniform(0.01, 1.0), generator.uniform(0.1, 5.0)
    penalty = cluster_penalty(repeats, alpha=alpha, beta=np.inf)
    return Problem(generator.dirichlet(np.ones(count)), reward, penalty, float(eta))


def check_random(free: Sequence[Problem], fitting: Sequence[Problem]) -> Check:
    """Check random problems, and those under the assumption; gains are relative to the rewards' range."""
    violating = [problem for problem in free if not repeats_score_no_higher(problem.reward, problem.penalty)]
    return {
        "problems": len(free),
        "largest_identity_error": max(problem.identity_error for problem in (*free, *fitting)),
        "least_gain_under_assumption": min(problem.relative_gain for problem in fitting),
        "assumption_holds_share": 1 - len(violating) / len(free),
        "negative_share_without": sum(problem.gain < 0 for problem in violating) / max(len(violating), 1),
    }


def random_lines(check: Check, worst: Problem) -> str:
    """The check of random problems in words, and its worst case as a table."""
    second = gibbs(worst.policy, worst.eta * (worst.reward - worst.penalty))
    columns = {"p": worst.policy, "r": worst.reward, "lambda c": worst.penalty, "q1": worst.updated, "q2": second}
    table = pd.DataFrame({name: [f"{value:.3f}" for value in values] for name, values in columns.items()})
    return "\n".join(
        [
            f"{check['problems']} random problems, and as many under the assumption:",
            f"identity: both sides differ by at most {check['largest_identity_error']:.1e} of the largest reward",
            f"under the assumption: the least gain is {check['least_gain_under_assumption']:.1e} of the rewards' range",
            f"repeats at random: the assumption holds in {check['assumption_holds_share']:.1%}; if it fails, "
            f"{check['negative_share_without']:.1%} lose reward",
            f"the worst of them loses {-worst.gain:.3f}, with eta {worst.eta:.2f}:",
            "",
            markdown(table),
        ]
    )


# ── recorded runs ──


def weights_of(run: Path, alpha: float | None, beta: float | None) -> dict[str, float]:
    """The penalty's slope ``alpha`` and maximum ``beta``; None means the run's own value.

    Raises ConfigError if the run's settings are needed, but are missing or use a bonus within the step.
    """
    if alpha is not None and beta is not None:
        return {"alpha": alpha, "beta": beta}
    penalty = load_config(RunPaths(run).config).meds.penalty
    if penalty.scope == "batch":
        hint = "gives a bonus within the step (meds.penalty.scope: batch), not a penalty. Give --alpha and --beta."
        raise ConfigError("RUN", str(run), hint)
    return {"alpha": penalty.alpha if alpha is None else alpha, "beta": penalty.beta if beta is None else beta}


def check_run(name: str, rollouts: pa.Table, weights: dict[str, float], etas: Sequence[float]) -> Check:
    """Check every group of a run's log; ``rollouts`` needs the columns `COLUMNS`.

    "telling" groups differ in rewards and in penalties, all others have a gain of exactly 0. "holds" and
    "holds_on_average" are shares of all groups, "holds_telling" of the telling ones; "prompts_always" is the share of
    prompts with all groups holding. "mean_gain", "least_gain" and "negative" (groups that lose) are by eta.
    Raises ConfigError for a run with one response to each prompt: of one response the theorem holds, but says nothing.
    """
    rows = pd.DataFrame({"step": rollouts["step"].to_numpy(), "prompt": prompt_codes(rollouts)})
    rows["reward"] = rollouts["reward"].to_numpy().astype(np.float64)
    rows["penalty"] = cluster_penalty(rollouts["cluster_size"].to_numpy(), **weights)
    checked = []
    for (_, prompt), group in rows.groupby(["step", "prompt"]):
        reward, penalty = group.reward.to_numpy(), group.penalty.to_numpy()
        uniform = np.full(len(group), 1 / len(group))
        found = {
            "prompt": prompt,
            "size": len(group),
            "holds": repeats_score_no_higher(reward, penalty),
            "on_average": on_average(uniform, reward, penalty),
            "telling": bool(np.ptp(reward) > 0 and np.ptp(penalty) > 0),
        }
        checked.append(found | {f"{eta:g}": gain_by_covariance(uniform, reward, penalty, eta) for eta in etas})
    groups = pd.DataFrame(checked)
    if (groups["size"] == 1).all():
        hint = "has one response to each prompt in a step, but the theorem is about several. Leave the run out."
        raise ConfigError("RUN", name, hint)
    gains, telling = groups[[f"{eta:g}" for eta in etas]], groups.telling
    return {
        "run": name,
        "weights": weights,
        "groups": len(groups),
        "telling": int(telling.sum()),
        "holds": float(groups.holds.mean()),
        "holds_telling": float(groups.holds[telling].mean()) if telling.any() else None,
        "holds_on_average": float(groups.on_average.mean()),
        "prompts_always": float(groups.groupby("prompt").holds.all().mean()),
        "mean_gain": gains.mean().to_dict(),
        "least_gain": gains.min().to_dict(),
        "negative": {eta: int(losing) for eta, losing in (gains[telling] < -1e-12).sum().items()},
    }


def table_of(checks: Sequence[Check]) -> pd.DataFrame:
    """A row per run and eta."""
    header = ["run", "alpha", "beta", "groups", "holds", "on average", "telling", "holds of them", "prompts always"]
    rows = []
    for check in checks:
        shares = {name: shown(check[name], ".1%") for name in check if name.startswith(("holds", "prompts"))}
        row = [check["run"], *(f"{weight:g}" for weight in check["weights"].values()), check["groups"]]
        row += [shares["holds"], shares["holds_on_average"], check["telling"], shares["holds_telling"]]
        for eta, mean in check["mean_gain"].items():
            gains = [f"{mean:+.5f}", f"{check['least_gain'][eta]:+.5f}", check["negative"][eta]]
            rows.append([*row, shares["prompts_always"], eta, *gains])
    return pd.DataFrame(rows, columns=[*header, "eta", "mean gain", "least gain", "losing"])


def draw(free: Sequence[Problem], fitting: Sequence[Problem], checks: Sequence[Check]) -> Figure:
    """Draw the gains of random problems without and with the assumption, and the runs' mean gains over eta."""
    titles = ["gain in task reward on random problems", *(["mean gain over the runs' groups"] if checks else [])]
    figure, grid = panels(titles, width=5.5, height=3.7)
    for number, (label, drawn) in enumerate({"more repeats, lower score": fitting, "repeats at random": free}.items()):
        gains = [problem.gain for problem in drawn]
        grid[0].hist(gains, bins=80, alpha=0.6, label=label, color=look(number)["color"])
    grid[0].axvline(0, color="black", linewidth=1)
    grid[0].set(xlabel="J(q2) - J(q1)", ylabel="problems")
    for number, check in enumerate(checks):
        etas = [float(eta) for eta in check["mean_gain"]]
        grid[1].plot(etas, list(check["mean_gain"].values()), label=check["run"], **look(number))
        grid[1].set(xlabel="eta", xscale="log")
    for axes in grid:
        axes.legend(fontsize="small")
    return figure


main = Command("theorem", __doc__, analyse)

if __name__ == "__main__":
    sys.exit(main())
