"""A character-level tokenizer for the demo's tiny policy, in Hugging Face's fast format.

One token per character, so that a policy of a million parameters needs no larger vocabulary; the fixed pieces of the
Qwen-Math template are one token each, so that a prompt costs its problem and two tokens more.

It is Qwen2's own tokenizer class with a vocabulary of single bytes and not one merge. Loaded beside a Qwen2 config,
transformers 5 rebuilds the pre-tokenizer and the decoder of whatever was saved as Qwen2's: only this class survives it.
"""

from __future__ import annotations

from transformers import AddedToken, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from meds_openrlhf.data.templates import qwen_math_prompt

END_OF_TURN = "<|im_end|>"
START_OF_TURN = "<|im_start|>"
PADDING = "<|endoftext|>"


def build_char_tokenizer(longest_text: int = 512) -> Qwen2Tokenizer:
    """The tokenizer: padding `<|endoftext|>`, end of sequence `<|im_end|>`, and no token added around a text.

    Printable ASCII and newline are one token each, other characters one per UTF-8 byte. Text comes back from encoding
    and decoding exactly as it was (in Unicode's composed form). `longest_text` is `model_max_length`, in tokens.
    """
    if longest_text < 1:
        raise ValueError(f"longest_text is {longest_text}: give the policy's context length in tokens, at least 1")
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(_vocabulary())},
        merges=[],
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        extra_special_tokens=[START_OF_TURN],
        model_max_length=longest_text,
        padding_side="left",  # as a policy that generates wants it
    )
    # Unnormalised like the special tokens: both are then matched in one pass, in which the longest wins.
    tokenizer.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in template_pieces()])
    return tokenizer


def template_pieces() -> tuple[str, str]:
    """The text before the problem and the text after it: the template cut where the problem goes."""
    before, after = qwen_math_prompt("?").split("?")
    return before, after


def _vocabulary() -> list[str]:
    """The special tokens, then the 256 bytes as GPT-2 and Qwen write them: a space is `Ġ`, a newline `Ċ`."""
    return [PADDING, START_OF_TURN, END_OF_TURN, *bytes_to_unicode().values()]
