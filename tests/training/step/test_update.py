"""Additions to the policy's loss, and the warm-up: numbers computed by hand or by others."""

import math
from types import SimpleNamespace

import pytest
import torch
from openrlhf.models import Actor, PolicyLoss
from transformers import Qwen2Config, Qwen2ForCausalLM

from meds_openrlhf.config.schema import EntropyAdvantageSettings
from meds_openrlhf.training.step.update import EntropyAdvantageLoss, warmup_ratio

SETTINGS = EntropyAdvantageSettings(alpha=0.4, kappa=2.0)


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


@pytest.mark.parametrize(
    ("steps", "batch", "epochs", "updates"),
    [(10, 256, 1, 320), (0, 256, 1, 0), (3, 256, 2, 192), (10, 300, 1, 270)],  # 27 of 300 in a step; the rest is left
)
def test_the_warm_up_ends_after_so_many_training_steps(steps: int, batch: int, epochs: int, updates: int) -> None:
    args = SimpleNamespace(
        rollout=SimpleNamespace(batch_size=512, n_samples_per_prompt=16),
        train=SimpleNamespace(batch_size=batch, max_epochs=epochs),
    )
    for most in (1000, 1537, 99_999):
        assert math.ceil(most * warmup_ratio(steps, args, most)) == updates  # as OpenRLHF counts


def test_openrlhfs_loss_gets_all_that_it_passes_and_the_raised_advantages() -> None:
    passed = {}

    class Loss(torch.nn.Module):
        def forward(self, log_probs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, **batch: int) -> None:
            passed.update(batch, advantages=advantages.tolist(), gradient=advantages.requires_grad)

    loss = EntropyAdvantageLoss(Loss(), SETTINGS)
    entropy = torch.tensor([[9.0, 0.5, 2.0, 0.1, 3.0, 1.0]], requires_grad=True)  # 9 is the prompt's
    loss.keep_entropy(loss, (), (None, SimpleNamespace(entropy=entropy)))
    loss.keep_entropy(loss, (), torch.zeros(1, 2))  # a log-prob recompute between: nothing is kept of it
    advantages = torch.tensor([[1.0, 1.0, -1.0, -0.8, 0.0]])
    loss(advantages, advantages, advantages, action_mask=1, dp_size=2)
    # Plus 0.4 * 0.5; |1| / 2; 0.4 * 0.1; |-0.8| / 2; nothing where there is no advantage.
    assert passed.pop("advantages") == [pytest.approx([1.2, 1.5, -0.96, -0.4, 0.0])]
    assert passed == {"action_mask": 1, "dp_size": 2, "gradient": False}
    with pytest.raises(AssertionError):  # every update has its own entropy
        loss(advantages, advantages, advantages)
