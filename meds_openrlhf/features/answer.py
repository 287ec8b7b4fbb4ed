"""Locates the final answer of a response in the bytes of its tokens.

Working on bytes makes the search independent of how a tokenizer splits the opening: `\\boxed{` may be one token, seven
tokens, or end inside a token that also contains the answer's first character. Rewards, memory, log and atlas all find
the answer here.
"""

from __future__ import annotations

import functools
import logging
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from meds_openrlhf.features.token_bytes import token_bytes

logger = logging.getLogger(__name__)

# Of computing, for the search in one response. Usual patterns need less than a millisecond.
SEARCH_SECONDS = 1.0
# Characters; what is longer is a loop, not an answer. The steps of the Tower of Hanoi take 4,000, a board 1,400.
LONGEST_ANSWER = 16_384

_BOX = "\\boxed"
_OPENED = re.compile(r"\s*\{")
# Without braces TeX boxes what follows next: a number, a command with its arguments, or a letter.
_UNBRACED = re.compile(
    r"[ \t]*([-+]?(?:\d+(?:[.,/:]\d+)*|\\(?!boxed)[a-zA-Z]+(?:\{(?:[^{}]|\{[^{}]*\})*\})+|\\frac\s*\d\s*\d"
    r"|[a-zA-Z](?=[ \t]*(?:\$|\\[)\]]))))"
)
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is a character, not a group


class AnswerSpan(NamedTuple):
    """Where a final answer is, in characters: from ``start`` to ``end``, behind an opening that ends at ``opening``."""

    opening: int
    start: int
    end: int

    def of(self, text: str) -> str | None:
        """The answer in this ``text``, None if it is empty."""
        return text[self.start : self.end] or None


def last_answer(text: str, pattern: str | None = None) -> AnswerSpan | None:
    r"""Find the content of the last box, ``\boxed{7}`` or ``\boxed {7}``; without any, of the last ``\boxed 7``.

    Returns None without a box. The last counts (Section 3.1 of the paper uses the final answer's first token). The
    answer is empty if its brace is never closed, or if it is longer than `LONGEST_ANSWER`. With a ``pattern``, a
    regular expression with one group, the answer is what `marked_answer` finds, and boxes do not count.
    """
    if pattern is not None:
        span = marked_answer(pattern, text)
        return None if span is None else AnswerSpan(span[0], *span)
    opened = _last_box(text, _OPENED)
    if opened is not None:
        start, end = _without_spaces(text, opened.end(), _closing(text, opened.end()))
        return AnswerSpan(opened.end(), start, end)
    bare = _last_box(text, _UNBRACED)
    if bare is not None and len(bare[1]) <= LONGEST_ANSWER:
        return AnswerSpan(bare.start(1), *bare.span(1))
    return None


def _last_box(text: str, behind: re.Pattern[str]) -> re.Match[str] | None:
    r"""The last match of ``behind`` directly after ``\boxed``, which may also be the command's name in a sentence."""
    at = text.rfind(_BOX)
    while at >= 0:
        found = behind.match(text, at + len(_BOX))
        if found:
            return found
        at = text.rfind(_BOX, 0, at)
    return None


def answer_in(text: str, pattern: str | None = None) -> str | None:
    """The answer that `last_answer` finds, None if there is none."""
    span = last_answer(text, pattern)
    return span.of(text) if span else None


def _closing(text: str, opening: int) -> int:
    """The place of the brace that closes the one before ``opening``; ``opening`` if there is none near enough."""
    depth = 1
    for brace in _BRACES.finditer(text, opening, opening + LONGEST_ANSWER + 1):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return opening


def _without_spaces(text: str, start: int, end: int) -> tuple[int, int]:
    """The start and end of ``text[start:end]`` without outer spaces."""
    answer = text[start:end]
    start += len(answer) - len(answer.lstrip())
    return start, start + len(answer.strip())


