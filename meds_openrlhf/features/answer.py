"""Where a response's final answer begins, found on the bytes of its tokens.

Working on bytes makes the search independent of how a tokenizer cuts the opening: `\\boxed{` may be one token, seven,
or end inside a token that already holds the answer's first character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from meds_openrlhf.features.token_bytes import token_bytes


class AnswerOpenings:
    """What opens a final answer: ``openings``, texts such as ``\\boxed{``, and a regular expression, ``pattern``.

    Of several openings in a response the last one wins (Section 3.1 of the paper takes the final answer's first token).
    """

    def __init__(self, openings: Sequence[str] = ("\\boxed{",), pattern: str | None = None) -> None:
        self._openings = [opening.encode() for opening in openings]
        self._pattern = re.compile(pattern) if pattern else None

    def end_of_last(self, text: bytes) -> int:
        """Byte offset of the end of the last opening; 0 for none."""
        end = max((text.rfind(o) + len(o) for o in self._openings if o in text), default=0)
        return end if self._pattern is None else max(end, self._last_match(text))

    @staticmethod
    def answer_after(text: bytes, opening: int) -> str | None:
        """The answer after the opening that ends at byte offset ``opening``; None where there is none.

        It goes to the brace that closes the opening, or to the end of the line where the opening ends in no brace. An
        empty one is none, nor is one whose brace is never closed.
        """
        rest = text[opening:].decode("utf-8", errors="replace")
        found = _up_to_closing_brace(rest) if text[opening - 1 : opening] == b"{" else rest.partition("\n")[0]
        return (found or "").strip() or None

    def _last_match(self, text: bytes) -> int:
        """Byte offset of the end of the pattern's last match; 0 for none. Bytes that are no UTF-8 match nothing."""
        assert self._pattern is not None
        readable = text.decode("utf-8", errors="surrogateescape")
        end = 0
        for match in self._pattern.finditer(readable):
            end = match.end()
        return len(readable[:end].encode("utf-8", errors="surrogateescape"))


class AnswerLocator:
    """Finds the token that ends the last answer opening of a response.

    ``openings`` and ``pattern`` as in `AnswerOpenings`. Each token's bytes are looked up once, here.
    """

    def __init__(self, tokenizer: Any, openings: Sequence[str] = ("\\boxed{",), pattern: str | None = None) -> None:
        self._openings = AnswerOpenings(openings, pattern)
        self._token_bytes = token_bytes(tokenizer)

    def locate(self, token_ids: Sequence[int], generated: Sequence[bool] | None = None) -> int | None:
        """Index of the token that ends the last opening; the next token is y*, the answer's first.

        ``generated`` marks the policy's own tokens (default: all). Prompts and tools' replies are no answers, and no
        opening reaches across them. None where there is no opening, or where none of the policy's own tokens follows
        the last one (a response cut off right there).
        """
        for start, end in _last_first(token_ids, generated):
            found = self._last_opening(self._bytes_of(token_ids[start:end]))
            if found is not None:
                return start + found if start + found + 1 < end else None
        return None

    def answer(self, token_ids: Sequence[int], generated: Sequence[bool] | None = None) -> str | None:
        """The text of the final answer, as `AnswerOpenings.answer_after` has it; ``generated`` as in `locate`."""
        for start, end in _last_first(token_ids, generated):
            text = b"".join(self._bytes_of(token_ids[start:end]))
            opening = self._openings.end_of_last(text)
            if opening:
                return self._openings.answer_after(text, opening)
        return None

    def _bytes_of(self, token_ids: Sequence[int]) -> list[bytes]:
        return [self._token_bytes[i] if i < len(self._token_bytes) else b"" for i in token_ids]

    def _last_opening(self, pieces: list[bytes]) -> int | None:
        """Index of the token that holds the last byte of the last opening."""
        text = b"".join(pieces)
        end = self._openings.end_of_last(text)
        if end == 0:
            return None
        index = len(pieces)
        start = len(text)
        while start >= end:  # answers stand near the end, so walk back from there
            index -= 1
            start -= len(pieces[index])
        return index


def _up_to_closing_brace(text: str) -> str | None:
    depth = 1
    for index, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[:index]
    return None


def _last_first(token_ids: Sequence[int], generated: Sequence[bool] | None) -> Iterator[tuple[int, int]]:
    """Start and end of each span of the policy's own tokens, the last span first."""
    return reversed([(0, len(token_ids))] if generated is None else list(_spans(generated)))


def _spans(generated: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Start and end of each run of True."""
    start = None
    for index, own in enumerate([*generated, False]):
        if own and start is None:
            start = index
        elif not own and start is not None:
            yield start, index
            start = None
