"""The texts of prompts without their template."""

from meds_openrlhf.report.prompts import questions, without_template

HEAD = "<|im_start|>system\nReason.<|im_end|>\n<|im_start|>user\n"
TAIL = "<|im_end|>\n<|im_start|>assistant\n"


def test_what_all_texts_share_is_taken_off_line_by_line() -> None:
    texts = {"1": f"{HEAD}What is 3?\nSay.{TAIL}", "2": f"{HEAD}What is 4?\nSay.{TAIL}"}
    assert without_template(texts) == {"1": "What is 3?", "2": "What is 4?"}
    assert without_template({"1": "3 + 3", "2": "3 + 4"}) == {"1": "3 + 3", "2": "3 + 4"}


def test_a_single_text_keeps_all_but_the_markers() -> None:
    assert without_template({"1": f"{HEAD}x{TAIL}"}) == {"1": "system\nReason.\nuser\nx\nassistant"}
    assert questions(["1"], {}, None) == {}
    assert questions(["1"], {"1": "a\nb", "2": "a\nc"}, None) == {"1": "a\nb"}
