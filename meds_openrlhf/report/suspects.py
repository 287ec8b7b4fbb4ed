"""What to look at before any error: gradings that may be wrong, and prompts that no rollout solves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec

import pandas as pd

from meds_openrlhf.features.final_answer import same_answer_form
from meds_openrlhf.gym.problem import is_label
from meds_openrlhf.rewards.grading import LONGEST_VALUE, equal, fault_of
from meds_openrlhf.rewards.normalize import UnreadableError, read
from meds_openrlhf.rollouts.run import NONE, RolloutLog
from meds_openrlhf.terminal import counted

VERIFIED, SECONDS = 500, 60.0  # distinct answers that math-verify compares with their labels, and its time for all
FEWEST, SHARED = 4, 0.8  # rollouts of a prompt, and the part of them that have the same wrong answer
_INTEGER = "-0123456789"


@dataclass(frozen=True)
class Suspect:
    """``count`` rollouts of a prompt were scored wrong, and ``why`` that may be a fault of the label or the grader."""

    key: str
    prompt: str
    answer: str | None  # None if it is about the label alone
    truth: str | None
    count: int
    why: str
    is_equal: bool = False  # to the label, so that the rollouts are probably right


@dataclass(frozen=True)
class Unsolved:
    """A prompt without a right rollout: how many rollouts and distinct answers it has, and its most frequent answer."""

    key: str
    prompt: str
    truth: str | None
    rollouts: int
    answers: int
    answer: str | None
    count: int


class Gradings:
    """The answers of the runs' logged rollouts and their verdicts, prompt by prompt.

    ``questions`` are prompts without their template, by key. ``left_out`` counts the distinct answers that math-verify
    did not compare with their labels: beyond `VERIFIED` and `SECONDS`, or because one took too long.
    """

    def __init__(self, logs: Sequence[RolloutLog], questions: Mapping[str, str]) -> None:
        tables = [_answers(log) for log in logs]
        columns = ["prompt", "form"]
        counted = pd.concat(tables, ignore_index=True).groupby(columns, sort=False)
        self._answers = counted.agg(
            answer=("answer", "first"), count=("count", "sum"), wrong=("wrong", "sum")
        ).reset_index()
        self._prompts = self._answers.groupby("prompt", sort=False)[["count", "wrong"]].sum()
        self._texts: dict[str, str] = {}
        self._truths: dict[str, str] = {}
        for log in reversed(logs):
            self._texts |= log.prompt_texts
            self._truths |= {key: truth for key, truth in log.truths.items() if truth is not None}
        self._texts |= questions
        self.has_math_verify = find_spec("math_verify") is not None
        self.left_out = 0

    @cached_property
    def suspects(self) -> list[Suspect]:
        """Wrong answers that equal their label, were also scored right, or that nearly all rollouts give.

        And labels that no answer can match; the most frequent first.
        """
        self._verified, self._until = 0, time.monotonic() + SECONDS
        return sorted([*self._suspect_answers(), *self._suspect_labels()], key=lambda suspect: -suspect.count)

    @cached_property
    def unsolved(self) -> list[Unsolved]:
        """The prompts without a right rollout: first those whose wrong answers are the fewest."""
        found = []
        never = self._prompts.index[self._prompts["wrong"] == self._prompts["count"]]
        for key, rows in self._answers[self._answers["prompt"].isin(never)].groupby("prompt", sort=False):
            given = rows[rows["form"] != ""].sort_values("count", ascending=False, kind="stable")
            most, count = (given["answer"].iloc[0], int(given["count"].iloc[0])) if len(given) else (None, 0)
            whole = int(rows["count"].sum())
            found.append(Unsolved(key, self._texts.get(key, ""), self._truths.get(key), whole, len(given), most, count))
        return sorted(found, key=lambda prompt: (-prompt.count / prompt.rollouts, -prompt.rollouts))

    def _suspect_answers(self) -> Iterator[Suspect]:
        wrong = self._answers[(self._answers["wrong"] > 0) & (self._answers["form"] != "")]
        rollouts = self._prompts["count"].to_dict()
        for row in wrong.sort_values("wrong", ascending=False, kind="stable").itertuples():
            truth, whole = self._truths.get(row.prompt), rollouts[row.prompt]
            why = self._equality(row.answer, truth)
            is_equal = bool(why)
            if not why and row.wrong < row.count:
                why = f"it was also scored right, {counted(row.count - row.wrong, 'time')}"
            if not why and whole >= FEWEST and row.wrong >= SHARED * whole:
                why = f"{row.wrong} of {whole} rollouts agree on it"
            if why:
                text, wrong = self._texts.get(row.prompt, ""), int(row.wrong)
                yield Suspect(row.prompt, text, row.answer, truth, wrong, why, is_equal)

    def _suspect_labels(self) -> Iterator[Suspect]:
        for key, rows in self._prompts[self._prompts["wrong"] == self._prompts["count"]].iterrows():
            truth = self._truths.get(key)
            fault = None if truth is None or is_label(truth) else fault_of(truth)
            if fault is not None:
                yield Suspect(key, self._texts.get(key, ""), None, truth, int(rows["count"]), f"the label {fault}")

    def _equality(self, answer: str, truth: str | None) -> str:
        """How a wrong answer equals its label; empty if it does not."""
        if truth is None or is_label(truth) or fault_of(truth) is not None:
            return ""
        forms = same_answer_form(answer), same_answer_form(truth)
        if forms[0] == forms[1]:
            return "it equals the label"
        if max(len(answer), len(truth)) > LONGEST_VALUE:
            return ""
        if _normalized(answer) == _normalized(truth):
            return "it equals the label after normalization"
        if not self.has_math_verify or all(set(form) <= set(_INTEGER) for form in forms):
            return ""
        self._verified += 1
        in_time = self._verified <= VERIFIED and time.monotonic() < self._until
        is_equal = equal(truth, answer) if in_time else None
        self.left_out += is_equal is None
        return "math-verify calls it equal to the label" if is_equal else ""


def _answers(log: RolloutLog) -> pd.DataFrame:
    """A log's rollouts by prompt and answer: the prompt's key, the answer, its form, "" for none, count and wrong."""
    rows = pd.DataFrame({"prompt": log.prompt, "answer": log.answer, "wrong": ~log.correct})
    counts = rows.groupby(["prompt", "answer"], sort=False)["wrong"].agg(count="size", wrong="sum").reset_index()
    texts = [*log.answers, ""]  # the last is that of NONE
    forms = [*map(same_answer_form, log.answers), ""]
    assert NONE == -1
    codes = counts["answer"].tolist()
    named = {"prompt": [log.prompts[code] for code in counts["prompt"]], "answer": [texts[code] for code in codes]}
    return counts.assign(**named, form=[forms[code] for code in codes])


def groups_by_step(log: RolloutLog) -> dict[str, list[int]]:
    """For each of the ``steps`` how many prompts had right rollouts alone, wrong ones alone, and ``mixed`` ones."""
    rows = pd.DataFrame({"step": log.step, "prompt": log.prompt, "right": log.correct})
    groups = rows.groupby(["step", "prompt"])["right"].agg(["all", "any"])
    by_step = pd.DataFrame({"right": groups["all"], "wrong": ~groups["any"], "mixed": groups["any"] & ~groups["all"]})
    counts = by_step.groupby("step").sum()
    return {"steps": counts.index.tolist(), **{name: counts[name].tolist() for name in counts}}


@lru_cache(10_000)
def _normalized(answer: str) -> object:
    """An answer as rewards read it, or a value of its own if they cannot."""
    try:
        return read(answer)
    except UnreadableError:
        return object()
