"""Loads a model's configuration from `config.json` alone if that is sufficient, otherwise with transformers.

Importing transformers' configurations takes five seconds, which would delay `meds plan` and error messages.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.json_text import parse_json

# Decoders that the recorder is tested with and whose configuration files contain all sizes.
PLAIN = frozenset({"llama", "mistral", "qwen2", "qwen3"})
NEEDED = frozenset(
    {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"}
    | {"vocab_size", "tie_word_embeddings", "architectures"}
)


class PlainConfig(SimpleNamespace):
    """The contents of a plain decoder's `config.json` as attributes; the model consists only of its text model."""

    def get_text_config(self) -> PlainConfig:
        """Return itself, for compatibility with transformers' configurations."""
        return self


def load_model_config(name: str, **options: Any) -> Any:
    """Load the configuration of the model ``name``; ``options`` are passed to `AutoConfig.from_pretrained`.

    Raises OSError or ValueError, as transformers does, if there is none.
    """
    plain = _plain_config(name)
    if plain is not None:
        return plain
    if Path(name).is_dir() and not Path(name, "config.json").exists():
        raise OSError("there is no config.json in it")
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(name, **options)


def _plain_config(name: str) -> PlainConfig | None:
    path = local_file(name)
    try:
        content = parse_json(path.read_text(encoding="utf-8")) if path is not None else None
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("model_type") not in PLAIN or not content.keys() >= NEEDED:
        return None
    if content["model_type"] == "qwen3" and "head_dim" not in content:
        return None  # the default in transformers does not follow from the other sizes
    return None if "auto_map" in content else PlainConfig(**content)


def local_file(name: str) -> Path | None:
    """Return the path of the model's `config.json` in its folder or in the hub's cache, or None if not cached."""
    if Path(name).is_dir():
        return Path(name, "config.json")
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None
