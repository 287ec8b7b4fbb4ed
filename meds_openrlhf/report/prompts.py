"""What prompts say, without what their template puts around them all."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import takewhile

from meds_openrlhf.config.loader import RunConfig
from meds_openrlhf.memory.tools.prompt_texts import prompt_texts

_MARKER = re.compile(r"<\|\w+\|>")  # <|im_end|>


def questions(keys: Collection[str], logged: Mapping[str, str], config: RunConfig | None) -> dict[str, str]:
    """The prompts' own texts by key: from the log of rollouts, or else from the run's data set, if it is at hand."""
    wanted = set(keys)
    if logged:
        return without_template({key: text for key, text in logged.items() if key in wanted})
    if config is None:
        return {}
    found = prompt_texts(config, wanted)
    return {
        key: _plain(text.removeprefix(found.shared).removesuffix(found.shared_end)) or text
        for key, text in found.by_key.items()
    }


def without_template(texts: dict[str, str]) -> dict[str, str]:
    """The texts without the lines that all of them begin and end with, and without chat markers."""
    distinct = sorted(set(texts.values()))
    if len(distinct) < 2:
        return {key: _plain(text) for key, text in texts.items()}
    head = _common_start(distinct[0], distinct[-1])
    head = head[: head.rfind("\n") + 1]
    turned = sorted(text[::-1] for text in distinct)
    tail = _common_start(turned[0], turned[-1])[::-1]
    tail = tail[tail.find("\n") :] if "\n" in tail else ""
    return {key: _plain(text[len(head) :].removesuffix(tail)) or text for key, text in texts.items()}


def _common_start(one: str, other: str) -> str:
    """What both begin with; of sorted texts the first and the last have in common what all have."""
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))


def _plain(text: str) -> str:
    return _MARKER.sub("", text).strip()
