"""Values of a dump's columns as texts, numbers and messages; a value of another kind leaves its line out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from reprlib import Repr
from typing import Any, TypeGuard

from meds_openrlhf.chat_templates import CHATML
from meds_openrlhf.paths import MOST_STEPS

Row = Mapping[str, Any]
POLICY = "assistant"  # the role of messages that the policy wrote
# Inspect's grades (correct, partial, incorrect, no answer), and truth values that a writer turned into text.
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_BRIEFLY = Repr()
_BRIEFLY.maxlevel, _BRIEFLY.maxdict, _BRIEFLY.maxlist, _BRIEFLY.maxstring = 4, 20, 20, 2_000
_MOST = 10_000  # characters of a value that is no text


# What a value raises of a kind that no reader foresaw; the line is left out, and the others are read.
ODD = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)


class LeftOut(Exception):
    """Reason a line was skipped; the message goes into the summary."""


def required(row: Row, name: str) -> Any:
    """The value of a column. Raises LeftOut without one."""
    if row.get(name) is None:
        raise LeftOut(f"without {name}")
    return row[name]


def as_number(value: Any) -> float | None:
    """A finite number, also as a text (1.0, True, yes, or a grade of Inspect's: C, P, I, N); None for anything else."""
    if isinstance(value, str):
        value = _GRADES.get(value, _WORDS.get(value.strip().lower(), value))
        try:
            value = float(value) if len(value) <= 40 else None
        except (TypeError, ValueError):
            value = value if isinstance(value, float) else None
    try:
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
    except OverflowError:
        return None


def number(row: Row, name: str) -> float:
    """The number in a column. Raises LeftOut if it is none."""
    found = as_number(required(row, name))
    if found is None:
        raise LeftOut(f"whose {name} is not a finite number")
    return found


def step_number(row: Row, name: str) -> int:
    """The step in a column. Raises LeftOut if it is none."""
    step = int(number(row, name))
    if not 0 <= step < MOST_STEPS:
        raise LeftOut(f"whose {name} is not a step from 0 to {MOST_STEPS - 1}")
    return step


def label(value: Any) -> str | None:
    """A label as text: of a list, its items as alternatives."""
    if is_sequence(value) and 0 < len(value) <= 20 and not any(is_sequence(item) for item in value):
        return " or ".join(writable(item if isinstance(item, str) else _brief(item)) for item in value)
    return None if value is None else writable(value if isinstance(value, str) else _brief(value))


def prompt_text(value: Any) -> str:
    """A text, or the texts of all messages of a conversation. Raises LeftOut."""
    return writable(value) if isinstance(value, str) else "\n\n".join(map(content_of, _conversation(value)))


def response_text(value: Any) -> str:
    """A text, or messages as one: the policy's turns and, marked as in ChatML, the replies between them.

    Replies behind the policy's last turn are left out: they were no part of what it did. Raises LeftOut.
    """
    if isinstance(value, str):
        return writable(value)
    turns = list(_conversation(value))
    while turns and turns[-1].get("role", POLICY) != POLICY:
        turns.pop()
    text = ""
    for place, turn in enumerate(turns):
        role = str(turn.get("role", POLICY))
        if place or role != POLICY:
            text += f"{CHATML.closing}\n" * bool(place) + f"{CHATML.opening}{role}{CHATML.header}"
        text += content_of(turn)
    return text


def messages_of(value: Any) -> tuple[dict[str, str], ...]:
    """The roles and contents of a conversation; none of anything else."""
    if not is_conversation(value):
        return ()
    return tuple({"role": writable(str(turn.get("role"))), "content": content_of(turn)} for turn in value)


def content_of(message: Row) -> str:
    """A message's text: reasoning in ``<think>``, its text parts, and calls of tools in ``<tool_call>``."""
    content, thought = message.get("content"), message.get("reasoning_content")
    if is_sequence(content):  # with images beside texts
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    text = content if isinstance(content, str) else "" if content is None else _brief(content)
    if isinstance(thought, str) and thought.strip():
        text = f"<think>\n{thought}\n</think>\n\n{text}"
    calls = message.get("tool_calls")
    for call in calls if is_sequence(calls) else ():
        if isinstance(call, Mapping):
            what = call["function"] if isinstance(call.get("function"), Mapping) else call
            name, arguments = what.get("name") or what.get("function"), what.get("arguments")
            text += (
                f"\n<tool_call>\n{name}({arguments if isinstance(arguments, str) else _brief(arguments)})\n</tool_call>"
            )
    return writable(text)


def writable(text: str) -> str:
    """The text without lone surrogates, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def is_conversation(value: Any) -> TypeGuard[Sequence[Row]]:
    """Whether it is a list of messages; a message that only calls a tool has no content."""
    return is_sequence(value) and all(
        isinstance(turn, Mapping) and ("content" in turn or "role" in turn) for turn in value
    )


def is_sequence(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether it is a list or a tuple."""
    return isinstance(value, (list, tuple))


def _brief(value: Any) -> str:
    """A value as text, bounded: in a pickled one, a list may hold itself, or the same list many times."""
    try:
        return _BRIEFLY.repr(value)[:_MOST]
    except ValueError:  # an integer of thousands of digits
        return "..."


def _conversation(value: Any) -> Sequence[Row]:
    if not is_conversation(value):
        raise LeftOut("whose prompt or response is neither a text nor messages")
    return value
