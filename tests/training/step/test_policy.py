"""The recording policy actor on a tiny model: OpenRLHF's log-probs unchanged, the right rows of the right layers."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from openrlhf.models import Actor
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from transformers import AutoModelForCausalLM, Qwen2Config

from meds_openrlhf.config.schema import EntropyAdvantageSettings, FeatureSettings, MedsSettings, PolicySettings
from meds_openrlhf.training.openrlhf.access import plain_class
from meds_openrlhf.training.step import policy as actor
from meds_openrlhf.training.step.batches import padded_batches
from meds_openrlhf.training.step.policy import PolicyActor, Recorded
from meds_openrlhf.training.step.update import EntropyAdvantageLoss
from tests.training.step.rollouts import NOT_RECORDED, RECORDED, TOKENIZER, arguments, recorded_rollouts, set_texts

PROMPT = "1+1 \\boxed{9} "
RESPONSES = ["so \\boxed{2}", "no box", "\\boxed{1} or \\boxed{34}", "\\boxed{", "\\boxed{5"]


def make_actor(cls: type, packing: bool = False) -> object:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(TOKENIZER), hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=2,
    )  # fmt: skip
    policy = cls.__new__(cls)
    policy.actor = Actor(AutoModelForCausalLM.from_config(config))
    policy.actor.packing_samples = packing
    policy.actor.model.config.use_cache = False  # as OpenRLHF sets it
    policy.strategy = SimpleNamespace(ring_attn_group=None, ds_tensor_parallel_size=1)
    policy.tokenizer = TOKENIZER
    return policy


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Right-padded ids (5, T), action mask (5, T - 1), attention mask (5, T), as the experience maker pads them."""
    samples = recorded_rollouts(prompts=len(RESPONSES), responses=1)
    for sample, response in zip(samples, RESPONSES):
        set_texts(sample, PROMPT, response)
    (padded,) = padded_batches(samples, [np.arange(len(samples))], TOKENIZER.pad_token_id)
    return padded.sequences, padded.action_mask, padded.attention_mask


def run(policy: Any) -> tuple[torch.Tensor, Recorded]:
    """The log-probs of the batch, and what was recorded meanwhile."""
    log_probs = policy.forward(*batch())
    (recorded,) = policy.take_recorded()
    return log_probs, recorded


def test_log_probs_are_openrlhfs_and_logits_are_those_at_the_last_answer() -> None:
    ids, actions, mask = batch()
    plain, recording = make_actor(plain_class(PolicyModelActor)), make_actor(PolicyActor)
    recording.set_up_recording(FeatureSettings(), RECORDED)
    log_probs, got = run(recording)
    assert torch.equal(log_probs, plain.forward(ids, actions, mask))
    assert recording.take_recorded() == []
    assert got.layer_logits.shape == (5, 4)
    # Neither the prompt's box, nor a response without one, nor one that is cut off right after it has an answer.
    assert got.answers == ["2", None, "34", None, None]
    assert got.located.tolist() == [True, False, True, False, True]  # an open box has a first token
    assert np.isnan(got.layer_logits[[1, 3]]).all()

    model = plain.actor.model
    with torch.no_grad():
        output = model(
            ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0), output_hidden_states=True
        )
    prompt_length = len(TOKENIZER(PROMPT, add_special_tokens=False)["input_ids"])
    for row, answer in ((0, "2"), (2, "34"), (4, "5")):
        position = prompt_length + RESPONSES[row].rindex("{")  # one token per character
        target = int(ids[row, position + 1])
        assert TOKENIZER.decode([target]) == answer[0]
        long_way = [model.lm_head(hidden[row, position])[target].item() for hidden in output.hidden_states[1:]]
        np.testing.assert_allclose(got.layer_logits[row], long_way, rtol=1e-5, atol=1e-5)


def test_a_policy_that_records_no_layers_finds_answers_alone() -> None:
    policy = make_actor(PolicyActor)
    policy.set_up_recording(FeatureSettings(), NOT_RECORDED)
    log_probs, got = run(policy)
    assert torch.equal(log_probs, make_actor(plain_class(PolicyModelActor)).forward(*batch()))
    assert got.answers == ["2", None, "34", None, None]
    assert got.layer_logits.shape == (5, 0)


