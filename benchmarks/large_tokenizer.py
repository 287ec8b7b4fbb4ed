"""A tokenizer as large as those of real models, which are not at hand."""

from __future__ import annotations

from itertools import product

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 150_000


def large_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-pair tokenizer with as many entries as Qwen's."""
    letters = [chr(number) for number in range(33, 127)]
    pairs = [a + b for a, b in product(letters, letters)]
    quads = [pairs[i] + pairs[j] for i, j in product(range(400), range(400))]
    words = [*letters, " ", *pairs, *quads][: VOCABULARY - 1]
    merges = [(word[: len(word) // 2], word[len(word) // 2 :]) for word in words if len(word) > 1]
    backend = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<eos>")
