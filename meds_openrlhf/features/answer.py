"""Locates the final answer of a response in the bytes of its tokens.

Working on bytes makes the search independent of how a tokenizer splits the opening: `\\boxed{` may be one token, seven
tokens, or end inside a token that also contains the answer's first character.
"""

from __future__ import annotations

import functools
import logging
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from meds_openrlhf.features.token_bytes import token_bytes

logger = logging.getLogger(__name__)

# Of computing, for the search in one response. Usual patterns need less than a millisecond.
SEARCH_SECONDS = 1.0
# Characters; what is longer is a loop, not an answer. The steps of the Tower of Hanoi take 4,000, a board 1,400.
LONGEST_ANSWER = 16_384

_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is a character, not a group


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
    start = last.start(1) + len(answer) - len(answer.lstrip())
    return start, start + len(answer.strip())


@functools.lru_cache
def _compiled(pattern: str) -> Any:
    import regex  # unlike re it has a time limit; installed with transformers, not with the base installation

    return regex.compile(pattern)


def without_ending(text: str, special: tuple[str, ...]) -> str:
    """Strip the special tokens at the end. Special tokens inside stay, because they may open an answer."""
    while special and text.endswith(special):
        text = text[: -max(len(token) for token in special if text.endswith(token))]
    return text


def answer_behind(text: str, in_braces: bool = True) -> str | None:
    """Return the answer at the start of ``text``, which stands behind an opening, or None if there is none.

    ``in_braces``: the answer ends at the brace that closes the opening, otherwise at the end of the line. There is none
    if it is empty, longer than `LONGEST_ANSWER`, or its brace is never closed.
    """
    if not in_braces:
        line = text.partition("\n")[0].strip()
        return line if 0 < len(line) <= LONGEST_ANSWER else None
    depth = 1
    for brace in _BRACES.finditer(text, 0, LONGEST_ANSWER + 1):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[: brace.start()].strip() or None
    return None


def answer_start(text: str, opening: int, answer: str) -> int:
    """Return the number of characters before ``answer``, which follows the first ``opening`` bytes of ``text``."""
    return text.index(answer, len(text.encode()[:opening].decode(errors="replace")))


class AnswerOpenings:
    """Where final answers begin: behind one of the texts ``openings``, such as ``\\boxed{``, or where ``pattern`` says.

    If a response has several openings, the last counts (Section 3.1 of the paper uses the final answer's first token).
    ``pattern`` is a regular expression with one group, the answer; it replaces the openings.
    """

    def __init__(self, openings: Sequence[str] = ("\\boxed{",), pattern: str | None = None) -> None:
        self._openings = [opening.encode() for opening in openings]
        self.pattern = pattern

    def last_answer(self, text: bytes) -> tuple[int, str | None] | None:
        """Return the byte offset where the last answer begins, and the answer, None if it is empty or never closed.

        Returns None if nothing opens an answer. Invalid UTF-8 matches no character of a pattern.
        """
        if self.pattern is None:
            opening = max((text.rfind(o) + len(o) for o in self._openings if o in text), default=0)
            rest = text[opening:].decode("utf-8", errors="replace")
            return (opening, answer_behind(rest, text[opening - 1 : opening] == b"{")) if opening else None
        readable = text.decode("utf-8", errors="surrogateescape")
        span = marked_answer(self.pattern, readable)
        if span is None:
            return None
        before, answer = (
            part.encode("utf-8", errors="surrogateescape") for part in (readable[: span[0]], readable[slice(*span)])
        )
        return len(before), answer.decode("utf-8", errors="replace")


class AnswerLocator:
    """Finds the token before the answer of a response: the one that ends the last answer opening.

    ``openings`` and ``pattern`` are as in `AnswerOpenings`. The constructor looks up the bytes of all tokens once.
    """

    def __init__(self, tokenizer: Any, openings: Sequence[str] = ("\\boxed{",), pattern: str | None = None) -> None:
        self._openings = AnswerOpenings(openings, pattern)
        self._token_bytes = token_bytes(tokenizer)
        if pattern is not None:
            self._special = frozenset(getattr(tokenizer, "tokenizer", tokenizer).all_special_ids)

    def locate(self, token_ids: Sequence[int], generated: Sequence[bool] | None = None) -> int | None:
        """Return the index of the token that ends the last opening; the next token is ``y*``, the answer's first.

        With a pattern, ``y*`` is the token with the answer's first character; a space may come before that.

        ``generated`` marks tokens generated by the policy (default: all). Prompts and tool replies are not searched,
        and an opening does not span them. Returns None if there is no opening, or if no generated token follows the
        last opening (the response is cut off there).
        """
        for start, end in _last_first(token_ids, generated):
            pieces = self._bytes_of(token_ids[start:end])
            found = self._openings.last_answer(b"".join(pieces))
            if found is not None:
                ends = list(accumulate(map(len, pieces)))
                before = bisect_right(ends, found[0] - 1)  # the token that ends the opening
                if self._openings.pattern is not None:
                    before = bisect_right(ends, found[0]) - 1
                return start + before if 0 <= start + before < end - 1 else None
        return None

    def answer(self, token_ids: Sequence[int], generated: Sequence[bool] | None = None) -> str | None:
        """Return the text of the final answer, as `answer_behind` does; ``generated`` as in `locate`."""
        for start, end in _last_first(token_ids, generated):
            found = self._openings.last_answer(b"".join(self._bytes_of(token_ids[start:end])))
            if found is not None:
                return found[1]
        return None

    def _bytes_of(self, token_ids: Sequence[int]) -> list[bytes]:
        end = len(token_ids)
        if self._openings.pattern is not None:  # a pattern may look at the end of the text
            while end and token_ids[end - 1] in self._special:
                end -= 1
        return [self._token_bytes[i] if i < len(self._token_bytes) else b"" for i in token_ids[:end]]


def _last_first(token_ids: Sequence[int], generated: Sequence[bool] | None) -> list[list[int]]:
    """Return start and end of each span of generated tokens, last span first."""
    if generated is None:
        return [[0, len(token_ids)]]
    import numpy as np  # late: the command line imports this module

    changes = np.flatnonzero(np.diff(np.concatenate([[False], np.asarray(generated, bool), [False]])))
    spans: list[list[int]] = changes.reshape(-1, 2)[::-1].tolist()
    return spans
