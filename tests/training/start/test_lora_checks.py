"""LoRA's settings that are refused before anything starts."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import GPT2Config, Qwen2Config

from meds_openrlhf.config import ConfigError, MedsSettings, RunConfig
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.host.openrlhf import parse_openrlhf_arguments
from meds_openrlhf.training.start import checks

BASE = {"vllm.num_engines": 1, "algo.advantage.estimator": "group_norm", "rollout.n_samples_per_prompt": 4}
LORA = {"ds.lora.rank": 8}


def args_of(flags: dict[str, Any]) -> SimpleNamespace:
    return parse_openrlhf_arguments({**BASE, **flags})


def test_a_resume_with_other_adapters(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    saved = RunConfig(MedsSettings(run_dir="x"), {**LORA, "ds.lora.target_modules": ["q_proj"]})
    paths.config.write_text(saved.as_yaml())
    checks.require_same_adapters(saved, paths)
    for key, value in (("ds.lora.rank", 4), ("ds.lora.alpha", 32), ("ds.lora.target_modules", ["v_proj"])):
        changed = RunConfig(saved.meds, {**saved.openrlhf, key: value})
        with pytest.raises(ConfigError, match=rf"{key}=.*: the checkpoint was saved with .* Resume with that"):
            checks.require_same_adapters(changed, paths)


@pytest.fixture
def policy() -> Any:
    """A policy's configuration, with tied embeddings or without."""

    def make(tied: bool) -> Qwen2Config:
        return Qwen2Config(
            vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2,
        )  # fmt: skip

    return make


HAS = "this qwen2 model has q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head. Leave it out"


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
def test_targets_that_the_policy_lacks_or_that_cannot_be_merged(
    targets: list[str], tied: bool, message: str, policy: Any
) -> None:
    with pytest.raises(ConfigError) as raised:
        checks.require_lora_targets(args_of({**LORA, "ds.lora.target_modules": targets}), policy(tied))
    assert str(raised.value).startswith(f"ds.lora.target_modules={message}")


@pytest.mark.parametrize(
    ("targets", "tied"),
    [
        (["q_proj", "self_attn.k_proj", "down_proj", "lm_head"], False),
        (["q_proj"], True),
        (None, True),  # OpenRLHF's default: all linear layers but the unembedding
    ],
)
def test_targets_that_fit(targets: list[str] | None, tied: bool, policy: Any) -> None:
    named = {} if targets is None else {"ds.lora.target_modules": targets}
    checks.require_lora_targets(args_of({**LORA, **named}), policy(tied))


def test_the_default_targets_of_a_model_without_linear_layers() -> None:
    config = GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    with pytest.raises(ConfigError, match="=all-linear: this gpt2 model has Conv1D layers"):
        checks.require_lora_targets(args_of(LORA), config)
