"""The data set's own ids of prompts, small enough to be sent to the trainer for a million of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True)
class PromptIds:
    """Ids by the text of their prompt: sorted ``hashes`` (n,) of the texts, and the ``ids`` (n,) in that order."""

    hashes: NDArray[np.uint64]
    ids: pa.StringArray

    def __getitem__(self, text: str) -> str:
        """Return the id of a prompt, given as the engines get it. Raises KeyError for one that is not in the set."""
        wanted = text_hash(text)
        place = int(np.searchsorted(self.hashes, np.uint64(wanted)))
        if place == len(self.hashes) or self.hashes[place] != wanted:
            raise KeyError(text)
        return str(self.ids[place].as_py())


def text_hash(text: str) -> int:
    """Return 64 bits of the text's BLAKE2 hash: two of a million prompts share them once in 40 million data sets."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
