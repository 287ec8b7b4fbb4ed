"""Policies that cannot be recorded, and LoRA's modules that cannot be adapted or merged."""

from pathlib import Path

import pytest
from transformers import GPT2Config, LlamaConfig, Qwen2Config, T5Config

from meds_openrlhf.config import ConfigError, MedsSettings, RunConfig
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.start import checks
from tests.training.step.rollouts import arguments

LORA = {"ds.lora.rank": 8}
HAS = "this qwen2 model has q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head. Leave it out"


def test_an_architecture_that_cannot_be_recorded_is_refused_without_loading_weights() -> None:
    args = arguments(**{"actor.model_name_or_path": "some/model"})
    checks.require_recordable(args, LlamaConfig(hidden_size=8192, num_hidden_layers=80))  # a 70B one, in no time
    with pytest.raises(ConfigError, match=r"actor.model_name_or_path=some/model: T5Config "):
        checks.require_recordable(args, T5Config())


def test_a_resume_with_other_adapters(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    saved = RunConfig(MedsSettings(run_dir="x"), {**LORA, "ds.lora.target_modules": ["q_proj"]})
    paths.config.write_text(saved.as_yaml())
    checks.require_same_adapters(saved, paths)
    for key, value in (("ds.lora.rank", 4), ("ds.lora.alpha", 32), ("ds.lora.target_modules", ["v_proj"])):
        changed = RunConfig(saved.meds, {**saved.openrlhf, key: value})
        with pytest.raises(ConfigError, match=rf"{key}=.*: the checkpoint was saved with .* Resume with that"):
            checks.require_same_adapters(changed, paths)


def ask_targets(targets: list[str] | None, tied: bool) -> None:
    """Of a policy with tied embeddings or without."""
    policy = Qwen2Config(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    checks.require_lora_targets(arguments(**LORA, **{"ds.lora.target_modules": targets}), policy)


@pytest.mark.parametrize(
    ("targets", "tied", "message"),
    [
        (["q_proj", "query"], False, f"query: names no linear layer; {HAS}"),
        (["_proj"], False, f"_proj: names no linear layer; {HAS}"),
        (["all-linear"], False, f"all-linear: names no linear layer; {HAS}"),
        ([], False, f"[]: names no linear layer; {HAS}"),
        (["embed_tokens"], False, f"embed_tokens: names no linear layer; {HAS}"),
        (["lm_head"], True, "lm_head: has the weight of the embeddings, which engines cannot have with and"),
    ],
)
def test_targets_that_the_policy_lacks_or_that_cannot_be_merged(targets: list[str], tied: bool, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ask_targets(targets, tied)
    assert str(raised.value).startswith(f"ds.lora.target_modules={message}")


def test_targets_that_fit() -> None:
    ask_targets(["q_proj", "self_attn.k_proj", "down_proj", "lm_head"], tied=False)
    ask_targets(["q_proj"], tied=True)
    ask_targets(None, tied=True)  # OpenRLHF's default: all linear layers but the unembedding


def test_the_default_targets_of_a_model_without_linear_layers() -> None:
    config = GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    with pytest.raises(ConfigError, match="=all-linear: this gpt2 model has Conv1D layers"):
        checks.require_lora_targets(arguments(**LORA), config)
