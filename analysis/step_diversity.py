"""Within-step diversity: which of two runs answers one question in more different ways, in the eyes of a judge?

For each question of a step, the judge sees the responses of both runs and scores how varied the reasoning within each
set is, from 1 to 5. The order of the runs is random for each question. From the repository's root:

    python -m analysis.step_diversity runs/meds runs/dapo --judge-url http://localhost:8000/v1 --judge-model NAME
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.command_line import add_drawing_arguments, exit_code_of, positive
from analysis.groups import Group, GroupIndex, Visit, index_groups, read_groups
from analysis.judge.client import Answer, JudgeClient, cost_line, judged_by
from analysis.judge.question import Question, ReplyLine, shortened, tagged
from analysis.judge.settings import add_judge_arguments, judge_settings
from analysis.results import add_result_arguments, write_numbers
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.report.output import markdown_table, shown, write_figure
from meds_openrlhf.runs.settings import names_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_STEPS = range(21, 101)  # the first epoch, which only fills the memory, comes before
MOST_ROWS = 10  # of the table and the figure
SCORES = (ReplyLine("SCORE A", 1, 5), ReplyLine("SCORE B", 1, 5))
RUBRIC = """\
You are given one mathematics question and two sets of answers to it, set A and set B. Score each set by itself: how \
diverse are the answers inside that set? Look at three things: whether they come to the same final answer, whether \
they use the same method or strategy, and whether they differ in correctness or in the quality of their reasoning. \
Wording, notation, layout and length do not count.

1: nearly identical: the same reasoning and the same final answer, in other words.
2: mostly alike: one approach, with small variations in steps or details.
3: moderately diverse: some answers take a noticeably different approach, or differ in quality.
4: highly diverse: clearly different methods, or some answers right and others wrong.
5: extremely diverse: entirely different in approach, quality or conclusion."""


@dataclass(frozen=True)
class Pairing:
    """A question, and the steps in which the two runs answered it; ``step`` is the requested step."""

    step: int
    prompt: str
    steps: tuple[int, int]

    def visit(self, run: int) -> Visit:
        """The step and prompt of the run's group."""
        return self.steps[run], self.prompt


@dataclass(frozen=True)
class Comparison:
    """The two scores of a question, in the order of the runs; None if the judge's replies were malformed."""

    pairing: Pairing
    answers: int  # number of answers shown per run
    shortened: int  # number of shortened answers
    run_shown_first: int
    scores: Answer | None


@dataclass(frozen=True)
class Summary:
    """Means over the judged questions of the steps from ``first`` to ``last``; None if there are no questions."""

    first: int
    last: int
    judged: int
    malformed: int
    means: tuple[float, float] | None
    errors: tuple[float, float] | None  # standard errors of the means; None for fewer than two questions


def steps_to_judge(indices: Sequence[GroupIndex], asked: Sequence[int] | None) -> list[int]:
    """The requested steps (default: the paper's) that both runs have. Raises ConfigError if there are none."""
    shared = sorted(set(indices[0].sizes) & set(indices[1].sizes))
    steps = [step for step in sorted(set(asked or PAPER_STEPS)) if step in shared]
    if not steps:
        shared_steps = f"{len(shared)} steps, {shared[0]} to {shared[-1]}" if shared else "no step"
        hint = f"are not in both runs, which share the texts of {shared_steps}. Name others."
        wanted = " ".join(map(str, asked)) if asked else f"{PAPER_STEPS[0]} to {PAPER_STEPS[-1]}"
        raise ConfigError("--steps", wanted, hint)
    return steps


def draw_pairings(
    indices: Sequence[GroupIndex], steps: Sequence[int], count: int, nearby: int, seed: int
) -> list[Pairing]:
    """Draw up to ``count`` questions per step that each run answered at least twice, at most ``nearby`` steps away.

    The result for a step depends only on the seed, not on the other steps.
    """
    pairings = []
    for step in steps:
        places = [_nearest_visits(index, step, nearby) for index in indices]
        shared = sorted(set(places[0]) & set(places[1]))
        chosen = random.Random(f"{seed}-{step}").sample(shared, min(count, len(shared)))
        pairings += [Pairing(step, prompt, (places[0][prompt], places[1][prompt])) for prompt in chosen]
    return pairings


