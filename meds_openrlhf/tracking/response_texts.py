"""Decode token ids to the responses' texts, and locate the answer in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.features.answer import AnswerOpenings

AT_ONCE = 256  # responses that are converted to Python lists at the same time


@dataclass(frozen=True)
class ResponseText:
    """A response's text, its final answer (None if it has none) and the number of characters before the answer."""

    text: str
    answer: str | None = None
    answer_start: int | None = None


class ResponseReader:
    """Decodes responses and finds their answers.

    ``model`` is a name or a folder. Its tokenizer is loaded by the process that reads first: arguments of an actor that
    Ray restarts have to be small, and a large vocabulary is not.
    """

    def __init__(self, model: str, answers: AnswerOpenings) -> None:
        self._model, self._answers = model, answers

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._model, trust_remote_code=True)

    @cached_property
    def _special(self) -> tuple[str, ...]:
        """The tokens that are stripped from the end of a text."""
        return tuple(filter(None, self._tokenizer.all_special_tokens))

    def read(
        self, tokens: NDArray[np.int32], lengths: NDArray[np.int64], generated: NDArray[np.bool_]
    ) -> Iterator[ResponseText]:
        """Yield the n responses with the concatenated ``tokens`` (t,) and the given ``lengths`` (n,).

        ``generated`` (t,) marks the policy's tokens; the others are tool replies, which are shown but hold no answers.
        """
        ends = np.cumsum(lengths)
        for first in range(0, len(lengths), AT_ONCE):
            some = slice(first, first + AT_ONCE)
            pieces = [
                (number, own, tokens[start + begin : start + end].tolist())
                for number, (start, length) in enumerate(zip(ends[some] - lengths[some], lengths[some]))
                for begin, end, own in _runs(generated[start : start + length])
            ]
            texts = self._decode([ids for _, _, ids in pieces])
            of_response = groupby(zip(pieces, texts), key=lambda one: one[0][0])
            found = {number: self._join([(text, own) for (_, own, _), text in group]) for number, group in of_response}
            yield from (found.get(number, ResponseText("")) for number in range(len(lengths[some])))

    def _join(self, pieces: list[tuple[str, bool]]) -> ResponseText:
        response, answer, start = "", None, None
        for text, own in pieces:
            shown = self._without_ending(text)
            encoded = shown.encode()
            opening = self._answers.end_of_last(encoded) if own else 0
            if opening:  # a later answer replaces an earlier answer
                answer, start = self._answers.answer_after(encoded, opening), None
                if answer is not None:
                    start = len(response) + shown.index(answer, len(encoded[:opening].decode(errors="replace")))
            response += text
        return ResponseText(self._without_ending(response), answer, start)

    def _without_ending(self, text: str) -> str:
        """Strip the special tokens at the end. Special tokens inside stay, because they may open an answer."""
        while text.endswith(self._special):
            text = text[: -max(len(one) for one in self._special if text.endswith(one))]
        return text

    def _decode(self, pieces: list[list[int]]) -> list[str]:
        tokenizer = self._tokenizer
        decode = tokenizer.backend_tokenizer.decode_batch if tokenizer.is_fast else tokenizer.batch_decode
        texts: list[str] = decode(pieces, skip_special_tokens=False)
        return texts


def _runs(own: NDArray[np.bool_]) -> list[tuple[int, int, bool]]:
    """The start, end and value of every run of equal values."""
    bounds = [0, *(np.flatnonzero(np.diff(own)) + 1).tolist(), len(own)] if len(own) else [0]
    return [(begin, end, bool(own[begin])) for begin, end in pairwise(bounds)]
