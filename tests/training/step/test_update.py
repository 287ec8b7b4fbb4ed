"""Additions to the policy's loss, the loss over a mini-batch and the warm-up: numbers computed by hand or by others."""

import math
from types import SimpleNamespace

import pytest
import torch
from openrlhf.models import Actor, PolicyLoss
from openrlhf.utils.loss_utils import iter_grad_accum_global_norm
from transformers import Qwen2Config, Qwen2ForCausalLM, get_scheduler

from meds_openrlhf.config.schema import EntropyAdvantageSettings
from meds_openrlhf.training.step.update import (
    EntropyAdvantageLoss,
    entropy_bonus,
    warmup_ratio,
)

SETTINGS = EntropyAdvantageSettings(alpha=0.4, kappa=2.0)


def test_the_bonus_is_the_entropy_up_to_a_part_of_the_advantage() -> None:
    entropy = torch.tensor([[0.5, 2.0, 0.1, 3.0, 1.0]], requires_grad=True)
    advantages = torch.tensor([[1.0, 1.0, -1.0, -0.8, 0.0]])
    bonus = entropy_bonus(entropy, advantages, alpha=0.4, kappa=2.0)
    # 0.4 * 0.5; |1| / 2; 0.4 * 0.1; |-0.8| / 2; nothing where there is no advantage
    torch.testing.assert_close(bonus, torch.tensor([[0.2, 0.5, 0.04, 0.4, 0.0]]))
    assert not bonus.requires_grad
    assert torch.equal((advantages + bonus).sign(), advantages.sign())


def test_the_loss_is_openrlhfs_on_raised_advantages() -> None:
    loss = EntropyAdvantageLoss(PolicyLoss(), SETTINGS)
    output = SimpleNamespace(entropy=torch.tensor([[9.0, 0.5, 2.0]]))  # the first token is the prompt's
    loss.keep_entropy(loss, (), (None, output))
    advantages, mask = torch.tensor([[1.0, -1.0]]), torch.ones(1, 2)
    log_probs = torch.zeros(1, 2, requires_grad=True)
    total, *_ = loss(log_probs, torch.zeros(1, 2), advantages, action_mask=mask)
    assert total.item() == pytest.approx(-((1 + 0.2) + (-1 + 0.5)) / 2)
    total.backward()
    torch.testing.assert_close(log_probs.grad, torch.tensor([[-0.6, 0.25]]))
    assert torch.equal(advantages, torch.tensor([[1.0, -1.0]]))


def test_the_entropy_is_that_of_openrlhfs_actor_at_the_tokens_it_is_trained_on() -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=13,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    actor = Actor(Qwen2ForCausalLM(config), temperature=0.7)
    actor.packing_samples = False
    loss = EntropyAdvantageLoss(PolicyLoss(), SETTINGS)
    actor.register_forward_hook(loss.keep_entropy)
    sequences, mask = torch.randint(0, 13, (2, 6)), torch.ones(2, 3)
    arguments = {"attention_mask": torch.ones(2, 6, dtype=torch.long), "return_output": True, "return_entropy": True}
    log_probs, output = actor(sequences, mask, **arguments)
    total, *_ = loss(log_probs, log_probs.detach(), torch.full((2, 3), 5.0), action_mask=mask)
    entropy = torch.distributions.Categorical(logits=output["logits"]).entropy()[:, 2:5]  # of tokens 3, 4, 5
    assert total.item() == pytest.approx(-(5 + 0.4 * entropy).mean().item(), rel=1e-5)


def test_every_token_of_a_mini_batch_weighs_the_same_whatever_the_micro_batches() -> None:
    """Two micro-batches of 1 and 3 tokens: DeepSpeed adds them up with a weight of 1 / 2 each."""
    masks = [torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 1.0]])]
    advantages = [torch.tensor([[4.0, 9.0, 9.0]]), torch.tensor([[1.0, 2.0, 3.0]])]
    strategy = SimpleNamespace()
    total = 0.0
    for (mask, advantage), info in iter_grad_accum_global_norm(zip(masks, advantages), strategy, 2, lambda one: one[0]):
        loss, *_ = PolicyLoss(token_level_loss=True)(torch.zeros(1, 3), torch.zeros(1, 3), advantage, mask, **info)
        total += loss.item() / 2
    assert total == pytest.approx(-(4 + 1 + 2 + 3) / 4)


def test_grpo_weighs_every_response_the_same() -> None:
    mask = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    advantages = torch.tensor([[4.0, 9.0, 9.0], [1.0, 2.0, 3.0]])
    loss, *_ = PolicyLoss(token_level_loss=False)(torch.zeros(2, 3), torch.zeros(2, 3), advantages, mask)
    assert loss.item() == pytest.approx(-(4 + 2) / 2)


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28)])
def test_the_clip_range_is_grpos_or_dapos(low: float, high: float) -> None:
    ratios = torch.tensor([[1.25, 1.25, 0.7, 1.5]])
    advantages = torch.tensor([[1.0, -1.0, -1.0, 2.0]])
    loss, *_ = PolicyLoss(low, high)(ratios.log(), torch.zeros(1, 4), advantages, torch.ones(1, 4))
    by_hand = [min(1.25, 1 + high), -1.25, -(1 - low), 2 * (1 + high)]
    assert loss.item() == pytest.approx(-sum(by_hand) / 4, rel=1e-6)


@pytest.mark.parametrize(("steps", "epochs", "updates"), [(10, 1, 320), (0, 1, 0), (3, 2, 192)])
def test_the_warm_up_ends_after_so_many_training_steps(steps: int, epochs: int, updates: int) -> None:
    args = SimpleNamespace(
        rollout=SimpleNamespace(batch_size=512, n_samples_per_prompt=16),
        train=SimpleNamespace(batch_size=256, max_epochs=epochs),
    )
    assert warmup_ratio(steps, args, 1) == max(updates - 0.5, 0.0)
    args.train.batch_size = 300  # a step has 27 updates then; what is left over is not trained on
    assert warmup_ratio(10, args, 1) == 270 * epochs - 0.5
    args.train.batch_size = 256
    for most in (1000, 1537, 99_999):
        warmup = math.ceil(most * warmup_ratio(steps, args, most))  # as OpenRLHF counts
        assert warmup == updates
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-6)
    schedule = get_scheduler("constant_with_warmup", optimizer, num_warmup_steps=warmup, num_training_steps=most)
    for _ in range(updates):
        assert schedule.get_last_lr()[0] < 1e-6
        optimizer.step()
        schedule.step()
    assert schedule.get_last_lr()[0] == pytest.approx(1e-6)


def test_the_loss_gets_all_else_that_openrlhf_passes_and_needs_a_new_entropy_each_time() -> None:
    passed = {}

    class Loss(torch.nn.Module):
        def forward(self, *_: torch.Tensor, **batch: object) -> None:
            passed.update(batch)

    loss = EntropyAdvantageLoss(Loss(), SETTINGS)
    loss.keep_entropy(loss, (), (None, SimpleNamespace(entropy=torch.zeros(1, 2))))
    loss.keep_entropy(loss, (), torch.zeros(1, 2))  # a log-prob recompute between: nothing is kept of it
    numbers = torch.zeros(1, 2)
    loss(numbers, numbers, numbers, action_mask=1, dp_size=2)
    assert passed == {"action_mask": 1, "dp_size": 2}
    with pytest.raises(AssertionError):
        loss(numbers, numbers, numbers)
