"""A character-level tokenizer for the demo's tiny policy, in Hugging Face's fast format.

There is one token per character, so that a policy of a million parameters has a small vocabulary. The two fixed parts
of the Qwen-Math template are single tokens, so that a prompt has only two tokens more than its problem. The
phrases of responses may be single tokens too.

The class is Qwen2's own tokenizer, with a vocabulary of single bytes and no merges. Next to a Qwen2 config,
transformers 5 replaces the pre-tokenizer and the decoder of any saved tokenizer by Qwen2's; only this class survives
that unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable

from transformers import AddedToken, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from meds_openrlhf.data.questions import qwen_math_prompt

END_OF_TURN = "<|im_end|>"
START_OF_TURN = "<|im_start|>"
PADDING = "<|endoftext|>"


def build_char_tokenizer(longest_text: int = 512, pieces: Iterable[str] = ()) -> Qwen2Tokenizer:
    """Build the tokenizer: padding `<|endoftext|>`, end of sequence `<|im_end|>`, and no tokens added around a text.

    Printable ASCII and newline are one token each, other characters one per UTF-8 byte. Encoding and decoding restore a
    text exactly (in Unicode's composed form). `longest_text` is `model_max_length`, in tokens. The `pieces` are single
    tokens too, wherever they occur; the longest match wins.
    """
    # The special tokens, then the 256 bytes in GPT-2's and Qwen's notation: a space is `Ġ`, a newline `Ċ`.
    vocabulary = [PADDING, START_OF_TURN, END_OF_TURN, *bytes_to_unicode().values()]
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(vocabulary)},
        merges=[],
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        extra_special_tokens=[START_OF_TURN],
        model_max_length=longest_text,
        padding_side="left",  # generation needs left padding
    )
    # Unnormalised like the special tokens, so that both are matched in the same pass and the longest match wins.
    tokenizer.add_tokens(
        [AddedToken(piece, normalized=False, special=False) for piece in (*template_pieces(), *pieces)]
    )
    return tokenizer


def template_pieces() -> tuple[str, str]:
    """The parts of the template before and after the problem."""
    before, after = qwen_math_prompt("?").split("?")
    return before, after