def marked_answer(pattern: str, text: str) -> tuple[int, int] | None:
    """Return start and end of the answer in ``text``: the only group of the pattern's last match, without outer spaces.

    Returns None if nothing matches, if the group is empty, or if the search takes longer than `SEARCH_SECONDS`, as a
    regular expression with nested repeats can.
    """
    last = None
    try:
        for match in _compiled(pattern).finditer(text, concurrent=True, timeout=SEARCH_SECONDS):
            last = match
    except TimeoutError:
        logger.warning("meds.features.answer_pattern=%s: takes over %g s on a response", pattern, SEARCH_SECONDS)
        return None
    answer = last[1] if last is not None else None
    if last is None or answer is None or not answer.strip():
        return None
    return _without_spaces(text, *last.span(1))


@functools.lru_cache
def _compiled(pattern: str) -> Any:
    import regex  # unlike re it has a time limit

    return regex.compile(pattern)


def without_ending(text: str, special: tuple[str, ...]) -> str:
    """Strip the special tokens at the end. Special tokens inside stay, because they may open an answer."""
    while special and text.endswith(special):
        text = text[: -max(len(token) for token in special if text.endswith(token))]
    return text


class LocatedAnswer(NamedTuple):
    """A response's final answer: the index of the token ``before`` its first one, and its ``text``; each may be None.

    ``before`` is None if nothing predicts or follows the opening, ``text`` if the answer is empty or never ends.
    """

    before: int | None
    text: str | None


class AnswerLocator:
    """Finds the token before the answer of a response: the one that ends the opening of `last_answer`.

    The constructor looks up the bytes of all tokens once.
    """

    def __init__(self, tokenizer: Any, pattern: str | None = None) -> None:
        self._pattern = pattern
        self._token_bytes = token_bytes(tokenizer)
        if pattern is not None:
            self._special = frozenset(getattr(tokenizer, "tokenizer", tokenizer).all_special_ids)

    def find(self, token_ids: Sequence[int], generated: Sequence[bool] | None = None) -> LocatedAnswer:
        """Find the token that ends the last opening, whose next token is ``y*``, the answer's first, and the answer.

        With a pattern, or in a box without braces, ``y*`` is the token with the answer's first character; a space may
        come before that.

        ``generated`` marks tokens generated by the policy (default: all). Prompts and tool replies are not searched,
        and an opening does not span them. There is no token if there is no opening, or if no generated token follows
        the last opening (the response is cut off there).
        """
        for start, end in _last_first(token_ids, generated):
            pieces = self._bytes_of(token_ids[start:end])
            text = _text(pieces)
            found = last_answer(text, self._pattern)
            if found is not None:
                ends = list(accumulate(map(len, pieces)))
                opening = len(text[: found.opening].encode("utf-8", errors="surrogateescape"))
                if text[: found.opening].endswith("{") and self._pattern is None:
                    before = bisect_right(ends, opening - 1)  # the token that ends the opening
                else:
                    before = bisect_right(ends, opening) - 1  # the one before the answer's first character
                answer = (found.of(text) or "").encode("utf-8", errors="surrogateescape")
                is_followed = 0 <= start + before < end - 1
                return LocatedAnswer(
                    start + before if is_followed else None, answer.decode("utf-8", errors="replace") or None
                )
        return LocatedAnswer(None, None)

    def locate(self, token_ids: Sequence[int], generated: Sequence[bool] | None = None) -> int | None:
        """Return the token before the answer alone, as `find` does."""
        return self.find(token_ids, generated).before

    def _bytes_of(self, token_ids: Sequence[int]) -> list[bytes]:
        end = len(token_ids)
        if self._pattern is not None:  # a pattern may look at the end of the text
            while end and token_ids[end - 1] in self._special:
                end -= 1
        return [self._token_bytes[i] if i < len(self._token_bytes) else b"" for i in token_ids[:end]]


def _text(pieces: Sequence[bytes]) -> str:
    """The tokens' text; what is not UTF-8 becomes characters that no pattern and no box matches."""
    return b"".join(pieces).decode("utf-8", errors="surrogateescape")


def _last_first(token_ids: Sequence[int], generated: Sequence[bool] | None) -> list[list[int]]:
    """Return start and end of each span of generated tokens, last span first."""
    if generated is None:
        return [[0, len(token_ids)]]
    import numpy as np  # late: the command line imports this module

    changes = np.flatnonzero(np.diff(np.concatenate([[False], np.asarray(generated, bool), [False]])))
    spans: list[list[int]] = changes.reshape(-1, 2)[::-1].tolist()
    return spans
