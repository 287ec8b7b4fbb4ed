"""The conversation in what an engine was sent."""

import pytest

from meds_openrlhf.chat_templates import messages_in


@pytest.mark.parametrize(
    ("text", "conversation"),
    [
        ("What is 2*3?", [("user", "What is 2*3?")]),
        (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2*3?<|im_end|>\n<|im_start|>assistant\n",
            [("system", "Be brief."), ("user", "2*3?")],
        ),
        ("system\nBe brief.\nuser\nWhat is\n2*3?\nassistant\n", [("system", "Be brief."), ("user", "What is\n2*3?")]),
        (
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n2*3?<|eot_id|><|start_header_id|>assistant"
            "<|end_header_id|>\n\n",
            [("user", "2*3?")],
        ),
        (
            "user\n1+1?\nassistant\n2\nuser\nAnd 2*3?\nassistant\n",
            [("user", "1+1?"), ("assistant", "2"), ("user", "And 2*3?")],
        ),
        (
            "<bos><start_of_turn>user\n2*3?<end_of_turn>\n<start_of_turn>model\n6<end_of_turn>\n<start_of_turn>user\n"
            "And 3*3?<end_of_turn>\n<start_of_turn>model\n",
            [("user", "2*3?"), ("assistant", "6"), ("user", "And 3*3?")],
        ),
        ("user\n2*3?\nmodel\n", [("user", "2*3?")]),
        ("<s>[INST] 2*3? [/INST]", [("user", "2*3?")]),
        (
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n1+1? [/INST] 2 </s><s>[INST] 2*3? [/INST]",
            [("system", "Be brief."), ("user", "1+1?"), ("assistant", "2"), ("user", "2*3?")],
        ),
        ("[INST] 2*3? [/INST] 6", [("user", "[INST] 2*3? [/INST] 6")]),
        ("What does [INST] mean?", [("user", "What does [INST] mean?")]),
        ("Who is the\nuser\nhere?", [("user", "Who is the\nuser\nhere?")]),
        ("user\nassistant\n", [("user", "user\nassistant\n")]),
        ("", [("user", "")]),
    ],
)
def test_a_templates_prompt_is_a_conversation(text: str, conversation: list[tuple[str, str]]) -> None:
    assert messages_in(text) == [{"role": role, "content": content} for role, content in conversation]
