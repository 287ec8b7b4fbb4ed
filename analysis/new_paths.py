"""Across-step diversity: does a run find ways to reason that it did not have an epoch before, in the eyes of a judge?

A prompt is visited once per epoch. The judge sees a few responses of a visit and a few of the next visit, and scores
the later responses 1, 2 or 3 for no, one, or at least two new reasoning paths. Pairs of steps are drawn, and prompts of
each; for several runs, the judge sees the same visits to the same prompts. From the repository's root:

    python -m analysis.new_paths runs/meds runs/dapo --judge-url http://localhost:8000/v1 --judge-model NAME
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.command_line import add_drawing_arguments, exit_code_of, positive
from analysis.groups import Group, GroupIndex, Visit, index_groups, read_groups
from analysis.judge.client import JudgeClient, cost_line, judged_by
from analysis.judge.question import Question, ReplyLine, shortened, tagged
from analysis.judge.settings import add_judge_arguments, judge_settings
from analysis.results import add_result_arguments, write_numbers
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.report.output import markdown_table, shown, write_figure
from meds_openrlhf.runs.settings import names_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


@dataclass(frozen=True)
class Judgement:
    """The score of a return to a prompt; None if the judge's replies were malformed."""

    run: str
    prompt: str
    earlier_step: int
    later_step: int
    shortened: int  # number of shortened answers
    score: int | None


@dataclass(frozen=True)
class RunSummary:
    """A run's number of judgements per score, and their mean and its standard error, None if there are too few."""

    run: str
    judged: int
    malformed: int
    counts: tuple[int, ...]  # for the scores 1, 2 and 3
    mean: float | None
    error: float | None


def returns_to_prompts(index: GroupIndex) -> dict[Return, Steps]:
    """The steps of each visit to a prompt and of the next visit, if they are about an epoch apart."""
    visits: dict[str, list[int]] = {}
    for step in sorted(index.sizes):
        for prompt in index.sizes[step]:
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


def question_about(earlier: Group, later: Group, settings: argparse.Namespace) -> tuple[Question, int]:
    """The question about a return, and the number of shortened answers in it."""
    generator = random.Random(f"{settings.seed}-{earlier.prompt}-{earlier.step}-{later.step}")
    limit = settings.response_characters
    material = [tagged("question", later.question)]
    cut = 0
    for name, group in (("earlier", earlier), ("later", later)):
        drawn = group.drawn(settings.answers, generator)
        material += [tagged(f"{name} answer {number}", shortened(text, limit)) for number, text in enumerate(drawn, 1)]
        cut += sum(limit is not None and len(text) > limit for text in drawn)
    return Question(RUBRIC, "\n\n".join(material), SCORE), cut


def ask(
    client: JudgeClient,
    pairs: dict[str, list[tuple[Group, Group]]],
    settings: argparse.Namespace,
) -> list[Judgement]:
    """Let the judge score every (earlier, later) pair of groups of every run."""
    asked = [
        (run, earlier, later, *question_about(earlier, later, settings))
        for run, groups in pairs.items()
        for earlier, later in groups
    ]
    answers = client.ask_all([question for *_, question, _ in asked])
    return [
        Judgement(run, earlier.prompt, earlier.step, later.step, cut, None if answer is None else answer[0])
        for (run, earlier, later, _, cut), answer in zip(asked, answers)
    ]


def summarize(run: str, judgements: Sequence[Judgement]) -> RunSummary:
    """Summarize the scores of a run."""
    of_run = [judgement for judgement in judgements if judgement.run == run]
    scores = [judgement.score for judgement in of_run if judgement.score is not None]
    return RunSummary(
        run=run,
        judged=len(scores),
        malformed=len(of_run) - len(scores),
        counts=tuple(scores.count(score) for score in MEANINGS),
        mean=statistics.fmean(scores) if scores else None,
        error=statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None,
    )


def table(summaries: Sequence[RunSummary]) -> str:
    """A row per run."""
    header = ["run", "judged", "malformed", *MEANINGS.values(), "mean score", "standard error"]
    rows = [
        [row.run, str(row.judged), str(row.malformed), *map(str, row.counts), shown(row.mean), shown(row.error)]
        for row in summaries
    ]
    return markdown_table(header, rows)


