"""How chat templates write the turns of a conversation: the known ones, and the messages in a prompt of theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

Message = dict[str, str]  # role, content

CHAT_MARKER = re.compile(r"<\|\w+\|>")  # <|im_end|>
_BEGINNINGS = ("", "<bos>", "<s>")  # of a text as sent
_END = re.compile(r"</s>\s*(<s>)?$")
_INSTRUCTION = re.compile(r"(\[/?INST\])")
_SYSTEM = re.compile(r"\s*<<SYS>>(.*?)<</SYS>>", re.DOTALL)


@dataclass(frozen=True)
class ChatTemplate:
    """A turn is ``opening``, its role, ``header``, a text, and ``closing``. ``policy``: the role of the policy."""

    opening: str
    header: str
    closing: str
    policy: str = "assistant"

    @property
    def policy_header(self) -> str:
        """What the policy's turn begins with, without the white space behind it."""
        return f"{self.opening}{self.policy}{self.header}".rstrip()

    @property
    def others(self) -> str:
        """A regular expression for the beginning of any other turn."""
        return rf"{re.escape(self.opening)}(?!{self.policy}\b)[\w-]{{1,30}}{re.escape(self.header)}"

    @property
    def asking(self) -> re.Pattern[str]:
        """The beginning of a turn in a prompt, with its role."""
        start = re.escape(self.opening) or "^"
        return re.compile(rf"{start}(system|user|{self.policy}){re.escape(self.header)}", re.MULTILINE)


CHATML = ChatTemplate("<|im_start|>", "\n", "<|im_end|>")
LLAMA = ChatTemplate("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
GEMMA = ChatTemplate("<start_of_turn>", "\n", "<end_of_turn>", policy="model")
# Decoded without special tokens, as verl dumps texts.
_DECODED = (ChatTemplate("", "\n", ""), ChatTemplate("", "\n", "", policy="model"))
# How a prompt ends whose next text is the policy's.
POLICY_HEADERS = (CHATML.policy_header, LLAMA.policy_header, GEMMA.policy_header, "[/INST]")


def plain(text: str) -> str:
    """The text without the marks of templates."""
    return CHAT_MARKER.sub("", text).replace(GEMMA.opening, "").replace(GEMMA.closing, "").strip()


def messages_in(text: str) -> list[Message]:
    """The conversation of a prompt that a chat template has made, without the turn that it opens for the policy.

    A text that no known template made, or in which nobody asks, is one message of a user.
    """
    for messages in _readings(text):
        asked = [message for message in messages[:-1] if message["content"]]
        if messages[-1:] == [_said("assistant", "")] and any(message["role"] == "user" for message in asked):
            return asked
    return [{"role": "user", "content": text}]


def _readings(text: str) -> Iterator[list[Message]]:
    for template in (CHATML, LLAMA, GEMMA, *_DECODED):
        before, *parts = template.asking.split(text)
        if plain(before) in _BEGINNINGS:
            roles = ["assistant" if role == template.policy else role for role in parts[::2]]
            yield [_said(role, said) for role, said in zip(roles, parts[1::2])]
    before, *parts = _INSTRUCTION.split(text)
    if plain(before) in _BEGINNINGS and parts[::2] == ["[INST]", "[/INST]"] * (len(parts) // 4):
        first = _SYSTEM.match(parts[1]) if parts else None
        messages = [_said(("user", "assistant")[place % 2], said) for place, said in enumerate(parts[1::2])]
        if first is not None:
            messages = [_said("system", first[1]), _said("user", parts[1][first.end() :]), *messages[1:]]
        yield messages


def _said(role: str, text: str) -> Message:
    return {"role": role, "content": plain(_END.sub("", text))}
