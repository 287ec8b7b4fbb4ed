"""What a line of a dump holds, for each trainer that writes dumps: which columns are prompt, response and reward.

Names and meanings are those of the programs' sources, whose versions docs/atlas.md has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from meds_openrlhf.dumps.unpack import (
    INSPECT_SAMPLE,
    kind_and_step,
    of_inspect,
    of_lm_eval,
    of_messages,
    of_skyrl,
    of_slime,
    of_trace,
    traces_of,
)
from meds_openrlhf.dumps.values import (
    Row,
    label,
    messages_of,
    number,
    prompt_text,
    required,
    response_text,
    step_number,
    writable,
)

COLUMNS = ("prompt", "response", "reward", "truth", "answer", "step")  # their roles


@dataclass(frozen=True)
class Rollout:
    """A response to a prompt.

    ``messages`` are the prompt's roles and contents, if it is a conversation; ``prompt`` is their text. ``answer`` is
    the final answer that the trainer's own grader read, where it says so.
    """

    prompt: str
    response: str
    reward: float
    truth: str | None = None
    step: int | None = None
    messages: tuple[dict[str, str], ...] = ()
    answer: str | None = None


@dataclass(frozen=True)
class Format:
    """The columns of a program's dump by role, each with its possible names, the preferred one first.

    ``marks``: columns of this program alone, any of which identifies it; without marks, the columns by role do.
    ``split`` makes several rows of a line, ``unpack`` gives a row the columns named here, and ``evaluates`` says
    whether it is of an evaluation, as all rows of an ``evaluation`` are. ``step_names``: a file's name that says its
    step, beside ``step_12``. ``unread``: what a file has that is recognized, but not read, and why.
    """

    prompt: tuple[str, ...] = ("prompt",)
    response: tuple[str, ...] = ("response",)
    reward: tuple[str, ...] = ()  # none: the only column of numbers
    truth: tuple[str, ...] = ()
    answer: tuple[str, ...] = ()
    step: tuple[str, ...] = ("step",)
    marks: tuple[str, ...] = ()
    split: Callable[[Row], Iterable[Row]] = lambda row: (row,)
    unpack: Callable[[Row], Row] = dict
    evaluates: Callable[[Row], bool] | None = None
    evaluation: bool = False
    step_names: str | None = None
    unread: str = ""

    def is_evaluation(self, row: Row) -> bool:
        """Whether a row is of an evaluation, beside those of a training."""
        return self.evaluation or (self.evaluates is not None and self.evaluates(row))

    def rollout(self, row: Row) -> Rollout:
        """The rollout of a row, of a `chosen` format. Raises LeftOut."""
        columns = columns_of(self, row)
        prompt = required(columns, _first(columns, self.prompt))
        response = required(columns, _first(columns, self.response))
        step = _first(columns, self.step)
        return Rollout(
            prompt=prompt_text(prompt),
            response=response_text(response),
            reward=number(columns, self.reward[0]),
            truth=label(columns.get(_first(columns, self.truth))),
            step=None if columns.get(step) is None else step_number(columns, step),
            messages=messages_of(prompt),
            answer=_answer(columns.get(_first(columns, self.answer))),
        )


def columns_of(form: Format, row: Row) -> Row:
    """A row's columns; of a mapping, such as a reward of several parts, the parts as well, as ``reward.PART``."""
    row = form.unpack(row)
    parts = {f"{name}.{part}": value[part] for name, value in row.items() if isinstance(value, dict) for part in value}
    return {**row, **parts}


def _answer(value: Any) -> str | None:
    """The answer that a trainer's grader read, of which verl writes [INVALID] if it found none."""
    is_known = isinstance(value, (str, int, float)) and value not in ("", "[INVALID]")
    return writable(str(value)) if is_known else None


def _first(row: Row, names: Sequence[str]) -> str:
    """The first of the names with a value in this row."""
    for name in names:
        if row.get(name) is not None:
            return name
    return names[0] if names else ""


# In the order in which they are tried: by their own columns, then by the names of prompt, response and reward.
FORMATS = {
    "nemo-rl": Format(reward=("rewards",), step=(), marks=("content",), unpack=of_messages),
    "slime": Format(
        reward=("reward",), truth=("label",), step=("step", "rollout_id"), marks=("rollout_id",), unpack=of_slime,
        step_names=r"(\d{1,9})\.pt$",
    ),
    "prime-rl": Format(
        response=("completion",), reward=("reward",), truth=("answer",),
        marks=("nodes", "traces", "example_id", "trajectory"),
        split=traces_of, unpack=of_trace, evaluates=lambda row: kind_and_step(row)[0] == "eval",
    ),
    "trl": Format(
        response=("completion",), truth=("ground_truth", "solution", "answer", "label"), marks=("advantage",)
    ),
    "areal": Format(
        response=("completion",), reward=("reward",), step=("tail_version",), marks=("tail_version", "head_version"),
    ),
    "skyrl": Format(
        ("input_prompt",), ("output_response",), ("score",), ("ground_truth",), marks=("env_class", "env_extras"),
        unpack=of_skyrl, evaluation=True,
    ),
    "lm-eval": Format(
        truth=("target",), marks=("filtered_resps",), unpack=of_lm_eval, evaluation=True
    ),
    "inspect": Format(
        truth=("target",), marks=(INSPECT_SAMPLE,), unpack=of_inspect, evaluation=True
    ),
    "rllm": Format(marks=("trajectories",), unread="episodes of rLLM, which are not read"),
    "torchtitan": Format(marks=("is_validation",), unread="samples of torchtitan, which are not read"),
    "open-instruct": Format(marks=("prompt_tokens",), unread="traces of open-instruct, which have no texts"),
    "tinker": Format(marks=("traj_idx",), unread="summaries of tinker-cookbook, which have no texts"),
    "verl": Format(
        ("input",), ("output",), ("acc", "score"), ("gts", "ground_truth", "label"), ("pred",),
        step_names=r"^(\d{1,9})\.",
    ),
    "openrlhf": Format(("input",), ("output",), ("reward",), ("ground_truth", "label", "answer")),
    "plain": Format(
        ("prompt", "question", "problem", "input"), ("response", "completion", "output"),
        ("reward", "score", "correct"), ("ground_truth", "answer", "label"),
    ),
}  # fmt: skip
