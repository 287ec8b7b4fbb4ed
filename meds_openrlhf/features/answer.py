"""Where a response's final answer begins, found on the bytes of its tokens.

Working on bytes makes the search independent of how a tokenizer cuts the opening: `\\boxed{` may be one token, seven,
or end inside a token that already holds the answer's first character.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class AnswerLocator:
    """Finds the token that ends the last answer opening of a response.

    ``openings`` are texts such as ``\\boxed{``; of several in a response the last one wins (Section 3.1 of the paper
    takes the final answer's first token). Each token's bytes are looked up once, here.
    """

    def __init__(self, tokenizer: Any, openings: Sequence[str] = ("\\boxed{",)) -> None:
        self._openings = [opening.encode() for opening in openings]
        self._token_bytes = token_bytes(tokenizer)

    def locate(self, token_ids: Sequence[int]) -> int | None:
        """Index of the token that ends the last opening; the next token is y*, the answer's first.

        None where there is no opening, or where nothing follows the last one (a response cut off right there).
        """
        pieces = [self._token_bytes[i] if i < len(self._token_bytes) else b"" for i in token_ids]
        text = b"".join(pieces)
        end = max((text.rfind(o) + len(o) for o in self._openings if o in text), default=0)
        if end == 0:
            return None
        index = len(pieces)
        start = len(text)
        while start >= end:  # answers stand near the end, so walk back from there
            index -= 1
            start -= len(pieces[index])
        return index if index + 1 < len(pieces) else None


def token_bytes(tokenizer: Any) -> list[bytes]:
    """The bytes that each token id stands for; ids without a token stand for none.

    Knows byte-level BPE (GPT-2, Llama 3, Qwen), SentencePiece style with byte fallback (Llama 2, Mistral, Gemma) and
    plain vocabularies.
    """
    vocabulary = tokenizer.get_vocab()
    added = tokenizer.get_added_vocab()
    convert = _token_converter(tokenizer)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, index in vocabulary.items():
        table[index] = token.encode() if token in added else convert(token)
    return table


def _token_converter(tokenizer: Any) -> Callable[[str], bytes]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(
            f"tokenizer: {type(tokenizer).__name__} is not a fast tokenizer, so its tokens' bytes are unknown; "
            "unset data.disable_fast_tokenizer"
        )
    decoder = backend.decoder.__getstate__() if backend.decoder is not None else b""
    if b"ByteLevel" in decoder:
        return _byte_level
    if b"Metaspace" in decoder or b"ByteFallback" in decoder:
        return _sentencepiece
    return str.encode


@functools.cache
def _bytes_of_symbols() -> dict[str, int]:
    """GPT-2's reversible map: printable bytes stand for themselves, the others for symbols from U+0100 up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    symbols = {chr(byte): byte for byte in printable}
    symbols.update({chr(256 + offset): byte for offset, byte in enumerate(others)})
    return symbols


def _byte_level(token: str) -> bytes:
    symbols = _bytes_of_symbols()
    if all(symbol in symbols for symbol in token):
        return bytes(symbols[symbol] for symbol in token)
    return token.encode()


def _sentencepiece(token: str) -> bytes:
    fallback = _BYTE_FALLBACK.fullmatch(token)
    return bytes([int(fallback[1], 16)]) if fallback else token.replace("\u2581", " ").encode()
