"""Tiny random models of every architecture that the recorder must be right for, and the long way to their logits."""

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Gemma2Config,
    Gemma3Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PhiConfig,
    PretrainedConfig,
    Qwen2_5_VLConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

VOCABULARY, LAYERS = 97, 5
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
    max_position_embeddings=128,
)  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=24)
VISION = dict(depth=2, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=32, fullatt_block_indexes=[1])

CONFIGS: dict[str, PretrainedConfig] = {
    "qwen2": Qwen2Config(**GROUPED, tie_word_embeddings=False),
    "qwen2-tied": Qwen2Config(**GROUPED, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**GROUPED, head_dim=8),
    "llama": LlamaConfig(**GROUPED),
    "mistral": MistralConfig(**GROUPED),
    "gemma2": Gemma2Config(**GROUPED, head_dim=8, final_logit_softcapping=5.0, query_pre_attn_scalar=8),
    "gpt-neox": GPTNeoXConfig(**SIZES),
    "phi": PhiConfig(**SIZES),  # its unembedding has a bias
    "qwen3-moe": Qwen3MoeConfig(**GROUPED, head_dim=8, num_experts=4, **EXPERTS),
    "mixtral": MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "qwen2.5-vl": Qwen2_5_VLConfig(
        text_config={**GROUPED, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}, vision_config=VISION
    ),
    "gemma3-vl": Gemma3Config(
        text_config={**GROUPED, "head_dim": 8},
        vision_config=dict(
            hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=2, image_size=28,
            patch_size=14,
        ),
    ),
}  # fmt: skip


def make_model(name: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A random model whose norms are not the identity, so that leaving one out would show."""
    torch.manual_seed(0)
    config = CONFIGS[name]
    auto = AutoModelForImageTextToText if name.endswith("-vl") else AutoModelForCausalLM
    model = auto.from_config(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def with_adapters(model: torch.nn.Module, modules: tuple[str, ...] = ("q_proj", "down_proj", "lm_head")) -> PeftModel:
    """The model with LoRA in ``modules``, which changes its outputs from the beginning."""
    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(r=4, target_modules=list(modules), init_lora_weights=False)).eval()


def the_long_way(
    model: torch.nn.Module, inputs: dict[str, torch.Tensor], tokens: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Logits (B, N) of ``targets`` at flat ``tokens`` by output_hidden_states and the whole unembedding."""
    with torch.no_grad():
        hidden = model(**inputs, output_hidden_states=True).hidden_states[1:]
        head = model.get_output_embeddings()
        logits = [head(one).reshape(-1, VOCABULARY)[tokens, targets].float() for one in hidden]
    return torch.stack(logits, dim=1)
