"""One update is the same under every ZeRO stage, with batches of fixed size and by tokens, padded and packed."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.ranks import run_ranks, save_tiny_policy
from tests.training.step.accumulation_worker import MODES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(330)]


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights after one update in every mode; one group of processes makes them all."""
    folder, ranks = tmp_path_factory.mktemp("updates"), request.param
    save_tiny_policy(folder / "base", torch.float32)
    run_ranks("tests.training.step.accumulation_worker", ranks, folder)
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
