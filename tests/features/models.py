"""Tiny random models of every architecture that the recorder must be right for, and the long way to their logits."""

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig

VOCABULARY, LAYERS = 97, 5
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
    max_position_embeddings=128,
)  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=24)
VISION = dict(depth=2, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=32, fullatt_block_indexes=[1])

CONFIGS: dict[str, PretrainedConfig] = {
    "qwen2": AutoConfig.for_model("qwen2", **GROUPED, tie_word_embeddings=False),
    "qwen2-tied": AutoConfig.for_model("qwen2", **GROUPED, tie_word_embeddings=True),
    "qwen3": AutoConfig.for_model("qwen3", **GROUPED, head_dim=8),
    "llama": AutoConfig.for_model("llama", **GROUPED),
    "gemma2": AutoConfig.for_model(
        "gemma2", **GROUPED, head_dim=8, final_logit_softcapping=5.0, query_pre_attn_scalar=8
    ),
    "gpt-neox": AutoConfig.for_model("gpt_neox", **SIZES),
    "olmo": AutoConfig.for_model("olmo", **GROUPED),  # its norms have no parameters
    "phi": AutoConfig.for_model("phi", **SIZES),  # its unembedding has a bias
    "qwen3-moe": AutoConfig.for_model("qwen3_moe", **GROUPED, head_dim=8, num_experts=4, **EXPERTS),
    "qwen2.5-vl": AutoConfig.for_model(
        "qwen2_5_vl", vision_config=VISION,
        text_config={**GROUPED, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}},
    ),
    "gemma3-vl": AutoConfig.for_model(
        "gemma3", text_config={**GROUPED, "head_dim": 8},
        vision_config={**dict(hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=2),
                       **dict(image_size=28, patch_size=14)},
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