def test_packed_samples_give_the_same_logits_and_log_probs() -> None:
    padded, packed = make_actor(PolicyActor), make_actor(PolicyActor, packing=True)
    for policy in (padded, packed):
        policy.set_up_recording(FeatureSettings(), RECORDED)
    (expected_log_probs, expected), (log_probs, got) = run(padded), run(packed)
    np.testing.assert_allclose(got.layer_logits, expected.layer_logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(log_probs, expected_log_probs, atol=1e-4, rtol=1e-4)


def test_ranks_of_one_batch_share_what_they_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ring attention's ranks and tensor parallelism's get the same micro-batch, and a part of its tokens or weights."""
    policy = make_actor(PolicyActor)
    assert policy._groups_of_one_batch() == []
    mesh = {"tp": SimpleNamespace(get_group=lambda: "tensor group")}
    policy.strategy = SimpleNamespace(ring_attn_group="ring", ds_tensor_parallel_size=2, ds_device_mesh=mesh)
    assert policy._groups_of_one_batch() == ["ring", "tensor group"]
    policy.set_up_recording(FeatureSettings(), RECORDED)
    assert policy._recorder._groups == ("ring", "tensor group")

    monkeypatch.setattr(actor, "dist", SimpleNamespace(get_rank=lambda _: 1, get_world_size=lambda _: 2))
    policy.actor.packing_samples = True
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])  # seven tokens: four on the first rank, three here
    assert policy._in_model_input(torch.tensor([2, 3]), mask).tolist() == [-1, 2]


def test_the_time_of_finding_and_of_recording_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(100)  # each look takes a second
    monkeypatch.setattr(actor.time, "perf_counter", lambda: next(clock))
    seconds = []
    for feature in (NOT_RECORDED, RECORDED):
        policy = make_actor(PolicyActor)
        policy.set_up_recording(FeatureSettings(), feature)
        seconds.append(run(policy)[1].seconds)
    finding, both = seconds
    assert 0 < finding < both


def test_the_settings_of_the_policy_reach_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(policy: actor.PolicyActor, *_: object) -> None:
        policy.actor = torch.nn.Identity()
        policy.trainer = SimpleNamespace(actor_loss_fn=torch.nn.Identity())

    monkeypatch.setattr(actor.PolicyActor.__mro__[1], "init_model_from_pretrained", load)
    monkeypatch.setattr(actor.PolicyActor, "set_up_recording", lambda *_: None)
    policy = actor.PolicyActor.__new__(actor.PolicyActor)
    for alpha in (0.0, 0.4):
        settings = PolicySettings(entropy_advantage=EntropyAdvantageSettings(alpha=alpha))
        meds = MedsSettings(run_dir="x", policy=settings)
        policy.init_model_from_pretrained(SimpleNamespace(args=arguments()), "m", meds=meds, feature=NOT_RECORDED)
        wrapped = isinstance(policy.trainer.actor_loss_fn, EntropyAdvantageLoss)
        assert (wrapped, len(policy.actor._forward_hooks)) == ((True, 1) if alpha else (False, 0))


@pytest.mark.parametrize(
    ("name", "value", "cuda", "leaves"),
    [("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True", True, True),
     ("PYTORCH_ALLOC_CONF", "expandable_segments:True", True, True),
     ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False", True, False),
     ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", False, False)],
)  # fmt: skip
def test_memory_that_engines_map_is_not_in_expandable_segments(
    name: str, value: str, cuda: bool, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(actor, "has_cuda", lambda: cuda)
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")  # as it is called, and works here
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", given.append)
    assert actor.PolicyActor.__new__(actor.PolicyActor).leave_expandable_segments() == leaves
    assert given == ["expandable_segments:False"] * leaves


@pytest.mark.parametrize(("rank", "cuda_ipc", "joins"), [(0, False, True), (0, True, False), (1, False, False)])
def test_new_engines_form_a_new_group_with_rank_0(
    monkeypatch: pytest.MonkeyPatch, rank: int, cuda_ipc: bool, joins: bool
) -> None:
    groups: list[str] = []
    policy = actor.PolicyActor.__new__(actor.PolicyActor)
    old = SimpleNamespace(destroy=lambda: groups.append("old one released"))
    policy.trainer = SimpleNamespace(
        use_cuda_ipc=cuda_ipc, _init_vllm_sync_group=groups.append, _model_update_group=old
    )
    policy.strategy = SimpleNamespace(args=SimpleNamespace(vllm=SimpleNamespace(num_engines=3, sync_backend="gloo")))
    monkeypatch.setattr(actor.dist, "get_rank", lambda: rank)
    policy.use_engines(["one", "two"])
    assert groups == (["old one released", "gloo"] if joins else [])
    assert policy.trainer.vllm_engines == policy.vllm_engines == ["one", "two"]
    assert policy.strategy.args.vllm.num_engines == 2
