"""The answer locator, on tokenizers that cut `\\boxed{` in different ways."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer
from meds_openrlhf.features.answer import LONGEST_ANSWER, AnswerLocator, answer_in, marked_answer
from meds_openrlhf.features.token_bytes import token_bytes
from meds_openrlhf.rewards.grading import answer_environment, answer_of
from meds_openrlhf.rollouts.texts import ResponseReader


def plain(tokens: list[str]) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)})))


def byte_level(tokens: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def sentencepiece(tokens: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, []))
    spaces = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([spaces[0], decoders.ByteFallback(), decoders.Fuse(), spaces[1]])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


TOKENS = ["\\boxed{", "\\", "boxed", "{", "{4", "2", "}", "x", "\\box", "ed{"]


def test_tokens_are_read_as_bytes() -> None:
    tokens = ["Ġ\\", "boxed", "{", "Ã", "©", "Ċ", "4", "日本"]  # "Ã" + "©" are the two bytes of é
    tokenizer = byte_level(tokens)
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>"})
    found = [b" \\", b"boxed", b"{", b"\xc3", b"\xa9", b"\n", b"4", "日本".encode(), b"<|im_end|>"]
    assert token_bytes(tokenizer) == found  # what is of other symbols or special stands for its own text
    pieces = sentencepiece(["▁\\", "boxed", "<0x7B>", "▁4", "}", "<0xFF>"])  # 0x7B is the brace
    assert token_bytes(pieces) == [b" \\", b"boxed", b"{", b" 4", b"}", b"\xff"]
    assert AnswerLocator(pieces).find([0, 1, 2, 5, 3, 4]).text == "\ufffd 4"


def test_slow_tokenizers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"SimpleNamespace is not a fast tokenizer"):
        token_bytes(SimpleNamespace(get_vocab=dict, get_added_vocab=dict))


def test_tokenizers_of_word_pieces_are_refused() -> None:
    """They write a space between words that is in no token, so answers by bytes are not those of the text."""
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="a WordPiece tokenizer writes spaces that are in no token"):
        AnswerLocator(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


def test_ids_beyond_the_vocabulary_and_tokens_of_others() -> None:
    locator = AnswerLocator(plain(TOKENS), r"x(\d)")
    assert locator.locate([4, 7, 5]) == locator.locate([999, 7, 5]) == 1  # engines pad the vocabulary
    assert locator.find([7, 5]).text == "2"
    assert locator.find([7, 5], [False, False]).text is None


@pytest.mark.parametrize(
    ("tokens", "before"),
    [
        (["\\boxed", " {", "5", "}"], 1),
        (["\\boxed", "\n", "{", " 5", "}"], 2),
        (["$\\", "boxed", " 5", "$."], 1),  # the space belongs to the answer's token
        (["\\boxed", "5", "$"], 0),
        (["\\boxed", " ", "5", "$"], 1),
    ],
)
def test_the_token_before_an_answer_in_a_box_of_another_spelling(tokens: list[str], before: int) -> None:
    locator = AnswerLocator(byte_level([token.replace(" ", "Ġ").replace("\n", "Ċ") for token in tokens]))
    assert locator.locate(range(len(tokens))) == before
    assert locator.find(range(len(tokens))).text == "5"


BOXES = [
    (r"so \boxed{\left\{ x \right.}", r"\left\{ x \right."),  # an escaped brace opens no group
    (r"\boxed{\}} or \boxed{a\\}", "a\\\\"),
    ("\\boxed{" + "7" * LONGEST_ANSWER + "}", "7" * LONGEST_ANSWER),
    ("\\boxed{" + "7" * (LONGEST_ANSWER + 1) + "}", None),
    (r"\boxed{7} \boxed{ }", None),
    (r"\boxed{7} \boxed{8", None),
    (r"\boxed{\text{é} {2}} etc.", r"\text{é} {2}"),
    (r"so \boxed {5}.", "5"),
    ("so \\boxed\n{5}.", "5"),
    (r"so $\boxed 5$.", "5"),
    (r"so \(\boxed \frac{1}{\sqrt{2}}\).", r"\frac{1}{\sqrt{2}}"),
    (r"$\boxed -12.5$", "-12.5"),
    (r"$\boxed x$", "x"),
    (r"\boxed \text{no solution}.", r"\text{no solution}"),
    (r"\boxed{7}, within \boxed.", "7"),  # the command's name is no box
    (r"\boxed{7} stands in a \boxed command", "7"),
    (r"\boxed{7} \boxedx{8}", "7"),
    (r"$\boxed{7}$ (see \boxed 2 lines above)", "7"),  # a box with braces counts before one without
    (r"**\boxed 7**, (\boxed 7), `\boxed 7`", "7"),
    ("\\boxed 5<end_of_turn>", "5"),
    ("答案是\\boxed 5，因为x=5", "5"),
    (r"\boxed\frac12$", r"\frac12"),
    (r"\boxed\left(1, 2\right)$", None),
    (r"\boxed \LaTeX", None),
    (r"\fbox{7}", None),
    (r"\boxed " + "7" * (LONGEST_ANSWER + 1), None),
]
PATTERN = r"(?i)answer(?: is)?\s*[:= ]\s*(\S*)"


@pytest.mark.parametrize(
    ("pattern", "text", "answer", "before"),
    [
        ("Answer: (.*)", "Answer: 1\nAnswer: 42 <|im_end|><|endoftext|>", "42", "Answer: 1\nAnswer: "),
        ("(?s)<answer>(.*?)</answer>", "é <answer>\n4 2\n</answer>.", "4 2", "é <answer>\n"),
        (r"(\d+)\D*$", "7 or 12!<|im_end|>", "12", "7 or "),  # the end is that of the text, without special tokens
        ("Answer:(?: (\\d))?", "Answer: 4 Answer: x", None, ""),  # the last match counts, though it has no group
        ("Answer: (.*)", "\\boxed{3}", None, ""),  # boxes do not count then
        (PATTERN, "é answer is 12, no: ANSWER = 34", "34", "é answer is 12, no: ANSWER = "),
        ("Answer: (.*)", "Answer: ", None, ""),
        *[(None, text, answer, None) for text, answer in BOXES],
    ],
)
def test_an_answer_is_the_same_everywhere(
    pattern: str | None,
    text: str,
    answer: str | None,
    before: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """For the reward, the rollout log, the memory of answers and the atlas of others' rollouts."""
    tokenizer = build_char_tokenizer()
    special = tuple(tokenizer.all_special_tokens)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    locator = AnswerLocator(tokenizer, pattern=pattern)
    tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    reader = ResponseReader(tmp_path / "tokenizer.json", special, pattern)
    (logged,) = reader.read(np.array(ids, np.int32), np.array([len(ids)]), np.ones(len(ids), bool))
    if pattern is not None:
        found = locator.locate(ids)
        assert (None if found is None else tokenizer.decode(ids[: found + 1])) == (before if answer else None)
        assert logged.answer_start == (len(before) if answer else None)
        for name, value in answer_environment(pattern, special).items():
            monkeypatch.setenv(name, value)
    else:
        assert answer_in(text) == answer
    assert [answer_of(text), logged.answer, locator.find(ids).text] == [answer] * 3


