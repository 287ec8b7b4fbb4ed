"""What a line of a dump holds, for each trainer that writes dumps: which columns are prompt, response and reward.

The names are those of the trainers' sources: verl's ``rollout_data_dir``, TRL's ``completions_*.parquet``, NeMo-RL's
``train_data_step*.jsonl``, prime-rl's ``train_rollouts.jsonl`` (both of its shapes), slime's
``--save-debug-rollout-data``, and what OpenRLHF's batch inference wrote. Evaluations are read alike: lm-eval's
``--log_samples`` and the samples of Inspect's logs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.paths import MOST_STEPS

Row = Mapping[str, Any]
COLUMNS = ("prompt", "response", "reward", "truth", "step")  # their roles
INSPECT_SAMPLE = "inspect_sample"  # the column that holds a sample of Inspect's
_INSPECT_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # correct, partial, incorrect, no answer


class LeftOut(Exception):
    """Why a line is no rollout; the message goes into the summary."""


@dataclass(frozen=True)
class Rollout:
    """A response to a prompt.

    ``messages`` are the prompt's roles and contents, if it is a conversation; ``prompt`` is their text.
    """

    prompt: str
    response: str
    reward: float
    truth: str | None = None
    step: int | None = None
    messages: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True)
class Format:
    """The columns of a trainer's dump, each with its possible names, the preferred one first.

    ``marks``: columns of this trainer alone; a dump without any of them is recognised only by the format's name.
    """

    prompt: tuple[str, ...]
    response: tuple[str, ...]
    reward: tuple[str, ...] = ()  # none: the only column of numbers
    truth: tuple[str, ...] = ()
    step: tuple[str, ...] = ("step",)
    marks: tuple[str, ...] = ()
    unpack: Callable[[Row], Row] = dict

    def fitted(self, row: Row) -> Format | None:
        """The format with the names that ``row`` has; None if it lacks one. Raises ConfigError for several rewards."""
        row = columns_of(self, row)
        found = {role: tuple(name for name in getattr(self, role) if name in row)[:1] for role in COLUMNS}
        if not self.reward:
            found["reward"] = self._only_number(row)
        if not (found["prompt"] and found["response"] and found["reward"]):
            return None
        return replace(self, **found)  # type: ignore[arg-type]

    def rollout(self, row: Row) -> Rollout:
        """The rollout of a line, of a fitted format. Raises LeftOut."""
        row = columns_of(self, row)
        prompt, response = (_required(row, name) for name in (*self.prompt, *self.response))
        truth, step = (row.get(names[0]) if names else None for names in (self.truth, self.step))
        return Rollout(
            prompt=_text(prompt),
            response=_text(response, "assistant"),
            reward=_number(row, self.reward[0]),
            truth=None if truth is None else _writable(str(truth)),
            step=None if step is None else _step(row, self.step[0]),
            messages=_messages(prompt) if _is_conversation(prompt) else (),
        )

    def _only_number(self, row: Row) -> tuple[str, ...]:
        taken = (*self.prompt, *self.response, *self.truth, *self.step, *self.marks)
        numbers = [name for name, value in row.items() if name not in taken and isinstance(value, (int, float))]
        if len(numbers) > 1:
            hint = f"have several columns of numbers ({', '.join(numbers)}). Choose one with --columns reward=NAME."
            raise ConfigError("FILES", None, hint)
        return tuple(numbers)


def columns_of(form: Format, row: Row) -> Row:
    """A line's columns; of a mapping, such as a reward of several parts, the parts as well, as ``reward.PART``."""
    row = form.unpack(row)
    parts = {f"{name}.{part}": value[part] for name, value in row.items() if isinstance(value, dict) for part in value}
    return {**row, **parts}


def _of_texts(row: Row) -> Row:
    """NeMo-RL: ``content`` has the texts of all messages, as sent to the model; values are lists of one."""
    row = {name: value[0] if _is_sequence(value) and len(value) == 1 else value for name, value in row.items()}
    texts: Any = row.get("content")
    if _is_sequence(texts) and len(texts) > 1 and all(isinstance(text, str) for text in texts):
        return {**row, "prompt": "".join(texts[:-1]), "response": texts[-1]}
    return row


def _of_trace(row: Row) -> Row:
    """prime-rl's traces: messages in a graph; the last one that the policy generated, and those that led to it."""
    nodes = row.get("nodes")
    if not isinstance(nodes, list):
        return row
    sampled = [place for place, node in enumerate(nodes) if isinstance(node, dict) and node.get("sampled")]
    if row.get("errors") or not sampled:
        raise LeftOut("of a rollout that failed")
    path = sampled[-1:]
    try:
        while (parent := nodes[path[-1]]["parent"]) is not None:
            path.append(parent)
            if len(path) > len(nodes):
                raise IndexError("a node is its own ancestor")
        reply, *before = (nodes[place]["message"] for place in path)
        rewards = row.get("rewards") or {}
        total = sum(rewards.values()) if rewards else None
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise LeftOut("whose nodes or rewards do not form a trace") from error
    return {"reward": total, **row, "prompt": before[::-1], "completion": [reply]}


