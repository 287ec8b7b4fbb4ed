"""Error categories: which kinds of errors does a run make, and do its clusters tell them apart?

A judge assigns one of eleven categories to each of a sample of wrong responses. The clusters of the memory, by each of
the paper's features (Section 5.3), agree with the judge on a pair of responses if both say "same" or both say
"different". Pairs are within a prompt, like clusters. From the repository's root:

    python -m analysis.error_categories runs/meds --judge-url http://localhost:8000/v1 --judge-model NAME
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.category_agreement import VariantAgreement, agreement_table, agreements
from analysis.command_line import add_drawing_arguments, exit_code_of, positive
from analysis.groups import GroupIndex, index_groups
from analysis.judge.client import Answer, JudgeClient, cost_line, judged_by
from analysis.judge.question import Question, ReplyLine, shortened, tagged
from analysis.judge.settings import add_judge_arguments, judge_settings
from analysis.results import add_result_arguments, write_numbers
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.report.output import markdown_table, shown, write_figure
from meds_openrlhf.runs.clusters import LOGIT_PRESETS, own_transform
from meds_openrlhf.runs.log import Exchange, texts_of
from meds_openrlhf.runs.rows import remembered_wrong, run_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CATEGORIES = {
    1: ("irrelevant response", "it does not work on the question at all, or is no attempt at an answer"),
    2: ("problem set-up misread", "a condition, a quantity or what is asked for is taken from the question wrongly"),
    3: ("wrong mathematical model", "the question is read rightly, but put into unfitting equations or objects"),
    4: ("unverified assumption", "the result rests on something that is neither given nor shown"),
    5: ("probability or statistics", "events, independence, conditioning or expectation are treated wrongly"),
    6: ("theorem or formula misused", "it is quoted wrongly, or used where its conditions do not hold"),
    7: ("basic calculation", "arithmetic, algebra or a sign goes wrong in an otherwise sound plan"),
    8: ("miscounting", "objects or cases are counted twice, or not at all, in a sound plan"),
    9: ("missing or edge cases", "cases, boundary values or degenerate situations are left out"),
    10: ("implementation or algorithm", "a procedure, program or recursion is carried out or simulated wrongly"),
    11: ("self-contradiction", "it contradicts itself, or drops a correct intermediate result"),
}
CATEGORY = (ReplyLine("CATEGORY", min(CATEGORIES), max(CATEGORIES)),)
RUBRIC = """\
You are given one mathematics question, its correct answer, and one response whose final answer is known to be wrong. \
Follow its reasoning step by step, find where it goes wrong, and say which one of these categories describes that best:

""" + "\n".join(f"{number}: {name}: {meaning}." for number, (name, meaning) in CATEGORIES.items())


def read_wrong(run: Path) -> pa.Table:
    """The run's wrong rollouts that have layer logits. Raises ConfigError if there are none."""
    wrong = remembered_wrong(run_rows(run))
    if not len(wrong):
        raise ConfigError("RUN", str(run), "has no wrong rollouts with layer logits. Name another run.")
    return wrong


def draw_responses(
    wrong: pa.Table, steps: Collection[int], count: int, per_prompt: int, seed: int
) -> NDArray[np.int64]:
    """Draw at most ``count`` rows of ``wrong`` to label, in ascending order, all of them from ``steps``.

    Each prompt in random order contributes up to ``per_prompt`` of its rows. Depends only on the seed.
    """
    rows: dict[str, list[int]] = {}
    for row, (step, prompt) in enumerate(zip(wrong["step"].to_pylist(), wrong["prompt"].to_pylist())):
        if step in steps:
            rows.setdefault(prompt, []).append(row)
    generator = random.Random(f"{seed}-responses")
    drawn: list[int] = []
    for prompt in generator.sample(sorted(rows), len(rows)):
        most = min(per_prompt, count - len(drawn), len(rows[prompt]))
        drawn += generator.sample(rows[prompt], most)
    return np.array(sorted(drawn), dtype=np.int64)


def question_about(exchange: Exchange, characters: int | None) -> Question:
    """The question which error this response makes."""
    material = [tagged("question", exchange.prompt)]
    if exchange.ground_truth is not None:
        material.append(tagged("correct answer", exchange.ground_truth))
    material.append(tagged("wrong response", shortened(exchange.response, characters)))
    return Question(RUBRIC, "\n\n".join(material), CATEGORY)


def count_categories(answers: Sequence[Answer | None]) -> dict[int, int]:
    """The number of responses in each category."""
    return {number: sum(answer == (number,) for answer in answers) for number in CATEGORIES}


def category_table(counts: dict[int, int], malformed: int) -> str:
    """A row per category, the most frequent first."""
    total = sum(counts.values())
    order = sorted(counts, key=lambda number: (-counts[number], number))
    rows = [[CATEGORIES[n][0], str(counts[n]), shown(100 * counts[n] / total if total else None)] for n in order]
    return markdown_table(["category", "responses", "%"], [*rows, ["(malformed replies)", str(malformed), ""]])


