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

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from analysis.command_line import exit_code_of
from analysis.gibbs import Floats, gain, gain_by_covariance, gibbs, repeats_score_no_higher
from analysis.recorded_groups import COLUMNS, RunCheck, check_run, table_of, weights_of
from analysis.results import add_result_arguments, write_numbers
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.report.output import markdown_table, write_figure
from meds_openrlhf.runs.log import logged_rollouts
from meds_openrlhf.runs.settings import names_of
from meds_openrlhf.shaping.penalty import cluster_penalty

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    def assumption_holds(self) -> bool:
        """Whether responses with more repeats score no higher."""
        return repeats_score_no_higher(self.reward, self.penalty)


@dataclass(frozen=True)
class RandomCheck:
    """Results for ``problems`` with random repeats and as many under the assumption; gains relative to reward range."""

    problems: int
    largest_identity_error: float
    least_gain_under_assumption: float
    assumption_holds_share: float
    negative_share_without: float
    worst: Problem


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


def check_random(problems: int, seed: int) -> RandomCheck:
    """Check the theorem on ``problems`` random problems of each sort."""
    generator = np.random.default_rng(seed)
    free = [random_problem(generator) for _ in range(problems)]
    fitting = [random_problem(generator, under_assumption=True) for _ in range(problems)]
    violating = [problem for problem in free if not problem.assumption_holds]
    worst = min(free, key=_relative_gain)
    return RandomCheck(
        problems=problems,
        largest_identity_error=max(problem.identity_error for problem in (*free, *fitting)),
        least_gain_under_assumption=min(_relative_gain(problem) for problem in fitting),
        assumption_holds_share=1 - len(violating) / problems,
        negative_share_without=sum(problem.gain < 0 for problem in violating) / max(len(violating), 1),
        worst=worst,
    )


def random_lines(check: RandomCheck) -> str:
    """The check of random problems in words, and its worst case as a table."""
    worst = check.worst
    rows = zip(worst.policy, worst.reward, worst.penalty, worst.updated)
    second = gibbs(worst.policy, worst.eta * (worst.reward - worst.penalty))
    cells = [[f"{value:.3f}" for value in (*row, last)] for row, last in zip(rows, second)]
    return "\n".join(
        [
            f"{check.problems} random problems, and as many under the assumption:",
            f"identity: both sides differ by at most {check.largest_identity_error:.1e} of the largest reward",
            f"under the assumption: the least gain is {check.least_gain_under_assumption:.1e} of the rewards' range",
            f"repeats at random: the assumption holds in {check.assumption_holds_share:.1%}; if it fails, "
            f"{check.negative_share_without:.1%} lose reward",
            f"the worst of them loses {-worst.gain:.3f}, with eta {worst.eta:.2f}:",
            "",
            markdown_table(("p", "r", "lambda c", "q1", "q2"), cells),
        ]
    )


def draw(problems: int, seed: int, checks: Sequence[RunCheck]) -> Figure:
    """Draw the gains of random problems with and without the assumption, and the runs' mean gains over eta."""
    from matplotlib.figure import Figure

    generator = np.random.default_rng(seed)
    figure = Figure(figsize=(11, 4) if checks else (6, 4), layout="constrained")
    left, *right = figure.subplots(1, 2 if checks else 1, squeeze=False)[0]
    for under, label in ((True, "more repeats, lower score"), (False, "repeats at random")):
        gains = [random_problem(generator, under_assumption=under).gain for _ in range(problems)]
        left.hist(gains, bins=80, alpha=0.6, label=label)
    left.axvline(0, color="black", linewidth=1)
    left.set(title="gain in task reward on random problems", xlabel="J(q2) - J(q1)", ylabel="problems")
    left.legend(fontsize="small")
    for axes in right:
        for entry in checks:
            axes.plot([float(eta) for eta in entry.mean_gain], list(entry.mean_gain.values()), "o-", label=entry.run)
        axes.set(title="mean gain over the runs' groups", xlabel="eta", xscale="log")
        axes.legend(fontsize="small")
    return figure


def _relative_gain(problem: Problem) -> float:
    return problem.gain / float(np.ptp(problem.reward))


def parse_arguments(command_line: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m analysis.theorem", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", metavar="RUN", nargs="*", type=Path, help="folders of runs with a log of rollouts")
    parser.add_argument("--problems", type=int, default=10_000, help="random problems; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the random problems; default: %(default)s")
    hint = "how far the update goes, 1 over the weight of the KL term; default: 1 10 100"
    parser.add_argument("--eta", type=float, nargs="+", default=[1.0, 10.0, 100.0], help=hint)
    parser.add_argument("--alpha", type=float, help="of the penalty; default: what each run's config.yaml says")
    parser.add_argument("--beta", type=float, help="of the penalty; default: what each run's config.yaml says")
    add_result_arguments(parser, "theorem")
    return parser.parse_args(command_line)


def check(arguments: argparse.Namespace) -> None:
    """Print the results, and write the figure and the numbers."""
    if arguments.problems < 1:
        raise ConfigError("--problems", arguments.problems, "must be at least 1.")
    for eta in arguments.eta:
        if not 0 < eta < np.inf:
            raise ConfigError("--eta", eta, "must be above 0 and finite.")
    weights = [weights_of(run, arguments.alpha, arguments.beta) for run in arguments.runs]
    found = check_random(arguments.problems, arguments.seed)
    print(random_lines(found))
    checks = [
        check_run(name, logged_rollouts(run, COLUMNS), run_weights, arguments.eta)
        for name, run, run_weights in zip(names_of(arguments.runs), arguments.runs, weights)
    ]
    if checks:
        print("", table_of(checks), sep="\n")
    write_figure(draw(arguments.problems, arguments.seed, checks), arguments.figure)
    worst = {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(found.worst).items()
    }
    numbers = {"random": {**asdict(found), "worst": worst}, "runs": [asdict(entry) for entry in checks]}
    write_numbers(numbers, arguments.json)


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    arguments = parse_arguments(command_line)
    return exit_code_of(lambda: check(arguments))


if __name__ == "__main__":
    sys.exit(main())
