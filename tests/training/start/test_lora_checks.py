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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"ds.lora.rank": -1}, "ds.lora.rank: -1 is negative"),
        ({**LORA, "ds.lora.alpha": 0}, "ds.lora.alpha: 0 scales the adapters"),
        ({**LORA, "ds.lora.dropout": 1}, "ds.lora.dropout: 1.0 is no share"),
        ({**LORA, "ds.load_in_4bit": True}, "ds.load_in_4bit: True does not go with ds.lora.rank 8: adapters are not"),
        ({**LORA, "ds.tensor_parallel_size": 2}, "ds.tensor_parallel_size: 2 does not go with ds.lora.rank 8"),
        ({**LORA, "train.enable_ema": True}, "train.enable_ema: True does not go with ds.lora.rank 8"),
    ],
)
def test_settings_that_cannot_work(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        checks.require_lora(args_of(flags))
    assert str(raised.value).startswith(message)


def test_settings_that_work() -> None:
    checks.require_lora(args_of({"ds.load_in_4bit": True, "train.enable_ema": True}))
    checks.require_lora(args_of({**LORA, "ds.lora.dropout": 0.5}))


def test_a_resume_with_other_adapters(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    saved = RunConfig(MedsSettings(run_dir="x"), {**LORA, "ds.lora.target_modules": ["q_proj"]})
    paths.config.write_text(saved.as_yaml())
    checks.require_same_adapters(saved, paths)
    for key, value in (("ds.lora.rank", 4), ("ds.lora.alpha", 32), ("ds.lora.target_modules", ["v_proj"])):
        changed = RunConfig(saved.meds, {**saved.openrlhf, key: value})
        with pytest.raises(ConfigError, match=rf"{key}: .* does not fit the checkpoint, which was saved with"):
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


HAS = "this qwen2 model has q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head; leave it out"


@pytest.mark.parametrize(
    ("targets", "tied", "message"),
    [
        (["q_proj", "query"], False, f"'query' is no module; {HAS}"),
        (["_proj"], False, f"'_proj' is no module; {HAS}"),
        (["all-linear"], False, f"'all-linear' is no module; {HAS}"),
        ([], False, f"[] names none; {HAS}"),
        (["embed_tokens"], False, f"'embed_tokens' is no linear layer, and only those can be merged; {HAS}"),
        (["lm_head"], True, "'lm_head' has the embeddings' weight, which engines cannot have once with and once"),
    ],
)
def test_targets_that_the_policy_lacks_or_that_cannot_be_merged(
    targets: list[str], tied: bool, message: str, policy: Any
) -> None:
    with pytest.raises(ConfigError) as raised:
        checks.require_lora_targets(args_of({**LORA, "ds.lora.target_modules": targets}), policy(tied))
    assert str(raised.value).startswith(f"ds.lora.target_modules: {message}")


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
    with pytest.raises(ConfigError, match="'all-linear' has Conv1D layers in this gpt2 model"):
        checks.require_lora_targets(args_of(LORA), config)
