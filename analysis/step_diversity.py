"""Within-step diversity: which of two runs answers a question in more different ways, as scored by a language model?

For each question of a step, the judge sees the responses of both runs and scores how varied the reasoning within each
set is, from 1 to 5. The order of the runs is random for each question. From the repository's root:

    python -m analysis.step_diversity runs/meds runs/dapo --judge-url http://localhost:8000/v1 --judge-model NAME
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.command_line import Command, Finding
from analysis.judged import Group, Judging, Numbers, Sizes, Visit, index_groups, mean_and_error, read_groups
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.judge.question import Question, ReplyLine
from meds_openrlhf.judge.settings import JudgeSettings
from meds_openrlhf.options import ResponseCharacters, Seed, folders, option, positive
from meds_openrlhf.runs.settings import names_of
from meds_openrlhf.stats.presentation import look, markdown, panels, shown

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


def analyze(
    runs: Annotated[Sequence[Path], folders("folders of runs with meds.tracking.rollouts: all", 2)],
    judge: JudgeSettings,
    steps: Annotated[
        Sequence[int] | None,
        option(
            f"steps to compare (default: the paper's, {PAPER_STEPS[0]} to {PAPER_STEPS[-1]}, that both runs have)",
            "N",
            nargs="+",
            type=int,
        ),
    ] = None,
    groups: Annotated[int, option("questions per step", "N", type=positive)] = 10,
    answers: Annotated[int, option("maximum responses of each run to a question", "N", type=positive)] = 16,
    nearby: Annotated[int, option("maximum steps between the two runs' visits", "N", type=int)] = 0,
    seed: Seed = 0,
    response_characters: ResponseCharacters = None,
) -> Finding:
    """Let the judge compare up to ``groups`` questions per step, with up to ``answers`` of each run."""
    judging, names = Judging(judge, seed, response_characters), names_of(runs)
    indices = [index_groups(run) for run in runs]
    sizes, notes = [of_run for of_run, _ in indices], [note for _, of_run in indices for note in of_run]
    chosen = steps_to_judge(sizes, steps)
    pairings = draw_pairings(sizes, chosen, groups, nearby, seed)
    if not pairings:
        raise ConfigError("--nearby", nearby, "finds no question that both runs answered twice in a step. Raise it.")
    found = [read_groups(run, [pairing.visit(number) for pairing in pairings]) for number, run in enumerate(runs)]
    wanted, asked = len(set(steps or PAPER_STEPS)), groups * len(chosen)
    if len(chosen) < wanted:
        notes.append(f"{len(chosen)} of {wanted} steps: only these have all texts in both runs.")
    if len(pairings) < asked:
        note = "no others were answered at least twice by both runs within"
        notes.append(f"{len(pairings)} of {asked} questions: {note} {nearby} steps; --nearby widens that.")
    pairs = [[found[run][pairing.visit(run)] for run in (0, 1)] for pairing in pairings]
    drawn = [_draw(judging, pairing, pair, answers) for pairing, pair in zip(pairings, pairs)]
    replies = judging.ask([question for question, _ in drawn], notes)
    comparisons = [
        {**facts, "scores": reply if reply is None or facts["run_shown_first"] == 0 else reply[::-1]}
        for (_, facts), reply in zip(drawn, replies)
    ]
    spans = [summarize(comparisons, first, last) for first, last in spans_of(chosen)]
    whole = summarize(comparisons, chosen[0], chosen[-1])
    numbers = {"runs": names, "spans": spans, "all": whole, "comparisons": comparisons}
    return judging.finding(markdown(table_of(spans, whole, names)), numbers, draw(spans, names))


def steps_to_judge(sizes: Sequence[Sizes], asked: Sequence[int] | None) -> list[int]:
    """The requested steps (default: the paper's) that both runs have. Raises ConfigError if there are none."""
    shared = sorted(set(sizes[0]) & set(sizes[1]))
    steps = [step for step in sorted(set(asked or PAPER_STEPS)) if step in shared]
    if not steps:
        shared_steps = f"{len(shared)} steps, {shared[0]} to {shared[-1]}" if shared else "no step"
        hint = f"are not in both runs, which share the texts of {shared_steps}. Name others."
        wanted = " ".join(map(str, asked)) if asked else f"{PAPER_STEPS[0]} to {PAPER_STEPS[-1]}"
        raise ConfigError("--steps", wanted, hint)
    return steps


def draw_pairings(sizes: Sequence[Sizes], steps: Sequence[int], count: int, nearby: int, seed: int) -> list[Pairing]:
    """Draw up to ``count`` questions per step that each run answered at least twice, at most ``nearby`` steps away.

    The result for a step depends only on the seed, not on the other steps.
    """
    pairings = []
    for step in steps:
        places = [_nearest_visits(of_run, step, nearby) for of_run in sizes]
        shared = sorted(set(places[0]) & set(places[1]))
        chosen = random.Random(f"{seed}-{step}").sample(shared, min(count, len(shared)))
        pairings += [Pairing(step, prompt, (places[0][prompt], places[1][prompt])) for prompt in chosen]
    return pairings


def _nearest_visits(sizes: Sizes, step: int, nearby: int) -> dict[str, int]:
    """For each prompt, the step nearest to ``step`` in which it was answered at least twice."""
    nearest: dict[str, int] = {}
    for other in sorted(sizes, key=lambda other: (abs(other - step), other)):
        if abs(other - step) <= nearby:
            for prompt, size in sizes[other].items():
                if size >= 2:
                    nearest.setdefault(prompt, other)
    return nearest


def _draw(judging: Judging, pairing: Pairing, groups: Sequence[Group], most: int) -> tuple[Question, Numbers]:
    """The question about a pairing, and what is known of it: how many answers of each run are shown, or shortened."""
    generator = random.Random(f"{judging.seed}-{pairing.step}-{pairing.prompt}")
    first = generator.randrange(2)
    pair = (groups[first], groups[1 - first])
    count = min(most, *(len(group.responses) for group in pair))
    responses = pair[0].drawn(count, generator, "set A, answer") | pair[1].drawn(count, generator, "set B, answer")
    question, cut = judging.question(RUBRIC, SCORES, {"question": pair[0].question}, responses)
    return question, {"pairing": asdict(pairing), "answers": count, "shortened": cut, "run_shown_first": first}


def spans_of(steps: Sequence[int]) -> list[tuple[int, int]]:
    """The first and last step of at most `MOST_ROWS` parts of the ascending ``steps``, as even as possible."""
    size = math.ceil(len(steps) / MOST_ROWS)
    parts = [steps[start : start + size] for start in range(0, len(steps), size)]
    return [(part[0], part[-1]) for part in parts]


def summarize(comparisons: Sequence[Numbers], first: int, last: int) -> Numbers:
    """Means over the judged questions of the steps from ``first`` to ``last``, and their standard errors.

    None for no question, or for errors of one.
    """
    chosen = [comparison["scores"] for comparison in comparisons if first <= comparison["pairing"]["step"] <= last]
    judged = [scores for scores in chosen if scores is not None]
    means, errors = zip(*(mean_and_error([scores[run] for scores in judged]) for run in (0, 1)))
    counts = {"first": first, "last": last, "judged": len(judged), "malformed": len(chosen) - len(judged)}
    return {**counts, "means": None if None in means else means, "errors": None if None in errors else errors}


def table_of(spans: Sequence[Numbers], whole: Numbers, names: Sequence[str]) -> pd.DataFrame:
    """A row per span of steps, and a row for all of them."""
    rows = []
    for part in (*spans, whole):
        first, last, means = part["first"], part["last"], part["means"]
        label = "all" if part is whole else str(first) if first == last else f"{first} to {last}"
        scores = [*map(shown, means), shown(means[0] - means[1], "+.2f")] if means else [""] * 3
        rows.append([label, part["judged"], part["malformed"], *scores])
    return pd.DataFrame(rows, columns=["steps", "groups judged", "malformed", *names, "difference"])


def draw(summaries: Sequence[Numbers], names: Sequence[str]) -> Figure:
    """Draw mean scores over the middles of the summaries' steps, a line per run, with standard errors."""
    figure, (axes,) = panels(["within-step diversity"], width=4.5, height=3.2)
    judged = [part for part in summaries if part["means"] is not None]
    steps = [(part["first"] + part["last"]) / 2 for part in judged]
    for run, name in enumerate(names):
        means = [part["means"][run] for part in judged]
        errors = [part["errors"][run] if part["errors"] else 0.0 for part in judged]
        axes.errorbar(steps, means, yerr=errors, label=name, capsize=2, **look(run))
    axes.set(xlabel="step", ylabel="score (1 to 5)", ylim=(0.9, 5.1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    return figure


main = Command("step_diversity", __doc__, analyze)

if __name__ == "__main__":
    sys.exit(main())
