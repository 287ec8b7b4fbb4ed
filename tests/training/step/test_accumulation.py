"""One update is the same under every ZeRO stage, with batches of fixed size and by tokens, padded and packed."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen2Config

from meds_openrlhf.arithmetic.char_tokenizer import build_char_tokenizer
from tests.ports import free_ports
from tests.training.step.accumulation_worker import CONTROLS, MODES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(330)]


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights after one update in every mode; one group of processes makes them all."""
    folder, ranks = tmp_path_factory.mktemp("updates"), request.param
    config = Qwen2Config(
        vocab_size=261, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder / "base")
    build_char_tokenizer().save_pretrained(folder / "base")
    port = str(free_ports(1)[0])
    worker = [sys.executable, "-m", "tests.training.step.accumulation_worker"]
    ranks_running = [
        subprocess.Popen([*worker, str(rank), str(ranks), port, str(folder)], stderr=subprocess.PIPE, text=True,
                         stdout=subprocess.DEVNULL)
        for rank in range(ranks)
    ]  # fmt: skip
    errors = [rank.communicate(timeout=300)[1] for rank in ranks_running]
    assert all(rank.returncode == 0 for rank in ranks_running), errors[0][-5000:]
    return folder


def differences(folder: Path, role: str, mode: tuple[int, str, str]) -> float:
    """Return the largest difference to stage 0 with padded batches of fixed size, relative to its largest change."""
    base = load_file(folder / "base" / "model.safetensors")
    expected = load_file(folder / f"{role}-0-fixed-padded.safetensors")
    found = load_file(folder / f"{role}-{'-'.join(map(str, mode))}.safetensors")
    change = max((weight - base[name]).abs().max() for name, weight in expected.items() if name in base)
    return max(float((found[name] - weight).abs().max() / change) for name, weight in expected.items())


@pytest.mark.parametrize("role", ["policy", "critic"])
@pytest.mark.parametrize("mode", MODES[1:], ids=lambda mode: "-".join(map(str, mode)))
def test_an_update_is_the_same_in_every_mode(weights: Path, role: str, mode: tuple[int, str, str]) -> None:
    assert differences(weights, role, mode) < 1e-4


@pytest.mark.parametrize("role", ["policy", "critic"])
@pytest.mark.parametrize("mode", CONTROLS, ids=lambda mode: "-".join(map(str, mode)))
def test_an_update_whose_every_micro_batch_is_the_last_is_another(
    weights: Path, role: str, mode: tuple[int, str, str]
) -> None:
    """So the test above sees it."""
    assert differences(weights, role, mode) > 0.1
