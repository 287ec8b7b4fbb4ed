"""Make problems with reasoning-gym: training problems of one or more tasks, and held-out problems of each.

A task is seeded by its problem's number, ``seed + index``, so one seed makes both: the first problems are held out and
the next are trained on. Every problem is tried before it is written: its scorer has to call its own answer right, read
back from the label.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.data.catalog import TRAINING_FILE
from meds_openrlhf.data.prepare import Prepared, Report, check_writable, write
from meds_openrlhf.data.questions import problem_id
from meds_openrlhf.data.selection import CHAT_MARKER, DUPLICATE, IN_BENCHMARK, NO_ANSWER, NO_QUESTION, Counts, Problem
from meds_openrlhf.data.templates import QWEN_MATH_SYSTEM, qwen_math_prompt
from meds_openrlhf.rewards import gym_problem
from meds_openrlhf.rewards.boxed import last_boxed

PREFIX = "gym:"
NO_BOX = "answer fits no box"  # it has a brace too many, or is too long
NO_JSON = "no JSON"  # it holds what JSON has not, such as a fraction
OWN_ANSWER_WRONG = "own answer wrong"  # by the task's scorer


@dataclass(frozen=True, kw_only=True)
class GymRequest:
    """What to make: ``size`` training and ``held_out`` other problems of each task, with the task's ``settings``.

    An answer is right if its score is at least ``threshold``. ``instruction`` is the prompt's system turn.
    """

    tasks: Sequence[str]
    size: int = 5000
    held_out: int = 0
    seed: int = 0
    threshold: float = 1.0
    instruction: str = QWEN_MATH_SYSTEM
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for flag, number, least in (
            ("--size", self.size, 1),
            ("--held-out", self.held_out, 0),
            ("--seed", self.seed, 0),
        ):
            if number < least:
                raise ConfigError(flag, number, f"must be at least {least}.")
        if not 0 < self.threshold <= 1:
            raise ConfigError("--threshold", self.threshold, "must be above 0 and at most 1, a scorer's maximum.")
        if not self.instruction.strip() or "<|im_" in self.instruction:
            raise ConfigError("--instruction", self.instruction, "is empty or has a chat marker. Say how to answer.")
        if self.settings and len(self.tasks) > 1:
            raise ConfigError("--set", " ".join(self.settings), "is for 1 task. Prepare the tasks in separate calls.")


def prepare_gym(
    request: GymRequest, out: Path, report: Report = lambda line: None, watch: Callable[[Any, int], Any] | None = None
) -> list[Prepared]:
    """Write ``train.jsonl`` and, with held-out problems, a file of each task into ``out``.

    A training problem with the question of a held-out or an earlier one is left out, and counted. ``watch`` wraps the
    problems of a task to show progress, given their number. Raises ConfigError if there is no such task, if the task
    refuses its settings, has no answers or does not survive JSON, or if ``out`` cannot be written.
    """
    check_writable(out)
    tasks = {name: _create(name, request) for name in request.tasks}
    train, counts, files = [], {}, []
    for name, task in tasks.items():
        report(f"making {name} with reasoning-gym")
        numbers = range(request.held_out + request.size)
        entries = (_entry(name, task, number) for number in (watch(numbers, len(numbers)) if watch else numbers))
        candidates = (_judge(name, task, entry, request) for entry in entries)
        held_out, held_out_counts = _select(name, candidates, request.held_out, ())
        tested = {problem.question for problem in held_out}
        kept, counts[name] = _select(name, candidates, request.size, tested)
        train += kept
        if request.held_out:
            files.append(Prepared(name, held_out, {name: held_out_counts}))
    files.insert(0, Prepared(TRAINING_FILE, train, counts))
    write(files, out, {name: f"reasoning-gym, seed {request.seed}" for name in tasks}, report)
    return files


def _create(name: str, request: GymRequest) -> Any:
    """The task as reasoning-gym makes it."""
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    word = PREFIX + name
    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=3)
        guess = f"The closest are {', '.join(close)}." if close else f"Its tasks are {', '.join(sorted(DATASETS))}."
        raise ConfigError("SET", word, f"is not a task of reasoning-gym. {guess}")
    known = sorted({option.name for option in fields(DATASETS[name][1])} - {"size", "seed"})
    for key, value in request.settings.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            guess = f"Did you mean {close[0]}?" if close else f"Its settings: {', '.join(known) or 'none'}."
            raise ConfigError("--set", f"{key}={value}", f"is not a setting of {word}. {guess}")
    try:
        size = request.held_out + request.size
        return reasoning_gym.create_dataset(name, size=size, seed=request.seed, **request.settings)
    except (AssertionError, ValueError, TypeError) as error:
        shown = " ".join(f"{key}={value}" for key, value in request.settings.items())
        where = ("--set", shown) if shown else ("SET", word)
        hint = f"is refused by {word} ({str(error) or 'no reason given'}). See the documentation of reasoning-gym."
        raise ConfigError(*where, hint) from error


def _entry(name: str, task: Any, number: int) -> dict[str, Any]:
    """A problem of the task. Settings that the task accepted may fail only here."""
    try:
        entry: dict[str, Any] = task[number]
        return entry
    except Exception as error:  # generators raise errors of many kinds
        hint = f"fails at problem {number} ({type(error).__name__}: {error}). Change --set or --seed."
        raise ConfigError("SET", PREFIX + name, hint) from error


def _select(
    name: str, candidates: Iterator[Problem | str], number: int, held_out: Collection[str]
) -> tuple[list[Problem], Counts]:
    """The problems among the next ``number`` candidates whose question is new, and the counts of all candidates.

    Raises ConfigError if no problem is left.
    """
    counts, kept, seen = Counts(), [], set[str]()
    for _, candidate in zip(range(number), candidates):
        counts.read += 1
        reason = candidate if isinstance(candidate, str) else _repeated(candidate.question, seen, held_out)
        if isinstance(candidate, str) or reason:
            counts.dropped[reason] += 1
        else:
            seen.add(candidate.question)
            kept.append(candidate)
    if number and not kept:
        reasons = ", ".join(f"{reason} {rows:,}" for reason, rows in counts.reasons().items())
        raise ConfigError("SET", PREFIX + name, f"none of its {number:,} problems can be used: {reasons}")
    counts.kept = len(kept)
    return kept, counts


def _repeated(question: str, seen: Collection[str], held_out: Collection[str]) -> str:
    return IN_BENCHMARK if question in held_out else DUPLICATE if question in seen else ""


def _judge(name: str, task: Any, entry: dict[str, Any], request: GymRequest) -> Problem | str:
    """The problem, or the reason to drop it. Raises ConfigError if the task cannot be used at all."""
    question, answer = entry["question"], entry["answer"]
    if answer is None:
        hint = "has no answers, so its scorer cannot be checked. Choose another task."
        raise ConfigError("SET", PREFIX + name, hint)
    if not question.strip():
        return NO_QUESTION
    if not isinstance(answer, str) or not answer.strip():
        return NO_ANSWER
    try:
        label = gym_problem.label(name, request.settings, request.threshold, entry)
    except TypeError:
        return NO_JSON
    if _score_of_own_answer(name, task, entry, label) < request.threshold:
        return OWN_ANSWER_WRONG
    if request.instruction == QWEN_MATH_SYSTEM and _boxed(answer) != answer.strip():
        return NO_BOX
    try:
        prompt = qwen_math_prompt(question, request.instruction)
    except ValueError:  # not empty, so it has a chat marker
        return CHAT_MARKER
    return Problem(problem_id(name, question), prompt, question, label, name, "")


def _score_of_own_answer(name: str, task: Any, entry: dict[str, Any], label: str) -> float:
    """The score of the problem's own answer. Raises ConfigError if JSON changes it."""
    answer = entry["answer"].strip()
    before, after = _scored(task, answer, copy.deepcopy(entry)), _scored(task, answer, gym_problem.read_entry(label))
    if before != after:
        hint = f"scores its own answer {before:g}, but {after:g} when its problem comes from JSON. Choose another task."
        raise ConfigError("SET", PREFIX + name, hint)
    return before


def _scored(task: Any, answer: str, entry: dict[str, Any]) -> float:
    try:
        return gym_problem.score(task, answer, entry)
    except Exception:  # scorers raise errors of many kinds; then the answer counts as wrong, as in training
        return 0.0


def _boxed(answer: str) -> str:
    return last_boxed(f"\\boxed{{{answer}}}") or ""
