"""A policy with LoRA on two ranks, under ZeRO-2 and ZeRO-3: what is sent, saved and resumed."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from meds_openrlhf.adapters import plain_name
from meds_openrlhf.evaluation.models.loading import converted
from meds_openrlhf.evaluation.models.naming import find_models, fingerprint_of
from tests.training.host.lora_worker import ALPHA, RANK, STEPS, TARGETS
from tests.training.ranks import run_ranks, save_tiny_policy

RANKS = 2

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(330)]
stages = pytest.mark.parametrize("stage", [2, 3])


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
    run_ranks("tests.training.host.lora_worker", RANKS, *folders.values())
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
    kept = {plain_name(name): weight for name, weight in own.items() if plain_name(name) is not None}
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
