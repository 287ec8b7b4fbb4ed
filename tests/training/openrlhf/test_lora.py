"""A policy with LoRA on two ranks, under ZeRO-2 and ZeRO-3: what is sent, saved and resumed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import pytest
import torch
import torch.distributed as dist
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils import get_strategy
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from meds_openrlhf.adapters import name_in_model
from meds_openrlhf.checkpoints import mark_complete
from meds_openrlhf.config import MedsSettings
from meds_openrlhf.evaluation.models import converted, find_models, fingerprint_of
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.openrlhf.access import replaced
from meds_openrlhf.training.step.policy import PolicyActor
from tests.training.ranks import run_ranks, save_tiny_policy
from tests.training.step.rollouts import NOT_RECORDED, arguments

RANK, ALPHA = 4, 12
TARGETS = ["q_proj", "v_proj", "down_proj", "lm_head"]
STEPS, RANKS = 2, 2

pytestmark = pytest.mark.e2e
stages = pytest.mark.parametrize("stage", [2, 3])


def flags_of(paths: RunPaths, stage: int, ranks: int) -> dict[str, Any]:
    return {
        "actor.model_name_or_path": str(paths.root / "base"), "actor.adam.lr": 0.02, "actor.lr_scheduler": "constant",
        "actor.num_gpus_per_node": ranks, "ckpt.path": str(paths.checkpoints), "ckpt.output_dir": str(paths.model),
        "ckpt.save_hf": True, "ds.zero_stage": stage, "ds.lora.rank": RANK, "ds.lora.alpha": ALPHA,
        "ds.lora.target_modules": TARGETS, "rollout.micro_batch_size": 1, "rollout.n_samples_per_prompt": 2,
        "train.batch_size": ranks, "train.micro_batch_size": 1,
    }  # fmt: skip


def main(rank: int, ranks: int, port: str, run_of_zero_2: str, run_of_zero_3: str) -> None:
    """One rank of policies with LoRA on OpenRLHF's own classes: trained, saved in every way, and resumed."""
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
        get_strategy(args), args.actor.model_name_or_path, 10, meds=MedsSettings(run_dir="x"), feature=NOT_RECORDED
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
    def update_weight(self) -> "Receiver":
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


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The folder of a run of each ZeRO stage; one pair of processes makes both."""
    folders = {stage: tmp_path_factory.mktemp(f"zero{stage}") for stage in (2, 3)}
    for folder in folders.values():
        save_tiny_policy(folder / "base", torch.bfloat16)
        lora = f"ds.lora: {{rank: {RANK}, alpha: {ALPHA}}}"
        (folder / "config.yaml").write_text(
            f"meds: {{run_dir: x}}\nactor.model_name_or_path: {folder / 'base'}\n{lora}\n"
        )
    run_ranks(__name__, RANKS, *folders.values())
    return folders


def base_of(folder: Path, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder / "base", dtype=dtype)


def merged_by_peft(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The trained adapters, merged by PEFT in ``dtype``, then in bfloat16."""
    config = LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, target_modules=TARGETS)
    model = get_peft_model(base_of(folder, dtype), config, autocast_adapter_dtype=False)
    model.load_state_dict(load_file(folder / "own.safetensors"))
    return {name: one.bfloat16() for name, one in model.to(dtype).merge_and_unload().state_dict().items()}


@stages
def test_engines_get_the_merged_weights_and_the_policy_keeps_its_own(stage: int, runs: dict[int, Path]) -> None:
    sent, base = load_file(runs[stage] / "sent.safetensors"), dict(base_of(runs[stage]).named_parameters())
    assert set(sent) == set(base)
    exact, rounded_twice = (merged_by_peft(runs[stage], dtype) for dtype in (torch.float32, torch.bfloat16))
    for name, weight in sent.items():
        assert torch.equal(weight, exact[name]), name
        torch.testing.assert_close(weight, rounded_twice[name], rtol=2**-6, atol=2**-8)
    adapted = {name for name in sent if not torch.equal(sent[name], base[name])}
    assert adapted == {name for name in base if name.removesuffix(".weight").split(".")[-1] in TARGETS}
    own = load_file(runs[stage] / "own.safetensors")
    assert all((own[name] != 0).any() for name in own if ".lora_B." in name)
    kept = {name_in_model(name): weight for name, weight in own.items() if name_in_model(name) is not None}
    assert all(torch.equal(kept[name], weight) for name, weight in base.items())


@stages
def test_a_saved_model_is_what_engines_got(stage: int, runs: dict[int, Path], tmp_path: Path) -> None:
    """Merged in the run's folder, in that of ckpt.save_hf, and from the checkpoint."""
    sent = load_file(runs[stage] / "sent.safetensors")
    (trained,) = find_models([f"a={runs[stage]}"])
    (of_step,) = find_models([f"b={runs[stage]}@{STEPS}"])
    assert trained.folder == runs[stage] / "model"
    assert of_step.folder == runs[stage] / f"checkpoints/global_step{STEPS}_hf"
    of_step.folder.rename(tmp_path / "hf")
    (shards,) = find_models([f"b={runs[stage]}@{STEPS}"])
    assert shards.shards is not None
    from_checkpoint = converted(shards, fingerprint_of(shards.shards), tmp_path)
    for folder in (trained.folder, tmp_path / "hf", from_checkpoint):
        found = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        assert {name for name in sent if not torch.equal(found[name], sent[name])} == set(), folder
        assert set(found) == set(sent)


@stages
@pytest.mark.parametrize("rank", range(RANKS))
def test_a_resumed_policy_has_the_same_losses(stage: int, rank: int, runs: dict[int, Path]) -> None:
    found = torch.load(runs[stage] / f"losses-{rank}.pt", weights_only=True)
    assert found["losses"] == found["again"]
    assert found["losses"][0] != found["losses"][1]
