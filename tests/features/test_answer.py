"""The answer locator, on tokenizers that cut `\\boxed{` in different ways."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from meds_openrlhf.features.answer import AnswerLocator, token_bytes


def plain(tokens: list[str]) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)})))


def byte_level(tokens: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def sentencepiece(tokens: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, []))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


TOKENS = ["\\boxed{", "\\", "boxed", "{", "{4", "2", "}", "x", "\\box", "ed{"]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["x", "\\boxed{", "2", "}"], 1),
        (["\\", "boxed", "{", "2", "}"], 2),
        (["\\box", "ed{", "2"], 1),
        (["\\", "boxed", "{4", "2", "}"], 2),  # the brace and the answer's first digit share a token
        (["\\boxed{", "x", "}", "x", "\\boxed{", "2", "}"], 4),  # the last one wins
        (["\\boxed{", "\\boxed{", "2", "}"], 1),
        (["\\boxed{", "}"], 0),  # an empty box: y* is what follows
        (["x", "\\boxed{"], None),  # cut off: nothing follows
        (["x", "2", "}"], None),
        ([], None),
    ],
)
def test_index_of_the_token_that_ends_the_last_opening(pieces: list[str], expected: int | None) -> None:
    locator = AnswerLocator(plain(TOKENS))
    assert locator.locate([TOKENS.index(piece) for piece in pieces]) == expected


def test_byte_level_tokens_are_read_as_bytes() -> None:
    tokens = ["Ġ\\", "boxed", "{", "Ã", "©", "Ċ", "4"]  # "Ã" + "©" are the two bytes of é
    tokenizer = byte_level(tokens)
    assert token_bytes(tokenizer) == [b" \\", b"boxed", b"{", b"\xc3", b"\xa9", b"\n", b"4"]
    assert AnswerLocator(tokenizer).locate([3, 4, 0, 1, 2, 6]) == 4


def test_sentencepiece_spaces_and_byte_fallback() -> None:
    tokens = ["▁\\", "boxed", "<0x7B>", "▁4", "}"]  # 0x7B is the brace
    tokenizer = sentencepiece(tokens)
    assert token_bytes(tokenizer) == [b" \\", b"boxed", b"{", b" 4", b"}"]
    assert AnswerLocator(tokenizer).locate([0, 1, 2, 3, 4]) == 2


def test_other_openings_and_ids_beyond_the_vocabulary() -> None:
    tokens = ["<answer>", "#### ", "7", "x"]
    locator = AnswerLocator(plain(tokens), ["<answer>", "#### "])
    assert locator.locate([0, 2, 1, 2]) == 2
    assert locator.locate([1, 2, 0, 2]) == 2
    assert locator.locate([999, 0, 2]) == 1


def test_special_tokens_stand_for_their_own_text() -> None:
    tokenizer = byte_level(["a", "b"])
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>"})
    assert token_bytes(tokenizer) == [b"a", b"b", b"<|im_end|>"]