def test_first_token_may_have_a_space_or_begin_the_response() -> None:
    tokenizer = byte_level(["Answer:", "Ġ4", "2", "?"])
    locator = AnswerLocator(tokenizer, pattern=r"(?:Answer:)?\s*(\d+)")
    assert locator.locate([0, 1, 2]) == 0
    assert locator.locate([3, 1, 2], [False, True, True]) == 0  # predicted at the prompt's last token
    assert locator.locate([1, 2]) is None  # nothing predicts it
    assert locator.locate([3, 0, 1], [False, True, False]) is None  # a tool's reply is no answer


def test_a_search_takes_time_in_proportion_to_the_text() -> None:
    """A policy that repeats boxes; each of these took minutes when every box was searched to the end of the text."""
    for text in ("\\boxed5" * 50_000 + "\\frac{", "\\boxed \\a{" * 50_000, "\\boxed 5" + "!" * 500_000 + "{"):
        assert answer_in(text) in ("5", None)
    assert answer_in("\\boxed" * 100_000) is None


def test_a_search_that_never_ends_finds_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    pattern = r"(?:(?:a|aa)+)+b(.*)"
    assert marked_answer(pattern, "a" * 60 + "b!") == (61, 62)
    assert marked_answer(pattern, "a" * 60 + "c!" + "a" * 60) is None
    assert "takes over 1 s" in caplog.text


def test_only_generated_tokens_and_no_opening_across_others() -> None:
    ids = [TOKENS.index(piece) for piece in ("\\boxed{", "2", "\\boxed{", "x", "\\box", "ed{", "2")]
    locator = AnswerLocator(plain(TOKENS))
    assert locator.locate(ids) == 5
    assert locator.locate(ids, [True, True, False, False, False, False, False]) == 0
    assert locator.locate(ids, [True, True, False, False, True, True, True]) == 5  # the last turn counts, up to the end
    assert locator.locate(ids, [True, True, False, False, True, False, True]) == 0  # "\\box" + tool + "2"
    assert locator.locate(ids, [True, True, True, False, True, False, True]) is None  # a tool follows the last one
    assert locator.locate(ids, [False] * 7) is None


CORPUS = ["so \\boxed{42} and \\boxed{x+1}", "the answer is \\boxed{7}.", "\\boxed{{1}}", "x=3 {a} \\box {b}"] * 5


def trained(style: str) -> PreTrainedTokenizerFast:
    """A small tokenizer of the style of Qwen and Llama 3 (byte-level BPE) or of Llama 2 (SentencePiece with bytes)."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=style == "sentencepiece", unk_token="<unk>"))
    special, alphabet = ["<unk>"], list[str]()
    if style == "sentencepiece":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        special += [f"<0x{byte:02X}>" for byte in range(256)]
    else:
        pattern = r"\p{N}{1,3}| ?\p{L}+|[^\s\p{L}\p{N}]+|\s+" if style == "llama-3" else r"\p{N}| ?\p{L}+|\S|\s+"
        bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_alone])
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


PIECES = ["\\boxed{", "{", "}", "4", "x", " ", "\\", "boxed", "é", "the ", "\n"]
TRAINED = {style: trained(style) for style in ("qwen", "llama-3", "sentencepiece")}


@pytest.mark.parametrize("style", TRAINED)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12))
def test_agrees_with_the_tokenizers_own_offsets(style: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    encoded = TRAINED[style](text, return_offsets_mapping=True, add_special_tokens=False)
    braces = [found.end() - 1 for found in re.finditer(r"\\boxed\s*\{", text)]
    if not braces:
        assume(answer_in(text) is None)  # no box without braces, of which another test is
    holders = [i for i, (start, stop) in enumerate(encoded["offset_mapping"]) if braces and start <= braces[-1] < stop]
    expected = holders[0] if holders and holders[0] + 1 < len(encoded["input_ids"]) else None
    assert AnswerLocator(TRAINED[style]).locate(encoded["input_ids"]) == expected
