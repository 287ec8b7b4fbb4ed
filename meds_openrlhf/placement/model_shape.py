"""A model's layers, widths and heads, which determine its memory, from its configuration; and its unusual parts.

Sizes are known for plain decoders (Llama, Qwen2, Qwen3, Mistral): grouped key and value heads, a gated MLP, two norms
per layer; not for mixtures of experts and vision-language models. The parts decide how a model can be trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meds_openrlhf.runtime.hub import hub_answers

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
LATENT = ("kv_lora_rank", "compress_ratios")  # of DeepSeek-V2 and V3; of V4
# transformers' names of layers that learn from positions where a response in a packed row begins.
ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention", "window_attention"})


@dataclass(frozen=True)
class ModelShape:
    """A decoder's sizes; ``kv_heads`` is the number of key and value heads, ``tied`` shares embedding and LM head."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool = False
    attention_bias: bool = False  # Qwen2: on query, key and value
    head_norms: bool = False  # Qwen3: on every query and key head

    @property
    def parameters(self) -> int:
        """The total number of parameters."""
        query, key_value = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * query + 2 * key_value)
        bias = query + 2 * key_value if self.attention_bias else 0
        norms = 2 * self.hidden + (2 * self.head_dim if self.head_norms else 0)
        embedding = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * (attention + bias + norms + 3 * self.hidden * self.ffn) + embedding + self.hidden

    def splits_over(self, gpus: int) -> bool:
        """Return whether vLLM can split the model over ``gpus``; it repeats key and value heads if there are fewer."""
        shared = self.kv_heads % gpus == 0 or gpus % self.kv_heads == 0
        return self.heads % gpus == 0 and self.ffn % gpus == 0 and shared


@dataclass(frozen=True)
class UnusualParts:
    """What a model has that plain decoders do not have."""

    layers: tuple[str, ...] = ()  # kinds of layers that are not attention, such as linear_attention, conv
    latent_attention: bool = False  # keys and values are compressed (MLA)
    experts: bool = False


@dataclass(frozen=True)
class FoundShape:
    """The shape of the model ``name``, or None and the reason why it is unknown."""

    name: str
    shape: ModelShape | None
    unknown: str = ""
    unusual: UnusualParts = UnusualParts()


def find_shape(name: str, trusted: bool = False) -> FoundShape:
    """Find the shape of the model ``name`` in its folder, the hub's cache or the hub; its code runs if ``trusted``."""
    from transformers import AutoConfig  # late: it takes seconds

    try:
        try:
            config = AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=trusted)
        except (OSError, ValueError):
            if Path(name).exists():
                raise
            if not hub_answers():
                hint = f"not in the hub's cache, and the hub does not answer. Try `hf download {name} config.json`"
                raise OSError(hint) from None
            config = AutoConfig.from_pretrained(name, trust_remote_code=trusted)
    except (OSError, ValueError) as error:
        return FoundShape(name, None, f"configuration not readable: {str(error).strip().splitlines()[0]}")
    shape = shape_of(config)
    return FoundShape(
        name, shape, "" if shape else f"{config.model_type} is not a plain decoder", unusual_parts(config)
    )


def unusual_parts(config: Any) -> UnusualParts:
    """Return the unusual parts that a Hugging Face configuration describes.

    Layers that it does not list are attention, unless transformers says that the model carries a state.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    text = config.get_text_config()
    layers = getattr(text, "layer_types", None)
    if layers is None:
        model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
        layers = ["recurrent"] if getattr(model, "_is_stateful", False) else []
    return UnusualParts(
        layers=tuple(sorted(set(layers) - ATTENTION)),
        latent_attention=any(getattr(text, name, None) for name in LATENT),
        experts=any(
            getattr(part, name, None) for part in (text, getattr(text, "ffn_config", None)) for name in EXPERTS
        ),
    )


def shape_of(config: Any) -> ModelShape | None:
    """Return the shape that a Hugging Face configuration describes, or None if the model is not a plain decoder."""
    text = config.get_text_config()
    if hasattr(config, "vision_config") or any(hasattr(text, name) for name in EXPERTS):
        return None
    try:
        return ModelShape(
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            ffn=text.intermediate_size,
            heads=text.num_attention_heads,
            kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
            vocabulary=text.vocab_size,
            tied=bool(text.tie_word_embeddings),
            attention_bias=text.model_type == "qwen2" or bool(getattr(text, "attention_bias", False)),
            head_norms=text.model_type == "qwen3",
        )
    except AttributeError:
        return None
