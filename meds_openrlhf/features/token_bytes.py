"""The bytes of each token of a tokenizer."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(tokenizer: Any) -> list[bytes]:
    """Return the bytes of each token id; ids without a token have no bytes.

    Supports byte-level BPE (GPT-2, Llama 3, Qwen), SentencePiece style with byte fallback (Llama 2, Mistral, Gemma) and
    plain vocabularies. For the processor of a vision-language model its tokenizer is used. Raises ValueError for a slow
    tokenizer, and one of WordPieces, because the bytes of their tokens are unknown.
    """
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
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
            f"{type(tokenizer).__name__} is not a fast tokenizer, so its tokens' bytes are unknown. Load a fast "
            "tokenizer."
        )
    decoder = backend.decoder.__getstate__() if backend.decoder is not None else b""
    if b"WordPiece" in decoder:
        raise ValueError(
            "a WordPiece tokenizer writes spaces that are in no token, so its tokens' bytes are unknown. Use a "
            "model with another tokenizer."
        )
    if b"ByteLevel" in decoder:
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        # GPT-2's reversible map of bytes to printable symbols, inverted.
        return functools.partial(_byte_level, {symbol: byte for byte, symbol in bytes_to_unicode().items()})
    if b"Metaspace" in decoder or b"ByteFallback" in decoder:
        return _sentencepiece
    return str.encode


def _byte_level(symbols: dict[str, int], token: str) -> bytes:
    if all(symbol in symbols for symbol in token):
        return bytes(symbols[symbol] for symbol in token)
    return token.encode()


def _sentencepiece(token: str) -> bytes:
    fallback = _BYTE_FALLBACK.fullmatch(token)
    return bytes([int(fallback[1], 16)]) if fallback else token.replace("\u2581", " ").encode()
