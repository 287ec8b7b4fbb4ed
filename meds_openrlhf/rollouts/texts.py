"""Decode token ids to the responses' texts, and locate the answer in each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.chat_templates import CHATML, GEMMA, LLAMA
from meds_openrlhf.features.answer import last_answer, without_ending
from meds_openrlhf.files import write_atomically
from meds_openrlhf.runtime.hub import WITH_ITS_CODE

AT_ONCE = 256  # responses that are converted to Python lists at the same time
# How a part begins that the policy did not write, and how each ends; of tags, with their own name.
_REPLY = re.compile(
    rf"(?P<chatml>{CHATML.others})|(?P<llama>{LLAMA.others})|(?P<gemma>{GEMMA.others})|"
    r"(?P<tag><(?:tool_response|tool_result|information|interpreter|observation)>|\[TOOL_RESULTS\]|"
    r"<｜tool▁output▁begin｜>)|"
    r"(?P<line>(?:^|(?<=\n))(?:user|tool|ipython|observation)\n)|(?P<ipython>ipython\n\n)"
)
_CLOSING = {
    "chatml": CHATML.closing, "llama": LLAMA.closing, "gemma": GEMMA.closing, "tag": "", "line": "\nassistant\n",
    "ipython": "assistant\n\n",
}  # fmt: skip
_OWN_CLOSING = {"[TOOL_RESULTS]": "[/TOOL_RESULTS]", "<｜tool▁output▁begin｜>": "<｜tool▁output▁end｜>"}


@dataclass(frozen=True)
class ResponseText:
    """A response's text, its final answer if any, and the number of characters before the answer."""

    text: str
    answer: str | None = None
    answer_start: int | None = None

    @staticmethod
    def of(text: str, pattern: str | None) -> ResponseText:
        """Return a response with the answer that `last_answer` finds in a turn of the policy's, as `turns_in` does."""
        return _with_answer(turns_in(text), pattern, ())


class ResponseReader:
    """Decodes responses and finds their answers. Pickles to a few bytes, as Ray wants of what it may start again.

    ``tokenizer`` is the file of a fast tokenizer. ``special`` are tokens that are stripped from the end of a text.
    ``pattern`` is as in `last_answer`.
    """

    def __init__(self, tokenizer: Path, special: tuple[str, ...], pattern: str | None = None) -> None:
        self._tokenizer, self._special, self._pattern = tokenizer, tuple(filter(None, special)), pattern

    def read(
        self, token_ids: NDArray[np.int32], tokens: NDArray[np.int64], generated: NDArray[np.bool_]
    ) -> Iterator[ResponseText]:
        """Yield the n responses with the concatenated ``token_ids`` (t,), each with its number of ``tokens`` (n,).

        ``generated`` (t,) marks the policy's tokens; the others are tool replies, which are shown but hold no answers.
        """
        ends = np.cumsum(tokens)
        turns = [_turns(generated, end - length, end) for length, end in zip(tokens, ends)]
        for first in range(0, len(turns), AT_ONCE):
            some = turns[first : first + AT_ONCE]
            ids = [token_ids[start:end].tolist() for of_response in some for start, end in of_response]
            texts = iter(self._decode(ids, skip_special_tokens=False))
            for of_response in some:
                parts = [(next(texts), bool(generated[start])) for start, _ in of_response]
                yield _with_answer(parts, self._pattern, self._special)

    @cached_property
    def _decode(self) -> Any:
        from tokenizers import Tokenizer  # transformers would take seconds and 400 MB

        return Tokenizer.from_file(str(self._tokenizer)).decode_batch


def _with_answer(turns: Sequence[tuple[str, bool]], pattern: str | None, special: tuple[str, ...]) -> ResponseText:
    """The turns as one text; a later answer of the policy's replaces an earlier one."""
    response, answer, start = "", None, None
    for text, is_generated in turns:
        shown = without_ending(text, special)
        found = last_answer(shown, pattern) if is_generated else None
        if found is not None:
            answer = found.of(shown)
            start = None if answer is None else len(response) + found.start
        response += text
    return ResponseText(without_ending(response, special), answer, start)


def turns_in(text: str) -> list[tuple[str, bool]]:
    """The parts of a response of which only the text is known, each with whether the policy wrote it.

    The others are replies of tools and users between chat markers, or between what is left of them where the trainer
    has removed special tokens.
    """
    turns: list[tuple[str, bool]] = []
    end = 0
    for start, to in _replies(text):
        turns += [(text[end:start], True)] if start > end else []
        turns.append((text[start:to], False))
        end = to
    return [*turns, (text[end:], True)] if end < len(text) or not turns else turns


def _replies(text: str) -> Iterator[tuple[int, int]]:
    """The start and end of each part that the policy did not write."""
    # Roles without marks count only where the policy's own turn follows.
    last_own = {"line": text.rfind("\nassistant\n") + 1, "ipython": text.rfind("assistant\n\n")}
    at = 0
    while found := _REPLY.search(text, at):
        closing = _CLOSING[found.lastgroup or ""]
        if found.end() > last_own.get(found.lastgroup or "", len(text)):
            at = found.end()
            continue
        closing = closing or _OWN_CLOSING.get(found["tag"]) or f"</{found['tag'][1:]}"
        end = text.find(closing, found.end())
        at = len(text) if end < 0 else end + len(closing)
        yield found.start(), at


def write_reader(model: str, pattern: str | None, file: Path) -> ResponseReader:
    """Write the fast tokenizer of a model, given by name or folder, to ``file``; return its reader."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, **WITH_ITS_CODE)
    write_atomically(file, tokenizer.backend_tokenizer.to_str(pretty=True))
    return ResponseReader(file, tuple(tokenizer.all_special_tokens), pattern)


def _turns(generated: NDArray[np.bool_], start: int, end: int) -> list[tuple[int, int]]:
    """The start and end of every run of equal values of ``generated`` between ``start`` and ``end``."""
    changes = np.flatnonzero(np.diff(generated[start:end])) + start + 1
    return list(pairwise([start, *changes.tolist(), end])) if end > start else []
