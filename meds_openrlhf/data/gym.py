"""Make problems with reasoning-gym: training problems of one or more tasks, and held-out problems of each.

A task is seeded by its problem's number, ``seed + index``, so one seed makes both: the first problems are held out and
the next are trained on. Every problem is tried before it is written: its scorer has to call its own answer right. A
label names its problem (`meds_openrlhf.gym.problem`), so it is made here as it will be in training.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError, suggestion
from meds_openrlhf.data.catalog import TRAINING_FILE
from meds_openrlhf.data.prepare import (
    DUPLICATE,
    HAS_CHAT_MARKER,
    IN_BENCHMARK,
    NO_ANSWER,
    NO_QUESTION,
    Counts,
    Prepared,
    Problem,
    Report,
    check_writable,
    write,
)
from meds_openrlhf.data.questions import problem_id, qwen_math_prompt
from meds_openrlhf.data.request import PREFIX, QWEN_MATH_SYSTEM, GymRequest
from meds_openrlhf.features.answer import answer_in
from meds_openrlhf.gym.problem import GymLabel, GymProblem, TaskRefusedError, made_of

NO_BOX = "answer fits no box"  # it has a brace too many, or is too long
OWN_ANSWER_WRONG = "own answer wrong"  # by the task's scorer


def prepare_gym(request: GymRequest, out: Path, report: Report = lambda line: None) -> list[Prepared]:
    """Write ``train.jsonl`` and, with held-out problems, a file of each task into ``out``.

    A training problem with the question of a held-out or an earlier one is left out, and counted. Raises ConfigError if
    there is no such task, if the task refuses its settings or has no answers, or if ``out`` cannot be written.
    """
    from tqdm import tqdm

    check_writable(out)
    _require_tasks(request)
    train, counts, files = [], {}, []
    for name in request.tasks:
        report(f"making {name} with reasoning-gym")
        numbers = tqdm(range(request.held_out + request.size), disable=None, leave=False)
        candidates = (_judge(_make(name, number, request), request) for number in numbers)
        held_out, held_out_counts = _select(name, candidates, request.held_out, ())
        tested = {problem.question for problem in held_out}
        kept, counts[name] = _select(name, candidates, request.size, tested)
        train += kept
        if request.held_out:
            files.append(Prepared(name, held_out, {name: held_out_counts}))
    files.insert(0, Prepared(TRAINING_FILE, train, counts))
    write(files, out, {name: f"reasoning-gym, seed {request.seed}" for name in request.tasks})
    return files


def _require_tasks(request: GymRequest) -> None:
    """Raise ConfigError, before anything is made, unless every task can make its first problem."""
    from reasoning_gym.factory import DATASETS

    for name in request.tasks:
        if name not in DATASETS:
            raise ConfigError("SET", PREFIX + name, f"is not a task of reasoning-gym. {suggestion(name, DATASETS)}")
        _make(name, 0, request)


def _make(name: str, number: int, request: GymRequest) -> GymProblem:
    """A problem of the task. Raises ConfigError if it cannot be made, or has no answer."""
    size, seed, threshold, settings = request.held_out + request.size, request.seed, request.threshold, request.settings
    shown = " ".join(f"{key}={value}" for key, value in settings.items())
    try:
        label = GymLabel(task=name, settings=settings, size=size, seed=seed, index=number, threshold=threshold)
        problem = made_of(label.as_text())
    except TaskRefusedError as error:
        hint = f"is refused by {PREFIX}{name} ({error.reason}). See the documentation of reasoning-gym."
        raise ConfigError("--set" if shown else "SET", shown or PREFIX + name, hint) from error
    except ValueError as error:
        raise ConfigError("SET", PREFIX + name, f"{error}. Change --set, --size or --seed.") from error
    if problem.answer is None:
        hint = "has no answers, so its scorer cannot be checked. Choose another task."
        raise ConfigError("SET", PREFIX + name, hint)
    return problem


def _select(
    name: str, candidates: Iterator[Problem | str], number: int, held_out: Collection[str]
) -> tuple[list[Problem], Counts]:
    """The problems among the next ``number`` candidates whose question is new, and the counts of all candidates.

    Raises ConfigError if no problem is left.
    """
    counts, kept = Counts(), dict[str, Problem]()
    for _, candidate in zip(range(number), candidates):
        counts.read += 1
        if isinstance(candidate, str):
            counts.dropped[candidate] += 1
        elif candidate.question in held_out:
            counts.dropped[IN_BENCHMARK] += 1
        elif candidate.question in kept:
            counts.dropped[DUPLICATE] += 1
        else:
            kept[candidate.question] = candidate
    if number and not kept:
        hint = f"none of its {number:,} problems can be used: {counts.as_text()}"
        raise ConfigError("SET", PREFIX + name, hint)
    counts.kept = len(kept)
    return list(kept.values()), counts


def _judge(made: GymProblem, request: GymRequest) -> Problem | str:
    """The problem as a line of a data set, or the reason to drop it."""
    name, question, answer = made.label.task, made.question, (made.answer or "").strip()
    if not question.strip():
        return NO_QUESTION
    if not answer:
        return NO_ANSWER
    if not made.is_right(answer):
        return OWN_ANSWER_WRONG
    if request.instruction == QWEN_MATH_SYSTEM and answer_in(f"\\boxed{{{answer}}}") != answer:
        return NO_BOX
    try:
        prompt = qwen_math_prompt(question, request.instruction)
    except ValueError:  # not empty, so it has a chat marker
        return HAS_CHAT_MARKER
    label = replace(made.label, digest=made.digest)
    return Problem(problem_id(name, question), prompt, question, label.as_text(), name, "")