def draw_figure(summaries: Sequence[RunSummary]) -> Figure:
    """Draw a bar per run with the shares of its scores, and its mean score at the end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 1.2 + 0.45 * len(summaries)))
    axes = figure.subplots()
    for position, summary in enumerate(summaries):
        left = 0.0
        for count, shade in zip(summary.counts, ("#d9d9d9", "#56B4E9", "#0072B2")):
            share = 100 * count / summary.judged if summary.judged else 0.0
            axes.barh(position, share, left=left, color=shade, height=0.7)
            left += share
        axes.text(101, position, shown(summary.mean), va="center")
    axes.set_yticks(range(len(summaries)), labels=[summary.run for summary in summaries])
    axes.set(xlim=(0, 112), xlabel="share of groups (%); at the end the mean score")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(list(MEANINGS.values()), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return figure


def parse_arguments(command_line: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m analysis.new_paths", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folders of runs with meds.tracking.rollouts: all"
    )
    parser.add_argument("--pairs", type=positive, default=21, metavar="N", help="pairs of steps; default: 21")
    parser.add_argument("--groups", type=positive, default=10, metavar="N", help="prompts per pair; default: 10")
    parser.add_argument("--answers", type=positive, default=3, metavar="N", help="of each visit; default: 3")
    add_drawing_arguments(parser)
    add_result_arguments(parser, "new-paths")
    add_judge_arguments(parser)
    return parser.parse_args(command_line)


def find_pairs(arguments: argparse.Namespace) -> dict[str, list[tuple[Group, Group]]]:
    """The (earlier, later) groups of each run, by its name. Raises ConfigError if there are none."""
    indices = [index_groups(run) for run in arguments.runs]
    places = [returns_to_prompts(index) for index in indices]
    pairs = draw_returns(places, arguments.pairs, arguments.groups, arguments.seed)
    drawn = [key for keys in pairs for key in keys]
    if not drawn:
        hint = "share no prompt that returned in a later epoch. Give runs of at least two epochs."
        raise ConfigError("RUN", " ".join(map(str, arguments.runs)), hint)
    notes = [index.note for index in indices if index.note]
    asked = arguments.pairs * arguments.groups
    if len(drawn) < asked:
        notes.append(f"{len(drawn)} of {asked} prompts, in {len(pairs)} pairs of steps: no more came back in all runs.")
    for note in notes:
        print(note, file=sys.stderr)
    return {
        name: _groups_of(run, [(place[key], key[0]) for key in drawn])
        for name, run, place in zip(names_of(arguments.runs), arguments.runs, places)
    }


def _groups_of(run: Path, returns: Sequence[tuple[Steps, str]]) -> list[tuple[Group, Group]]:
    visits: list[Visit] = [(step, prompt) for steps, prompt in returns for step in steps]
    groups = read_groups(run, visits)
    return [(groups[earlier, prompt], groups[later, prompt]) for (earlier, later), prompt in returns]


def score(arguments: argparse.Namespace) -> None:
    """Draw the pairs, ask the judge, print the table, and write the figure and the numbers."""
    settings = judge_settings(arguments)
    client = JudgeClient(settings)
    judgements = ask(client, find_pairs(arguments), arguments)
    summaries = [summarize(name, judgements) for name in names_of(arguments.runs)]
    print(table(summaries), f"\n{cost_line(client, settings, sum(one.shortened for one in judgements))}", sep="\n")
    numbers = {
        "runs": [asdict(summary) for summary in summaries],
        "pairs": [asdict(judgement) for judgement in judgements],
        "seed": arguments.seed,
        "judge": judged_by(settings),
    }
    write_numbers(numbers, arguments.json)
    write_figure(draw_figure(summaries), arguments.figure)


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    arguments = parse_arguments(command_line)
    return exit_code_of(lambda: score(arguments))


if __name__ == "__main__":
    sys.exit(main())
