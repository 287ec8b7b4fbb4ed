"""Fingerprints from a tiny model in a folder: what a whole forward pass gives, in any batches."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.schema import FeatureSettings
from meds_openrlhf.dumps.fingerprints import Fingerprints
from meds_openrlhf.dumps.formats import Rollout
from meds_openrlhf.evaluation.models import Model, know
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.features.recorder import LayerLogitRecorder

LAYERS = 3
TEXTS = ["so \\boxed{7}", "never a box", "\\boxed{12} or \\boxed{8} at last", "\\boxed{", "2 and 3 is \\boxed{5}."]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_char_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def rollouts(*texts: str, prompt: str = "2+3=") -> list[Rollout]:
    return [Rollout(prompt, text, 0.0) for text in texts]


def of_whole_pass(folder: Path, prompt: str, text: str) -> np.ndarray:
    """The recorder on one unpadded pass over the whole rollout."""
    tokenizer, whole = build_char_tokenizer(), AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer.encode(prompt + text, add_special_tokens=False)
    at = AnswerLocator(tokenizer).locate(ids, [token >= len(prompt) for token in range(len(ids))])
    assert at is not None
    recorder, places = LayerLogitRecorder(whole), (torch.tensor([at]), torch.tensor([ids[at + 1]]))
    with torch.no_grad(), recorder.record(*places) as recording:
        whole(torch.tensor([ids]))
    assert recording.layer_logits is not None
    return recording.layer_logits.numpy()[0]


def test_as_a_whole_pass_without_padding_gives_them(model: Path) -> None:
    expected = [of_whole_pass(model, "2+3=", TEXTS[row]) for row in (0, 2, 4)]
    for batch_tokens in (1, 10_000):
        found, logits, too_long = Fingerprints(str(model), FeatureSettings(), batch_tokens).of(rollouts(*TEXTS))
        assert (found.tolist(), too_long) == ([0, 2, 4], 0)
        np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_texts_beyond_the_model_are_counted_or_refused(model: Path) -> None:
    prints = Fingerprints(str(model), FeatureSettings(), 100)
    found, logits, too_long = prints.of(rollouts(TEXTS[0], "1" * 60 + TEXTS[0]))
    assert (found.tolist(), logits.shape, too_long) == ([0], (1, LAYERS), 1)
    found, logits, too_long = prints.of([])
    assert (found.tolist(), logits.shape, too_long) == ([], (0, LAYERS), 0)
    prints.require_fit(rollouts(*TEXTS))
    with pytest.raises(ConfigError, match=r"has no token <\|eot_id\|>, which the texts contain"):
        prints.require_fit(rollouts("\\boxed{7}<|eot_id|>"))
    # A conversation is read through the chat template.
    prints._tokenizer.chat_template = "{% for m in messages %}({{ m.content }}){% endfor %}="
    talk = Rollout("ignored", TEXTS[0], 0.0, messages=({"role": "user", "content": "2+3"},))
    np.testing.assert_allclose(prints.of([talk])[1], prints.of(rollouts(TEXTS[0], prompt="(2+3)="))[1])


def test_without_the_hub_a_model_has_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--model=.*: cannot be loaded"):
        Fingerprints(str(tmp_path), FeatureSettings(), 100)
    monkeypatch.setattr("meds_openrlhf.runtime.hub.hub_answers", lambda: False)
    with pytest.raises(ConfigError, match=r"--model=Someone/Model: cannot be loaded \(We couldn't connect"):
        Fingerprints("Someone/Model", FeatureSettings(), 100)


OWN_CODE = """
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Model

class OwnConfig(Qwen2Config):
    model_type = "own"

class OwnModel(Qwen2Model):
    config_class = OwnConfig

class OwnForCausalLM(Qwen2ForCausalLM):
    config_class = OwnConfig
"""


def test_a_trusted_model_with_code_of_its_own_is_read_as_in_training(model: Path, tmp_path: Path) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "own_code.py").write_text(OWN_CODE)
    config = json.loads((tmp_path / "config.json").read_text())
    names = {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnForCausalLM"}
    config |= {"model_type": "own", "architectures": ["OwnForCausalLM"], "auto_map": names}
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, as_own, _ = Fingerprints(str(tmp_path), FeatureSettings(), 64, trusted=True).of(rollouts(TEXTS[0]))
    _, as_qwen, _ = Fingerprints(str(model), FeatureSettings(), 64).of(rollouts(TEXTS[0]))
    assert as_own.shape == (1, LAYERS)
    np.testing.assert_array_equal(as_own, as_qwen)
    assert know(Model("own", folder=tmp_path), tensor_parallel=1, trusted=True).context == 64
