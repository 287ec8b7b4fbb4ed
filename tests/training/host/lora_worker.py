"""One rank of policies with LoRA on OpenRLHF's own classes: trained, saved in every way, and resumed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils import get_strategy
from safetensors.torch import save_file

from meds_openrlhf.checkpoints import mark_complete
from meds_openrlhf.config import MedsSettings
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.host.openrlhf import replaced
from meds_openrlhf.training.step.policy import PolicyActor
from tests.training.step.rollouts import arguments

RANK, ALPHA = 4, 12
TARGETS = ["q_proj", "v_proj", "down_proj", "lm_head"]
STEPS = 2


def flags_of(paths: RunPaths, stage: int, ranks: int) -> dict[str, Any]:
    return {
        "actor.model_name_or_path": str(paths.root / "base"),
        "actor.adam.lr": 0.02,
        "actor.lr_scheduler": "constant",
        "actor.num_gpus_per_node": ranks,
        "ckpt.path": str(paths.checkpoints),
        "ckpt.output_dir": str(paths.model),
        "ckpt.save_hf": True,
        "ds.zero_stage": stage,
        "ds.lora.rank": RANK,
        "ds.lora.alpha": ALPHA,
        "ds.lora.target_modules": TARGETS,
        "rollout.micro_batch_size": 1,
        "rollout.n_samples_per_prompt": 2,
        "train.batch_size": ranks,
        "train.micro_batch_size": 1,
    }


def main(rank: int, ranks: int, port: str, run_of_zero_2: str, run_of_zero_3: str) -> None:
    for stage, folder in {2: run_of_zero_2, 3: run_of_zero_3}.items():
        train(rank, ranks, port, stage, RunPaths(Path(folder)))


def train(rank: int, ranks: int, port: str, stage: int, paths: RunPaths) -> None:
    """Train, save, take another step; then load the checkpoint and take that step again."""
    flags = flags_of(paths, stage, ranks)
    policy = load(rank, ranks, port, flags)
    for number in range(STEPS):
        step(policy, rank, number)
    sent = weights_sent(policy)
    require_same_by_ipc(policy, sent)
    policy.save_model()
    policy.save_checkpoint(f"global_step{STEPS}", {})
    # The trainer's own parameters, after everything was sent and saved.
    own = state_of(policy)
    losses = [step(policy, rank, number) for number in (STEPS, STEPS + 1)]
    resumed = load(rank, ranks, port, {**flags, "ckpt.load_enable": True})
    again = [step(resumed, rank, number) for number in (STEPS, STEPS + 1)]
    torch.save({"losses": losses, "again": again}, paths.root / f"losses-{rank}.pt")
    if rank == 0:
        save_file(sent, paths.root / "sent.safetensors")
        save_file(own, paths.root / "own.safetensors")
        mark_complete(paths, f"global_step{STEPS}", STEPS)


def load(rank: int, ranks: int, port: str, flags: dict[str, Any]) -> Any:
    args = arguments(**flags)
    policy = PolicyActor(ranks, rank, "127.0.0.1", port)
    policy.init_model_from_pretrained(
        get_strategy(args), args.actor.model_name_or_path, 10, meds=MedsSettings(run_dir="x"), records_layers=False
    )
    return policy


def step(policy: Any, rank: int, number: int) -> float:
    """One optimizer step on text of this rank."""
    generator = torch.Generator().manual_seed(100 * number + rank)
    ids = torch.randint(1, 90, (1, 20), generator=generator)
    log_probs = policy.actor(ids, torch.ones(1, 19), attention_mask=torch.ones_like(ids))
    loss = -log_probs.mean()
    policy.strategy.backward(loss, policy.actor, policy.actor_optim)
    policy.strategy.optimizer_step(policy.actor_optim, policy.actor, policy.actor_scheduler)
    return float(loss.detach())


class Receiver:
    """Stands for an engine and for the group in which rank 0 sends it weights: keeps what comes, in order."""

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}
        self.last: list[bool] = []

    def remote(self, name: str, dtype: Any, shape: Any, empty_cache: bool) -> None:
        """An engine's ``update_weight``, announced before the weight is sent."""
        self._announced = (name, dtype, tuple(shape))
        self.last.append(empty_cache)

    def broadcast(self, tensor: Any, src: int, stream: object) -> None:
        """The group's."""
        name, dtype, shape = self._announced
        assert (tensor.dtype, tuple(tensor.shape)) == (dtype, shape)
        self.weights[name] = tensor.detach().clone()

    @property
    def update_weight(self) -> Receiver:
        """As a handle of a Ray actor names its method."""
        return self


def weights_sent(policy: Any) -> dict[str, Any]:
    """What OpenRLHF's weight sync sends an engine."""
    receiver = Receiver()
    policy.trainer.vllm_engines, policy.trainer._model_update_group = [receiver], receiver
    with replaced(ppo_actor, ray=SimpleNamespace(get=lambda _: None)):  # it waits for engines in other processes
        policy.broadcast_to_vllm()
    if receiver.last:  # on rank 0
        assert receiver.last == [False] * (len(receiver.last) - 1) + [True]
    return receiver.weights


def require_same_by_ipc(policy: Any, sent: dict[str, Any]) -> None:
    """The way for engines on the policy's GPUs: every rank hands over a copy, here by pickle in place of CUDA IPC."""
    handed: dict[str, dict[int, Any]] = {}

    def receive(name: str, dtype: Any, shape: Any, ipc_handles: dict[int, Any], empty_cache: bool) -> None:
        handed[name] = {rank: rebuild(*arguments) for rank, (rebuild, arguments) in ipc_handles.items()}
        assert all((one.dtype, one.shape) == (dtype, shape) for one in handed[name].values())

    engine = SimpleNamespace(update_weight_cuda_ipc=SimpleNamespace(remote=receive))
    policy.trainer.vllm_engines, policy.trainer.use_cuda_ipc = [engine], True
    with replaced(ppo_actor, ray=SimpleNamespace(get=lambda _: None), get_physical_gpu_id=dist.get_rank):
        policy.broadcast_to_vllm()
    policy.trainer.use_cuda_ipc = False
    assert handed.keys() == sent.keys()  # none but on rank 0
    for name, weight in sent.items():
        assert sorted(handed[name]) == list(range(dist.get_world_size()))
        assert all(torch.equal(one, weight) for one in handed[name].values()), name


def state_of(policy: Any) -> dict[str, Any]:
    """All of the policy's own parameters, under PEFT's names."""
    state = {}
    for name, parameter in policy.actor.model.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            state[name] = parameter.detach().clone()
    return state
