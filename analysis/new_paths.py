"""Across-step diversity: does a run find ways to reason that it lacked an epoch earlier, as scored by a language model?

A prompt is visited once per epoch. The judge sees a few responses of a visit and a few of the next visit, and scores
the later responses 1, 2 or 3 for no, one, or at least two new reasoning paths. Pairs of steps are drawn, and prompts of
each; for several runs, the judge sees the same visits to the same prompts. From the repository's root:

    python -m analysis.new_paths runs/meds runs/dapo --judge-url http://localhost:8000/v1 --judge-model NAME
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import pandas as pd
from matplotlib.figure import Figure

from analysis.command_line import Command, Finding
from analysis.judged import Group, Judging, Numbers, Sizes, index_groups, mean_and_error, read_groups
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.judge.question import Question, ReplyLine
from meds_openrlhf.judge.settings import JudgeSettings
from meds_openrlhf.options import ResponseCharacters, Seed, folders, option, positive
from meds_openrlhf.runs.settings import names_of
from meds_openrlhf.stats.presentation import markdown, panels, shown

MEANINGS = {1: "no new path", 2: "one", 3: "two or more"}
SCORE = (ReplyLine("SCORE", min(MEANINGS), max(MEANINGS)),)
LONGEST_GAP = 1.5  # times the run's median gap: excludes prompts that were left out of an epoch
RUBRIC = """\
You are given one mathematics question, earlier answers to it and later answers to it, by the same model at two stages \
of its training. How many reasoning paths do the later answers hold that none of the earlier ones holds? A reasoning \
path is a way to get to a result: the idea, the model or theorem it rests on, the order of the deductions. Other \
wording, notation, layout, length or numbers along the same way are no new path, and whether the result is right does \
not count. Two later answers that share a new path count once.

1: no new reasoning path.
2: one new reasoning path.
3: two or more new reasoning paths."""

Return = tuple[str, int]  # (prompt, number of a visit, from 0): that visit and the next
Steps = tuple[int, int]  # of these two visits


def analyze(
    runs: Annotated[Sequence[Path], folders("folders of runs with meds.tracking.rollouts: all")],
    judge: JudgeSettings,
    pairs: Annotated[int, option("pairs of steps", "N", type=positive)] = 21,
    groups: Annotated[int, option("prompts per pair", "N", type=positive)] = 10,
    answers: Annotated[int, option("responses compared per visit", "N", type=positive)] = 3,
    seed: Seed = 0,
    response_characters: ResponseCharacters = None,
) -> Finding:
    """Let the judge score ``groups`` prompts of each of ``pairs`` pairs of steps, with ``answers`` of each visit."""
    judging = Judging(judge, seed, response_characters)
    returns, notes = find_returns(runs, pairs, groups, seed)
    asked = [
        (name, earlier, later, *_question(judging, earlier, later, answers))
        for name, found in returns.items()
        for earlier, later in found
    ]
    replies = judging.ask([question for *_, question, _ in asked], notes)
    judgments = [
        {
            **{"run": name, "prompt": earlier.prompt, "earlier_step": earlier.step, "later_step": later.step},
            **{"shortened": cut, "score": reply and reply[0]},
        }
        for (name, earlier, later, _, cut), reply in zip(asked, replies)
    ]
    summaries = [summarize(name, judgments) for name in returns]
    numbers = {"runs": summaries, "pairs": judgments}
    return judging.finding(markdown(table_of(summaries)), numbers, draw(summaries))


def find_returns(
    runs: Sequence[Path], pairs: int, prompts: int, seed: int
) -> tuple[dict[str, list[tuple[Group, Group]]], list[str]]:
    """The (earlier, later) groups by each run's name, and what is missing. Raises ConfigError if there are none."""
    indices = [index_groups(run) for run in runs]
    places = [returns_to_prompts(sizes) for sizes, _ in indices]
    drawn = draw_returns(places, pairs, prompts, seed)
    keys = [key for keys in drawn for key in keys]
    if not keys:
        hint = "share no prompt that returned in a later epoch. Give runs of at least two epochs."
        raise ConfigError("RUN", " ".join(map(str, runs)), hint)
    notes = [note for _, of_run in indices for note in of_run]
    if len(keys) < pairs * prompts:
        counts = f"{len(keys)} of {pairs * prompts} prompts, in {len(drawn)} pairs of steps"
        notes.append(f"{counts}: no more came back in all runs.")
    returns = {}
    for name, run, place in zip(names_of(runs), runs, places):
        visits = [((place[key][0], key[0]), (place[key][1], key[0])) for key in keys]
        found = read_groups(run, [visit for both in visits for visit in both])
        returns[name] = [(found[earlier], found[later]) for earlier, later in visits]
    return returns, notes


