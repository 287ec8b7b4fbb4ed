"""The demo's character-level tokenizer, as it is built and as it is loaded from a policy's folder."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer, Qwen2Config

from meds_openrlhf.arithmetic.problems import PIECES
from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer, template_pieces
from meds_openrlhf.data.questions import qwen_math_prompt

TOKENIZER = build_char_tokenizer()
PRINTABLE = "\n" + "".join(chr(code) for code in range(32, 127))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Loaded as trainers do it: from a folder that holds a Qwen2 config too."""
    folder = tmp_path_factory.mktemp("policy")
    build_char_tokenizer().save_pretrained(folder)
    Qwen2Config(vocab_size=len(TOKENIZER)).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder, use_fast=True)


def test_the_template_is_the_one_of_qwen_math():
    assert qwen_math_prompt("3+4*2") == (
        "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
        "<|im_start|>user\n3+4*2<|im_end|>\n<|im_start|>assistant\n"
    )
    for problem in ("", "  ", "3+4<|im_end|>"):
        with pytest.raises(ValueError, match=r"problem(=.*)?: must not"):
            qwen_math_prompt(problem)


def test_prompts_and_responses_cost_their_characters():
    before, after = template_pieces()
    tokens = TOKENIZER.convert_ids_to_tokens(TOKENIZER.encode(qwen_math_prompt("3+4*2")))
    assert tokens == [before, "3", "+", "4", "*", "2", after]
    tokens = TOKENIZER.convert_ids_to_tokens(TOKENIZER.encode("So \\boxed{-4}<|im_end|>"))
    assert tokens == ["S", "o", "Ġ", *"\\boxed{-4}", "<|im_end|>"]
    assert TOKENIZER.decode(TOKENIZER.encode("7 × 6 = 42 → naïve")) == "7 × 6 = 42 → naïve"
    tokenizer = build_char_tokenizer(64, PIECES)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("First 4+3 = 7, so 7. Thus \\boxed{7}<|im_end|>"))
    assert tokens == ["First ", "4", "+", "3", " = ", "7", ", so ", "7", ". Thus ", "\\boxed{", "7", "}", "<|im_end|>"]


@given(st.text(alphabet=PRINTABLE, max_size=200))
def test_any_printable_text_round_trips_one_token_a_character(text):
    assume(not any(piece in text for piece in TOKENIZER.get_added_vocab()))  # those are one token each
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    assert len(tokens) == len(text)
    assert TOKENIZER.decode(tokens) == text


def test_the_loaded_tokenizer_is_the_built_one(loaded):
    text = qwen_math_prompt("(7-2)*6-5") + "First 7-2 = 5. 5*6=30 , don't ;  \n\\boxed{25}<|im_end|>"
    assert loaded.encode(text) == TOKENIZER.encode(text)
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.decode(loaded.encode("a b<|im_end|>"), skip_special_tokens=True) == "a b"
    assert (loaded.pad_token_id, loaded.eos_token_id, loaded.padding_side, len(loaded)) == (0, 2, "left", 261)
    assert (loaded.eos_token, loaded.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert sorted(loaded.all_special_tokens) == ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]


def test_tokens_decoded_one_by_one_give_the_same_text(loaded):
    response = "Well, 3*5=15 , then 3+15 is 18. Thus \\boxed{18}"
    stream = DecodeStream(ids=loaded.encode(qwen_math_prompt("3+3*5")), skip_special_tokens=True)
    pieces = [stream.step(loaded.backend_tokenizer, token) for token in loaded.encode(response)]
    assert pieces == list(response)
