"""Prompt templates: turn a problem into the text that the policy continues."""

from __future__ import annotations

QWEN_MATH_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


def qwen_math_prompt(problem: str, system: str = QWEN_MATH_SYSTEM) -> str:
    """Apply the Qwen-Math template to a problem: system turn, user turn, and the opening of the assistant's turn.

    The template is applied as text, so the result goes to a tokenizer with `add_special_tokens=False`. Raises
    ValueError if the problem is empty or contains a chat marker (`<|im_start|>`, `<|im_end|>`), which breaks the turns.
    """
    if not problem.strip():
        raise ValueError(f"problem={problem!r}: must not be empty.")
    for marker in ("<|im_start|>", "<|im_end|>"):
        if marker in problem:
            raise ValueError(f"problem: must not contain the chat marker {marker}. Pass the plain text of the problem.")
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n"