def returns_to_prompts(sizes: Sizes) -> dict[Return, Steps]:
    """The steps of each visit to a prompt and of the next visit, if they are about an epoch apart."""
    visits: dict[str, list[int]] = {}
    for step in sorted(sizes):
        for prompt in sizes[step]:
            visits.setdefault(prompt, []).append(step)
    found = {(prompt, number): pair for prompt, steps in visits.items() for number, pair in enumerate(pairwise(steps))}
    if not found:
        return {}
    epoch = statistics.median(later - earlier for earlier, later in found.values())
    return {key: pair for key, pair in found.items() if pair[1] - pair[0] <= LONGEST_GAP * epoch}


def draw_returns(places: Sequence[dict[Return, Steps]], pairs: int, prompts: int, seed: int) -> list[list[Return]]:
    """Draw up to ``prompts`` of the returns that all runs have for each of up to ``pairs`` pairs of steps.

    The steps are those of the first run. Pairs with enough prompts come first; the result depends only on the seed.
    """
    generator = random.Random(f"{seed}-returns")
    found: dict[Steps, list[Return]] = {}
    for key in sorted(set.intersection(*(set(place) for place in places))):
        found.setdefault(places[0][key], []).append(key)
    shuffled = generator.sample(sorted(found), len(found))
    fullest = sorted(shuffled, key=lambda steps: -min(len(found[steps]), prompts))
    return [generator.sample(found[steps], min(prompts, len(found[steps]))) for steps in fullest[:pairs]]


def _question(judging: Judging, earlier: Group, later: Group, most: int) -> tuple[Question, int]:
    """The question about a return, and the number of shortened answers in it."""
    generator = random.Random(f"{judging.seed}-{earlier.prompt}-{earlier.step}-{later.step}")
    responses = earlier.drawn(most, generator, "earlier answer")
    responses |= later.drawn(most, generator, "later answer")
    return judging.question(RUBRIC, SCORE, {"question": later.question}, responses)


def summarize(run: str, judgments: Sequence[Numbers]) -> Numbers:
    """A run's number of judgments per score, their mean and its standard error, None if there are too few."""
    of_run = [judgment["score"] for judgment in judgments if judgment["run"] == run]
    scores = [score for score in of_run if score is not None]
    mean, error = mean_and_error(scores)
    counts = [scores.count(score) for score in MEANINGS]
    judged = {"run": run, "judged": len(scores), "malformed": len(of_run) - len(scores)}
    return {**judged, "counts": counts, "mean": mean, "error": error}


def table_of(summaries: Sequence[Numbers]) -> pd.DataFrame:
    """A row per run."""
    rows = []
    for *start, counts, mean, error in (summary.values() for summary in summaries):
        rows.append([*start, *counts, shown(mean), shown(error)])
    header = ["run", "judged", "malformed", *MEANINGS.values(), "mean score", "standard error"]
    return pd.DataFrame(rows, columns=header)


def draw(summaries: Sequence[Numbers]) -> Figure:
    """Draw a bar per run with the shares of its scores, and its mean score at the end."""
    figure, (axes,) = panels([""], width=5.0, height=0.9 + 0.45 * len(summaries))
    for position, summary in enumerate(summaries):
        left = 0.0
        for count, shade in zip(summary["counts"], ("#d9d9d9", "#56B4E9", "#0072B2")):
            share = 100 * count / max(summary["judged"], 1)
            axes.barh(position, share, left=left, color=shade, height=0.7)
            left += share
        axes.text(101, position, shown(summary["mean"]), va="center")
    axes.set_yticks(range(len(summaries)), labels=[summary["run"] for summary in summaries])
    axes.set(xlim=(0, 112), xlabel="share of groups (%); at the end the mean score")
    axes.invert_yaxis()
    axes.legend(list(MEANINGS.values()), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return figure


main = Command("new_paths", __doc__, analyze)

if __name__ == "__main__":
    sys.exit(main())