def _of_lm_eval(row: Row) -> Row:
    """lm-eval: the prompt as sent, the first response, the metrics that the task names, and the texts of its problem.

    If a request is repeated, lm-eval gives all its responses a single score: that of the first, by its default filter.
    """
    if "filtered_resps" not in row:
        return row
    try:
        request, responses, scored = row["arguments"]["gen_args_0"], row["resps"][0], row["filtered_resps"][0]
        prompt, response, generated = request["arg_0"], responses[0], isinstance(request["arg_1"], dict)
        problem = {name: value for name, value in row["doc"].items() if isinstance(value, str)}
        metrics = {name: row[name] for name in row["metrics"]}
        if _is_sequence(prompt) and isinstance(prompt[0], str):  # a conversation for an API, as JSON
            prompt = parse_json(prompt[0])
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise LeftOut("whose fields are not those of lm-eval") from error
    if not generated:
        raise LeftOut("of a multiple-choice task")
    if _is_sequence(scored) and len(scored) > 1:
        raise LeftOut("with a single score for several responses")
    return {"prompt": prompt, "response": response, "target": row.get("target"), "doc": problem, **metrics}


def _of_inspect(row: Row) -> Row:
    """Inspect: the input as messages, the completion, and the values of all scorers by their names."""
    if INSPECT_SAMPLE not in row:
        return row
    sample = row[INSPECT_SAMPLE]
    try:
        if sample.get("error"):
            raise LeftOut("of a rollout that failed")
        asked, target, completion = sample["input"], sample["target"], sample["output"]["completion"]
        scores = {name: _graded(score["value"]) for name, score in (sample.get("scores") or {}).items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise LeftOut("whose fields are not those of a sample") from error
    if not scores:
        raise LeftOut("without a score")
    return {
        "prompt": [{"role": "user", "content": asked}] if isinstance(asked, str) else asked,
        "response": completion,
        "target": " or ".join(map(str, target)) if _is_sequence(target) else target,
        **scores,
    }


def _graded(value: Any) -> Any:
    """A score with Inspect's grades as numbers, also in one of several parts."""
    if isinstance(value, dict):
        return {name: _graded(part) for name, part in value.items()}
    return _INSPECT_GRADES.get(value, value) if isinstance(value, str) else value


# In the order in which they are tried.
FORMATS = {
    "verl": Format(("input",), ("output",), ("acc", "score"), ("gts",)),
    "openrlhf": Format(("input",), ("output",), ("reward",)),
    "nemo-rl": Format(("prompt",), ("response",), ("rewards",), marks=("content",), unpack=_of_texts),
    "slime": Format(("prompt",), ("response",), ("reward",), ("label",), ("rollout_id",), marks=("rollout_id",)),
    "prime-rl": Format(
        ("prompt",), ("completion",), ("reward",), ("answer",),
        marks=("nodes", "example_id", "trajectory"), unpack=_of_trace,
    ),
    "trl": Format(("prompt",), ("completion",), marks=("advantage",)),
    "lm-eval": Format(("prompt",), ("response",), truth=("target",), marks=("filtered_resps",), unpack=_of_lm_eval),
    "inspect": Format(("prompt",), ("response",), truth=("target",), marks=(INSPECT_SAMPLE,), unpack=_of_inspect),
    "plain": Format(
        ("prompt", "question", "problem", "input"), ("response", "completion", "output"),
        ("reward", "score", "correct"), ("ground_truth", "answer", "label"),
    ),
}  # fmt: skip


def recognise(name: str, columns: Mapping[str, str], row: Row, source: str) -> tuple[str, Format]:
    """The format ``name`` ("auto": the first that fits) for a dump whose first line is ``row``, by its name.

    ``columns`` replaces names of columns. Raises ConfigError, naming ``source``, if nothing fits, and LeftOut for a
    line that is no rollout.
    """
    named = {role: (column,) for role, column in columns.items()}
    nearest = FORMATS["plain"]
    for candidate, rules in FORMATS.items():
        if name == candidate or (name == "auto" and (not rules.marks or any(mark in row for mark in rules.marks))):
            fitted = replace(rules, **named).fitted(row)  # type: ignore[arg-type]
            if fitted is not None:
                return candidate, fitted
            nearest = rules if rules.marks else nearest
    wanted = "of a known trainer" if name == "auto" else f"of {name}"
    found = ", ".join(columns_of(nearest, row))
    hint = f"does not have the columns {wanted}; it has {found}. Name them with --columns prompt=A response=B reward=C."
    raise ConfigError("FILES", source, hint)


def _required(row: Row, name: str) -> Any:
    if row.get(name) is None:
        raise LeftOut(f"without {name}")
    return row[name]


def _number(row: Row, name: str) -> float:
    value = _required(row, name)
    if not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        raise LeftOut(f"whose {name} is not a finite number")
    return float(value)


def _step(row: Row, name: str) -> int:
    step = int(_number(row, name))
    if not 0 <= step < MOST_STEPS:
        raise LeftOut(f"whose {name} is not a step from 0 to {MOST_STEPS - 1}")
    return step


def _text(value: Any, role: str | None = None) -> str:
    """A text, or the texts of a conversation's messages, with ``role`` those of that role alone."""
    if isinstance(value, str):
        return _writable(value)
    if not _is_conversation(value):
        raise LeftOut("whose prompt or response is neither a text nor messages")
    chosen = [turn for turn in value if role is None or turn.get("role", role) == role]
    return "\n\n".join(_content(turn.get("content")) for turn in chosen)


def _content(content: Any) -> str:
    if _is_sequence(content):  # parts of a message, with images beside texts
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return "" if content is None else _writable(str(content))


def _messages(conversation: Sequence[Row]) -> tuple[dict[str, str], ...]:
    return tuple(
        {"role": _writable(str(turn.get("role"))), "content": _content(turn.get("content"))} for turn in conversation
    )


def _writable(text: str) -> str:
    """The text without lone surrogates, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _is_conversation(value: Any) -> bool:
    return _is_sequence(value) and all(isinstance(turn, Mapping) and "content" in turn for turn in value)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple))
