"""Error categories: which kinds of errors does a run make, and do its clusters tell them apart?

A judge assigns one of eleven categories to each of a sample of wrong responses. The clusters of the memory, by each of
the paper's features (Section 5.3), agree with the judge on a pair of responses if both say "same" or both say
"different". Pairs are within a prompt, like clusters. From the repository's root:

    python -m analysis.error_categories runs/meds --judge-url http://localhost:8000/v1 --judge-model NAME
"""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.agreement import agreement_table, agreements
from analysis.command_line import Command, Finding
from analysis.judged import Judging, index_groups
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.judge.question import Question, ReplyLine
from meds_openrlhf.judge.settings import JudgeSettings
from meds_openrlhf.options import ResponseCharacters, Seed, folders, option, positive
from meds_openrlhf.rollouts.features import LOGIT_PRESETS, wrong_rows
from meds_openrlhf.rollouts.run import texts_of
from meds_openrlhf.stats.presentation import COLORS, markdown, panels, shown

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


def analyze(
    run: Annotated[Path, folders("folder of a run with meds.tracking.rollouts: all", None)],
    judge: JudgeSettings,
    responses: Annotated[int, option("wrong responses to label", "N", type=positive)] = 800,
    per_prompt: Annotated[int, option("maximum responses per prompt", "N", type=positive)] = 40,
    preset: Annotated[str, option("clustering preset", choices=LOGIT_PRESETS)] = "paper",
    seed: Seed = 0,
    response_characters: ResponseCharacters = None,
) -> Finding:
    """Let the judge label wrong ``responses``, and compare its categories with the clusters of each feature."""
    judging = Judging(judge, seed, response_characters)
    (sizes, notes), wrong = index_groups(run), wrong_rows(run, ["answer"])
    rows = draw_responses(wrong, sizes, responses, per_prompt, seed)
    if not len(rows):
        raise ConfigError("RUN", str(run), "has no wrong response with layer logits and text. Name another.")
    if len(rows) < responses:
        reason = f"the run has no more with layer logits and texts, or --per-prompt {per_prompt} leaves them out."
        notes.append(f"{len(rows)} of {responses} wrong responses: {reason}")
    places = wrong.select(["step", "sample", "prompt"]).take(pa.array(rows))
    questions = [_question(judging, texts) for texts in texts_of(run, places)]
    answers = judging.ask(questions, notes)
    labeled = [(row, *answer) for row, answer in zip(rows, answers) if answer]
    labeled_rows, categories = np.array(labeled, np.int64).reshape(-1, 2).T
    found, compared = agreements(run, wrong, labeled_rows, categories, preset)
    counts = {number: answers.count((number,)) for number in CATEGORIES}
    tables = [markdown(category_table(counts, answers.count(None))), f"{compared} pairs:"]
    labels = zip(places.to_pylist(), answers)
    numbers = {
        "categories": {CATEGORIES[number][0]: count for number, count in counts.items()},
        "malformed": answers.count(None),
        "shortened": judging.shortened,
        "pairs": compared,
        "agreement": found,
        "responses": [{**place, "category": answer and answer[0]} for place, answer in labels],
        "preset": preset,
    }
    text = "\n\n".join([*tables, markdown(agreement_table(found))])
    return judging.finding(text, numbers, draw(counts, found))


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


def _question(judging: Judging, texts: Mapping[str, Any]) -> Question:
    """The question which error this response makes."""
    given = {"question": texts["prompt_text"], "correct answer": texts["ground_truth"]}
    known = {tag: text for tag, text in given.items() if text is not None}
    return judging.question(RUBRIC, CATEGORY, known, {"wrong response": texts["response"]})[0]


def category_table(counts: dict[int, int], malformed: int) -> pd.DataFrame:
    """A row per category, the most frequent first."""
    total = sum(counts.values())
    order = sorted(counts, key=lambda number: (-counts[number], number))
    rows = [[CATEGORIES[n][0], counts[n], shown(100 * counts[n] / total if total else None)] for n in order]
    return pd.DataFrame([*rows, ["(malformed replies)", malformed, ""]], columns=["category", "responses", "%"])


def draw(counts: dict[int, int], found: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the responses per category, and the agreement per feature."""
    figure, (left, right) = panels(["", ""], width=4.5, height=3.1)
    left.barh([CATEGORIES[number][0] for number in counts], list(counts.values()), color=COLORS[0])
    left.invert_yaxis()
    left.set_xlabel("wrong responses")
    shares = {entry["variant"]: 100 * entry["noise_together"] for entry in found if entry["noise_together"] is not None}
    right.bar(list(shares), list(shares.values()), color=COLORS[2])
    right.tick_params(axis="x", labelrotation=20)
    right.set(ylabel="agreement with the judge (% of pairs)", ylim=(0, 100))
    return figure


main = Command("error_categories", __doc__, analyze)

if __name__ == "__main__":
    sys.exit(main())