def draw_figure(counts: dict[int, int], found: Sequence[VariantAgreement]) -> Figure:
    """Draw the responses per category, and the agreement per feature."""
    from matplotlib.figure import Figure

    from meds_openrlhf.evaluation.curves import COLORS

    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.barh([CATEGORIES[number][0] for number in counts], list(counts.values()), color=COLORS[0])
    left.invert_yaxis()
    left.set_xlabel("wrong responses")
    shares = {entry.variant: 100 * entry.noise_together for entry in found if entry.noise_together is not None}
    right.bar(list(shares), list(shares.values()), color=COLORS[2])
    right.tick_params(axis="x", labelrotation=20)
    right.set(ylabel="agreement with the judge (% of pairs)", ylim=(0, 100))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def parse_arguments(command_line: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.error_categories", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run with meds.tracking.rollouts: all")
    parser.add_argument("--responses", type=positive, default=800, metavar="N", help="to label; default: 800")
    parser.add_argument("--per-prompt", type=positive, default=40, metavar="N", help="at most of a prompt; default: 40")
    parser.add_argument("--pairs", type=positive, metavar="N", help="to draw; default: all pairs of one prompt")
    parser.add_argument("--preset", choices=LOGIT_PRESETS, default="paper", help="of clustering; default: %(default)s")
    add_drawing_arguments(parser)
    add_result_arguments(parser, "error-categories")
    add_judge_arguments(parser)
    return parser.parse_args(command_line)


def shortfalls(index: GroupIndex, drawn: int, arguments: argparse.Namespace) -> list[str]:
    """Messages about missing responses. Raises ConfigError if there is nothing to label."""
    if not drawn:
        raise ConfigError("RUN", str(arguments.run), "has no wrong response with layer logits and text. Name another.")
    lines = [index.note] if index.note else []
    if drawn < arguments.responses:
        lines.append(
            f"{drawn} of {arguments.responses} wrong responses: the run has no more with layer logits and texts, or "
            f"--per-prompt {arguments.per_prompt} leaves them out."
        )
    return lines


@dataclass(frozen=True)
class Labelled:
    """The ``rows`` (k,) of the judged wrong responses, and the judge's answer to each."""

    wrong: pa.Table
    rows: NDArray[np.int64]
    answers: list[Answer | None]
    shortened: int  # number of shortened responses

    @property
    def malformed(self) -> int:
        """The number of responses without a category."""
        return self.answers.count(None)

    def with_category(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and categories of the responses that have a category."""
        found = [(row, answer[0]) for row, answer in zip(self.rows, self.answers) if answer is not None]
        return np.array([row for row, _ in found], np.int64), np.array([number for _, number in found], np.int64)

    def places(self) -> list[dict[str, object]]:
        """Each response's step, sample, prompt and category."""
        places = self.wrong.select(["step", "sample", "prompt"]).take(pa.array(self.rows)).to_pylist()
        return [{**place, "category": answer and answer[0]} for place, answer in zip(places, self.answers)]


def ask(client: JudgeClient, arguments: argparse.Namespace) -> Labelled:
    """Draw responses and let the judge label them. Raises ConfigError if there are none or the judge fails."""
    index = index_groups(arguments.run)
    wrong = read_wrong(arguments.run)
    rows = draw_responses(wrong, index.sizes, arguments.responses, arguments.per_prompt, arguments.seed)
    for note in shortfalls(index, len(rows), arguments):
        print(note, file=sys.stderr)
    texts = texts_of(arguments.run, wrong.select(["step", "sample"]).take(pa.array(rows)))
    limit = arguments.response_characters
    answers = client.ask_all([question_about(exchange, limit) for exchange in texts])
    return Labelled(wrong, rows, answers, sum(limit is not None and len(text.response) > limit for text in texts))


def label(arguments: argparse.Namespace) -> None:
    """Ask the judge, cluster, print the tables, and write the figure and the numbers."""
    settings = judge_settings(arguments)
    client = JudgeClient(settings)
    labelled = ask(client, arguments)
    rows, categories = labelled.with_category()
    own, drawn = own_transform(arguments.run), (arguments.preset, arguments.pairs, arguments.seed)
    found, pairs = agreements(labelled.wrong, rows, categories, own, *drawn)
    counts = count_categories(labelled.answers)
    print(category_table(counts, labelled.malformed), f"\n{pairs} pairs:\n", agreement_table(found), sep="\n")
    print(f"\n{cost_line(client, settings, labelled.shortened)}")
    numbers = {
        "categories": {CATEGORIES[number][0]: count for number, count in counts.items()},
        "malformed": labelled.malformed,
        "shortened": labelled.shortened,
        "pairs": pairs,
        "agreement": [asdict(entry) for entry in found],
        "responses": labelled.places(),
        "preset": arguments.preset,
        "seed": arguments.seed,
        "judge": judged_by(settings),
    }
    write_numbers(numbers, arguments.json)
    write_figure(draw_figure(counts, found), arguments.figure)


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    arguments = parse_arguments(command_line)
    return exit_code_of(lambda: label(arguments))


if __name__ == "__main__":
    sys.exit(main())