def _nearest_visits(index: GroupIndex, step: int, nearby: int) -> dict[str, int]:
    """For each prompt, the step nearest to ``step`` in which it was answered at least twice."""
    nearest: dict[str, int] = {}
    for other in sorted(index.sizes, key=lambda other: (abs(other - step), other)):
        if abs(other - step) <= nearby:
            for prompt, size in index.sizes[other].items():
                if size >= 2:
                    nearest.setdefault(prompt, other)
    return nearest


def ask(
    client: JudgeClient, pairings: Sequence[Pairing], groups: Sequence[dict[Visit, Group]], settings: argparse.Namespace
) -> list[Comparison]:
    """Let the judge score both groups of every pairing. ``groups`` are those of the first and the second run."""
    drawn = [_draw(pairing, groups, settings) for pairing in pairings]
    answers = client.ask_all([question for question, _ in drawn])
    return [_undo_order(comparison, answer) for (_, comparison), answer in zip(drawn, answers)]


def _draw(
    pairing: Pairing, groups: Sequence[dict[Visit, Group]], settings: argparse.Namespace
) -> tuple[Question, Comparison]:
    """The question about a pairing, and the comparison without its scores."""
    generator = random.Random(f"{settings.seed}-{pairing.step}-{pairing.prompt}")
    first = generator.randrange(2)
    pair = [groups[run][pairing.visit(run)] for run in (first, 1 - first)]
    count = min(settings.answers, *(len(group.responses) for group in pair))
    sets = [group.drawn(count, generator) for group in pair]
    limit = settings.response_characters
    material = [tagged("question", pair[0].question)]
    for letter, responses in zip("AB", sets):
        material += [
            tagged(f"set {letter}, answer {number}", shortened(text, limit)) for number, text in enumerate(responses, 1)
        ]
    cut = sum(limit is not None and len(text) > limit for responses in sets for text in responses)
    return Question(RUBRIC, "\n\n".join(material), SCORES), Comparison(pairing, count, cut, first, None)


def _undo_order(comparison: Comparison, answer: Answer | None) -> Comparison:
    """The comparison with the scores of A and B in the order of the runs."""
    scores = answer if answer is None or comparison.run_shown_first == 0 else answer[::-1]
    return Comparison(comparison.pairing, comparison.answers, comparison.shortened, comparison.run_shown_first, scores)


def spans_of(steps: Sequence[int]) -> list[tuple[int, int]]:
    """The first and last step of at most `MOST_ROWS` parts of the ascending ``steps``, as even as possible."""
    size = math.ceil(len(steps) / MOST_ROWS)
    parts = [steps[start : start + size] for start in range(0, len(steps), size)]
    return [(part[0], part[-1]) for part in parts]


def summarize(comparisons: Sequence[Comparison], first: int, last: int) -> Summary:
    """Summarize the comparisons of the steps from ``first`` to ``last``."""
    chosen = [comparison for comparison in comparisons if first <= comparison.pairing.step <= last]
    scores = [comparison.scores for comparison in chosen if comparison.scores is not None]
    columns = list(zip(*scores))
    means = errors = None
    if scores:
        means = (statistics.fmean(columns[0]), statistics.fmean(columns[1]))
    if len(scores) > 1:
        errors = (_standard_error(columns[0]), _standard_error(columns[1]))
    return Summary(first, last, len(scores), len(chosen) - len(scores), means, errors)


