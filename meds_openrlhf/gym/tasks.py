"""Make the problems of reasoning-gym and score answers to them, in the processes of `AnswerVerifier`.

Nine of its scorers evaluate the answer: those that expect a list read it as a literal here, and those that expect an
expression get only arithmetic. Every answer meets a problem of its own, because some scorers change it.
"""

from __future__ import annotations

import ast
import base64
import functools
import hashlib
import json
import pickle
import random
import re
from typing import Any, NamedTuple

import numpy as np

from meds_openrlhf.gym.expression import is_arithmetic
from meds_openrlhf.gym.label import GymLabel, read_label

_EVALUATE = frozenset(("parse_expr", "sympify"))
_IDENTIFIER = re.compile(r"[A-Za-z]\w*", re.ASCII)


def warm_up() -> None:
    """Import the tasks, before limits apply to the process."""
    import reasoning_gym  # noqa: F401


def make(text: str) -> dict[str, Any]:
    """Make the problem of a label: its question, answer (None: it has none; "": no text), digest, entry for `score`.

    With the field ``refused`` in their place if the task does not exist or refuses its settings, ``failed`` if it
    cannot make this problem.
    """
    label = _label(text)
    try:
        task = _task_of(label)
    except Exception as error:  # of many kinds, as the tasks check their settings or do not
        return {"refused": _words(error)}
    try:
        _seed()
        entry = task.dataset[label.index]
        question, answer = str(entry["question"]), entry["answer"]
        answer = answer if isinstance(answer, (str, type(None))) else ""
        digest = hashlib.blake2b(f"{question}\0{answer}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        stored = base64.b64encode(pickle.dumps(entry)).decode()  # made and read in examiners alone
        return {"question": question, "answer": answer, "digest": digest, "entry": stored}
    except Exception as error:  # of many kinds, too
        return {"failed": _words(error)}


def score(text: str, entry: str, answer: str) -> float:
    """The task's own score of an answer to a label's problem, usually from 0 to 1. Raises the scorer's errors."""
    task, problem = _task_of(_label(text)), pickle.loads(base64.b64decode(entry))
    if task.evaluates and not is_arithmetic(answer, set(_IDENTIFIER.findall(problem["answer"]))):
        answer = ""  # which no scorer can read either
    return float(task.dataset.score_answer(answer, problem))


class _Task(NamedTuple):
    dataset: Any
    evaluates: bool  # answers, as expressions


_label = functools.lru_cache(1024)(read_label)


def _task_of(label: GymLabel) -> _Task:
    return _task(label.task, json.dumps(label.settings), label.size, label.seed)


@functools.lru_cache
def _task(name: str, settings: str, size: int, seed: int) -> _Task:
    import reasoning_gym

    _seed()
    dataset = reasoning_gym.create_dataset(name, size=size, seed=seed, **json.loads(settings))
    scorer = type(dataset).score_answer
    if "eval" in scorer.__code__.co_names:
        scorer.__globals__["eval"] = ast.literal_eval
    return _Task(dataset, not _EVALUATE.isdisjoint(scorer.__code__.co_names))


def _seed() -> None:
    """Reset the generators on which a few problems depend, so that a label always makes the same problem."""
    random.seed(0)
    np.random.seed(0)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".removesuffix(": ")
