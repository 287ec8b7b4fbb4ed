"""Additions to the policy's loss, and the warm-up: numbers computed by hand or by others."""

import math
from types import SimpleNamespace

import pytest
import torch
from openrlhf.models import Actor, PolicyLoss
from transformers import Qwen2Config, Qwen2ForCausalLM

from meds_openrlhf.config.schema import EntropyAdvantageSettings
from meds_openrlhf.training.step.update import EntropyAdvantageLoss, entropy_bonus, warmup_ratio

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
        vocab_size=13, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2,
    )  # fmt: skip
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
        assert math.ceil(most * warmup_ratio(steps, args, most)) == updates  # as OpenRLHF counts


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
