"""Decode token ids to the responses' texts, and locate the answer in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.features.answer import AnswerOpenings, without_ending

AT_ONCE = 256  # responses that are converted to Python lists at the same time


@dataclass(frozen=True)
class ResponseText:
    """A response's text, its final answer (None if it has none) and the number of characters before the answer."""

    text: str
    answer: str | None = None
    answer_start: int | None = None


class ResponseReader:
    """Decodes responses and finds their answers. Pickles to a few bytes, as Ray wants of what it may start again.

    ``tokenizer`` is the file of a fast tokenizer, or the name of a model without one. ``special`` are tokens that are
    stripped from the end of a text.
    """

    def __init__(self, tokenizer: str, special: tuple[str, ...], answers: AnswerOpenings) -> None:
        self._tokenizer, self._special, self._answers = tokenizer, tuple(filter(None, special)), answers

    @staticmethod
    def of(model: str, answers: AnswerOpenings, file: Path) -> ResponseReader:
        """The reader for a model, given by name or folder; a fast tokenizer is written to ``file``."""
        tokenizer = _load(model)
        if tokenizer.is_fast:
            tokenizer.backend_tokenizer.save(str(file))
        return ResponseReader(str(file) if tokenizer.is_fast else model, tuple(tokenizer.all_special_tokens), answers)

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
                (number, sampled, tokens[start + begin : start + end].tolist())
                for number, (start, length) in enumerate(zip(ends[some] - lengths[some], lengths[some]))
                for begin, end, sampled in _runs(generated[start : start + length])
            ]
            texts = self._decode([ids for _, _, ids in pieces])
            of_response = groupby(zip(pieces, texts), key=lambda pair: pair[0][0])
            found = {
                number: self._join([(text, sampled) for (_, sampled, _), text in group])
                for number, group in of_response
            }
            yield from (found.get(number, ResponseText("")) for number in range(len(lengths[some])))

    def _join(self, pieces: list[tuple[str, bool]]) -> ResponseText:
        response, answer, start = "", None, None
        for text, sampled in pieces:
            shown = without_ending(text, self._special)
            encoded = shown.encode()
            found = self._answers.last_answer(encoded) if sampled else None
            if found is not None:  # a later answer replaces an earlier answer
                (opening, answer), start = found, None
                if answer is not None:
                    start = len(response) + shown.index(answer, len(encoded[:opening].decode(errors="replace")))
            response += text
        return ResponseText(without_ending(response, self._special), answer, start)

    def _decode(self, pieces: list[list[int]]) -> list[str]:
        texts: list[str] = self._decode_batch(pieces, skip_special_tokens=False)
        return texts

    @cached_property
    def _decode_batch(self) -> Any:
        if not Path(self._tokenizer).is_file():
            return _load(self._tokenizer).batch_decode
        from tokenizers import Tokenizer  # transformers would take seconds and 400 MB

        return Tokenizer.from_file(self._tokenizer).decode_batch


def _load(model: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, trust_remote_code=True)


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int, bool]]:
    """The start, end and value of every run of equal values."""
    bounds = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(mask)] if len(mask) else [0]
    return [(begin, end, bool(mask[begin])) for begin, end in pairwise(bounds)]
