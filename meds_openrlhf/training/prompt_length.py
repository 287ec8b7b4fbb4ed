"""Which prompts are too long to train on: OpenRLHF's engines would cut their beginning off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def longest_prompt(args: SimpleNamespace) -> int:
    """The number of tokens that ``data.max_len`` and ``rollout.max_new_tokens`` leave to a prompt."""
    most: int = args.data.max_len - (args.rollout.max_new_tokens or 1)
    return most


def is_too_long(text: str, most: int, tokenizer: Any) -> bool:
    """Whether the prompt, as the engines get it, has more than ``most`` tokens.

    A token has at least one byte, so only long texts are tokenized.
    """
    return len(text.encode()) > most and len(tokenizer(text=text, add_special_tokens=False)["input_ids"]) > most
