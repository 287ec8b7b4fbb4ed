"""A step's updates are the same under every ZeRO stage, with batches of fixed size and by tokens, padded and packed."""

import itertools
import pickle
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import pytest
import torch
from openrlhf.utils import get_strategy, utils
from safetensors.torch import load_file, save_file

from meds_openrlhf.config.schema import MedsSettings, PenaltySettings, PolicySettings
from meds_openrlhf.training.openrlhf.access import replaced
from meds_openrlhf.training.step.batches import arranged, padded_batches
from meds_openrlhf.training.step.policy import PolicyActor
from meds_openrlhf.training.step.update import CriticActor
from tests.training.ranks import run_ranks, save_tiny_policy
from tests.training.step.rollouts import NOT_RECORDED, arguments, recorded_rollouts

pytestmark = pytest.mark.e2e

PROMPTS, RESPONSES = 4, 4
EXTRAS = {"policy": 2, "critic": 0}  # of these prompts; the policy makes a second update on them
MOST_TOKENS = 40  # of a micro-batch by tokens: two or three responses
STAGES = (0, 1, 2, 3)
MODES = [(stage, *rest) for stage, *rest in itertools.product(STAGES, ("fixed", "tokens"), ("padded", "packed"))]


def flags_of(base: Path, ranks: int, extras: int, stage: int, batches: str, packing: str) -> dict[str, Any]:
    """Weights after an update differ as the gradients do: Adam's step is ``lr * gradient`` for so large an eps."""
    role = {"adam.lr": 100.0, "adam.eps": 100.0, "adam.betas": [0.0, 0.0], "lr_scheduler": "constant", "max_norm": 1e9}
    role |= {"model_name_or_path": str(base), "num_gpus_per_node": ranks}
    return {
        **{f"{section}.{key}": value for section in ("actor", "critic") for key, value in role.items()},
        "algo.advantage.estimator": "gae", "ds.packing_samples": packing == "packed", "ds.zero_stage": stage,
        "rollout.batch_size": (batch := PROMPTS - extras), "rollout.n_samples_per_prompt": RESPONSES,
        "rollout.micro_batch_size": 2, "train.batch_size": batch * RESPONSES, "train.micro_batch_size": 2,
        "train.max_tokens_per_gpu": MOST_TOKENS,
        "train.dynamic_batch_enable": batches != "fixed",
    }  # fmt: skip


def experiences() -> list[Any]:
    """The step's responses, of very different lengths, as the trainer has them before an update."""
    samples = recorded_rollouts(seed=3, prompts=PROMPTS, responses=RESPONSES)
    generator = torch.Generator().manual_seed(0)
    for sample in samples:
        shape = sample.action_mask.shape
        sample.advantages = torch.randn(1, 1, generator=generator) * sample.action_mask
        sample.returns = sample.advantages.clone()
        sample.action_log_probs = -torch.rand(shape, generator=generator) * sample.action_mask
        sample.values = torch.rand(shape, generator=generator) * sample.action_mask
        sample.rollout_log_probs = sample.base_action_log_probs = None
    return padded_batches(samples, [np.arange(len(samples))])


def main(rank: int, ranks: int, port: str, folder: str) -> None:
    """One rank that makes a step's updates in every mode, on the same experiences, and saves the weights."""
    with replaced(utils, convert_to_torch_dtype=lambda _: torch.float32):
        for role, mode in itertools.product(("policy", "critic"), MODES):
            weights = updated(role, rank, ranks, port, Path(folder, "base"), mode)
            if rank == 0:
                save_file(weights, f"{folder}/{role}-{'-'.join(map(str, mode))}.safetensors")


def updated(role: str, rank: int, ranks: int, port: str, base: Path, mode: tuple[int, str, str]) -> dict[str, Any]:
    """The weights of a fresh model after a step's updates in this mode."""
    args = arguments(**flags_of(base, ranks, EXTRAS[role], *mode))
    args.ds.param_dtype = "fp32"
    dealt = pickle.loads(pickle.dumps(arranged(experiences(), args, 1, "prompts")[rank]))  # as Ray sends them
    penalty = PenaltySettings(extras=EXTRAS[role])
    meds = MedsSettings(run_dir="x", policy=PolicySettings(minibatches="prompts"), penalty=penalty)
    actors = {"policy": (PolicyActor, {"meds": meds, "feature": NOT_RECORDED}), "critic": (CriticActor, {})}
    actor_class, settings = actors[role]
    model = actor_class(ranks, rank, "127.0.0.1", port)
    model.init_model_from_pretrained(get_strategy(args), str(base), 10, **settings)
    model.append(dealt)
    model.fit()
    trained = model.actor.model if role == "policy" else model.critic
    weights = {}
    for name, parameter in trained.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=mode[0] == 3):
            weights[name] = parameter.detach().clone()
    return weights


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights after a step's updates in every mode; one group of processes makes them all."""
    folder, ranks = tmp_path_factory.mktemp("updates"), request.param
    save_tiny_policy(folder / "base", torch.float32)
    run_ranks(__name__, ranks, folder)
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
