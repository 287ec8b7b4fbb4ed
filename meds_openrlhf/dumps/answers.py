"""Where a dump's responses have their final answers, if nobody has said it."""

from __future__ import annotations

from collections.abc import Sequence

from meds_openrlhf.dumps.formats import Rollout
from meds_openrlhf.rollouts.texts import ResponseText

COLUMN = "column"  # the trainer's own, in place of a pattern
# Each the pattern of meds.features.answer_pattern; None is a box. In the order in which they are preferred. Bounded, so
# that no text makes a search long.
STYLES: dict[str, str | None] = {
    "\\boxed{}": None,
    # A number, or what stands in the last line: others begin with it as a heading of Markdown.
    "####": r"####[ \t]{0,9}+([-+$]{0,2}[\d.,]*\d%?(?=[ \t.$]*(?:\n|<|\Z))|[^\n<]{1,200}+"
    r"(?=\s{0,9}(?:<[^<>\s]{1,30}>\s{0,9}){0,4}\Z))",
    "<answer>": r"(?s)<answer>((?:(?!</?answer>).){1,4000}?)</answer>",
    "Answer:": r"(?i)\banswer\*{0,4}[ \t]{0,4}[:：][ \t*$]{0,9}+"
    r"((?:(?!<\||answer\b|[ \t.*$]{1,9}(?:\n|<\||\Z))[^\n]){1,200}+)(?=[ \t.*$]{0,9}(?:\n|<\||\Z))",
}


def style_of(rollouts: Sequence[Rollout], with_column: bool) -> str:
    """The style in which most of the responses have an answer: a key of `STYLES`, or `COLUMN` if that may be it.

    Scratch work does not count if something follows it.
    """
    texts = [rollout.response.rpartition("</think>")[2] or rollout.response for rollout in rollouts]
    found = {
        name: sum(ResponseText.of(text, pattern).answer is not None for text in texts)
        for name, pattern in STYLES.items()
    }
    if with_column:
        found[COLUMN] = sum(rollout.answer is not None for rollout in rollouts)
    return max(found, key=found.__getitem__)  # the first of equals


def name_of(pattern: str | None, column: bool) -> str:
    """Where answers are looked for, in words."""
    if column:
        return "the trainer's own column"
    return next((name for name, known in STYLES.items() if known == pattern), f"what {pattern} matches")
