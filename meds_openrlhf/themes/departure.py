"""Where a wrong response first departs from the right ones, in words that can be compared across prompts.

Numbers are what differs between prompts, so each is replaced by its part in the problem: it is in the prompt, it is in
a right response to the same prompt, or it is in neither and thus wrong. Ignored brackets, for example, then read as
``given * given = wrong`` whatever the numbers are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORD = re.compile(r"\d+(?:\.\d+)?|\\?[^\W\d]+|[^\w\s]")

GIVEN, RIGHT, WRONG, AGAIN = "given", "right", "wrong", "wrong-again"  # AGAIN: a wrong number that came before

BEFORE, AFTER = 5, 1  # words that are kept around the first wrong number


def numbers_in(texts: Iterable[str]) -> frozenset[str]:
    """Return all numbers that are written in ``texts``, as they are written."""
    return frozenset(word for text in texts for word in _WORD.findall(text) if word[0].isdecimal())


def words_of(response: str, given: frozenset[str], right: frozenset[str]) -> list[str]:
    """Return the words of ``response`` in lower case, with numbers replaced (see the module's docstring).

    ``given`` and ``right`` are the numbers in the prompt and in right responses to it.
    """
    words: list[str] = []
    wrong: set[str] = set()
    for word in _WORD.findall(response):
        if not word[0].isdecimal():
            words.append(word.lower())
        elif word in given or word in right:
            words.append(GIVEN if word in given else RIGHT)
        else:
            words.append(AGAIN if word in wrong else WRONG)
            wrong.add(word)
    return words


def departure(response: str, given: frozenset[str], right: frozenset[str]) -> tuple[list[str], slice]:
    """Return the `words_of` a wrong response around its first wrong number, and where they are in it, in characters.

    Without a wrong number, these are its last words.
    """
    written, known = list(_WORD.finditer(response)), given | right
    wrong = (place for place, word in enumerate(written) if word[0][0].isdecimal() and word[0] not in known)
    first = next(wrong, len(written))  # not the first `WRONG`, which may be a word of the response
    part = slice(max(first - BEFORE, 0), first + 1 + AFTER)
    places = written[part]
    characters = slice(places[0].start(), places[-1].end()) if places else slice(0, 0)
    return words_of(response, given, right)[part], characters