def _standard_error(values: Sequence[int]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def table(spans: Sequence[Summary], whole: Summary, names: Sequence[str]) -> str:
    """A row per span of steps, and a row for all of them."""
    rows = []
    for part in (*spans, whole):
        means = part.means or (None, None)
        difference = None if part.means is None else part.means[0] - part.means[1]
        span = str(part.first) if part.first == part.last else f"{part.first} to {part.last}"
        label = "all" if part is whole else span
        rows.append([label, str(part.judged), str(part.malformed), *map(shown, means), shown(difference, "+.2f")])
    return markdown_table(["steps", "groups judged", "malformed", *names, "difference"], rows)


def draw_figure(summaries: Sequence[Summary], names: Sequence[str]) -> Figure:
    """Draw mean scores over the middles of the summaries' steps, a line per run, with standard errors."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from meds_openrlhf.evaluation.curves import COLORS, MARKERS

    figure = Figure(figsize=(4.5, 3.2))
    axes = figure.subplots()
    judged = [((part.first + part.last) / 2, part.means, part.errors) for part in summaries if part.means is not None]
    steps = [step for step, _, _ in judged]
    for run, name in enumerate(names):
        means = [means[run] for _, means, _ in judged]
        errors = [errors[run] if errors else 0.0 for _, _, errors in judged]
        axes.errorbar(steps, means, yerr=errors, label=name, color=COLORS[run], marker=MARKERS[run], capsize=2)
    axes.set(xlabel="step", ylabel="within-step diversity (1 to 5)", ylim=(0.9, 5.1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.legend(frameon=False)
    return figure


def numbers(
    spans: Sequence[Summary], whole: Summary, comparisons: Sequence[Comparison], names: Sequence[str]
) -> dict[str, object]:
    """All numbers of the table and the scores that they come from."""
    return {
        "runs": list(names),
        "spans": [asdict(span) for span in spans],
        "all": asdict(whole),
        "comparisons": [asdict(comparison) for comparison in comparisons],
    }


def shortfalls(
    indices: Sequence[GroupIndex], steps: Sequence[int], pairings: Sequence[Pairing], settings: argparse.Namespace
) -> list[str]:
    """Messages about missing steps, questions and texts."""
    lines = [index.note for index in indices if index.note]
    wanted = set(settings.steps or PAPER_STEPS)
    if len(steps) < len(wanted):
        lines.append(f"{len(steps)} of {len(wanted)} steps: both runs have no others with all texts.")
    asked = settings.groups * len(steps)
    if len(pairings) < asked:
        lines.append(
            f"{len(pairings)} of {asked} questions: no others were answered at least twice by both runs within "
            f"{settings.nearby} steps; --nearby widens that."
        )
    return lines


def parse_arguments(command_line: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.step_diversity", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "runs", nargs=2, type=Path, metavar="RUN", help="folders of runs with meds.tracking.rollouts: all"
    )
    parser.add_argument(
        "--steps",
        type=int,
        nargs="+",
        metavar="N",
        help=f"default: the paper's that both runs have, of {PAPER_STEPS[0]} to {PAPER_STEPS[-1]}",
    )
    parser.add_argument("--groups", type=positive, default=10, metavar="N", help="questions per step; default: 10")
    parser.add_argument(
        "--answers", type=positive, default=16, metavar="N", help="of each run to a question; default: 16, or all"
    )
    parser.add_argument(
        "--nearby", type=int, default=0, metavar="N", help="how many steps away a question may have been; default: 0"
    )
    add_drawing_arguments(parser)
    add_result_arguments(parser, "step-diversity")
    add_judge_arguments(parser)
    return parser.parse_args(command_line)


def compare(arguments: argparse.Namespace) -> None:
    """Draw the questions, ask the judge, print the table, and write the figure and the numbers."""
    settings, names = judge_settings(arguments), names_of(arguments.runs)
    client = JudgeClient(settings)
    indices = [index_groups(run) for run in arguments.runs]
    steps = steps_to_judge(indices, arguments.steps)
    pairings = draw_pairings(indices, steps, arguments.groups, arguments.nearby, arguments.seed)
    if not pairings:
        hint = "finds no question that both runs answered twice in a step. Raise it."
        raise ConfigError("--nearby", arguments.nearby, hint)
    groups = [read_groups(run, [pairing.visit(i) for pairing in pairings]) for i, run in enumerate(arguments.runs)]
    for line in shortfalls(indices, steps, pairings, arguments):
        print(line, file=sys.stderr)
    comparisons = ask(client, pairings, groups, arguments)
    spans = [summarize(comparisons, first, last) for first, last in spans_of(steps)]
    whole = summarize(comparisons, steps[0], steps[-1])
    print(
        table(spans, whole, names),
        f"\n{cost_line(client, settings, sum(one.shortened for one in comparisons))}",
        sep="\n",
    )
    figures = numbers(spans, whole, comparisons, names)
    write_numbers({**figures, "seed": arguments.seed, "judge": judged_by(settings)}, arguments.json)
    write_figure(draw_figure(spans, names), arguments.figure)


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    arguments = parse_arguments(command_line)
    return exit_code_of(lambda: compare(arguments))


if __name__ == "__main__":
    sys.exit(main())
