"""Which prompt goes to which shard: pure functions, the same in every process and run."""

from __future__ import annotations

import hashlib


def prompt_key(prompt: str) -> str:
    """The 128-bit hash of a prompt's text, as 32 hexadecimal digits: its key where the data set names none."""
    return hashlib.blake2b(prompt.encode(), digest_size=16).hexdigest()


def shard_of(key: str, shards: int) -> int:
    """The shard that a prompt's key belongs to."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % shards
