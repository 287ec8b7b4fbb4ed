"""Additions to OpenRLHF's policy update: entropy in the advantages, and a warm-up counted in training steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from openrlhf.trainer.ray import ppo_actor, ppo_critic
from torch import nn

from meds_openrlhf.config.schema import EntropyAdvantageSettings
from meds_openrlhf.training.openrlhf.access import plain_class, replaced


class EntropyAdvantageLoss(nn.Module):
    """OpenRLHF's policy loss on advantages to which ``min(alpha * entropy, |advantage| / kappa)`` is added.

    Cheng et al., "Reasoning with Exploration: An Entropy Perspective" (2025), Section 3: tokens at which the policy is
    uncertain get a larger reward or a smaller penalty, but for kappa > 1 no advantage changes its sign.

    The entropy comes from the same forward pass as the loss: `keep_entropy` is a forward hook of OpenRLHF's Actor,
    which computes the entropy if ``actor.entropy_coef`` is set.
    """

    def __init__(self, policy_loss: nn.Module, settings: EntropyAdvantageSettings) -> None:
        super().__init__()
        self._policy_loss = policy_loss
        self._settings = settings
        self._entropy: torch.Tensor | None = None

    def keep_entropy(self, _actor: nn.Module, _arguments: Any, result: Any) -> None:
        """Store the entropy (B, T - 1), in nats, from the result of the Actor's forward pass in training."""
        if isinstance(result, tuple):  # a tuple with the model output in training, not in a log-prob recompute
            self._entropy = result[1].entropy.detach()

    def forward(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, **batch: Any
    ) -> Any:
        """Return the result of OpenRLHF's loss; all three arguments are (B, A), for the last A tokens."""
        assert self._entropy is not None
        entropy, self._entropy = self._entropy[:, -advantages.shape[1] :], None
        bonus = torch.minimum(self._settings.alpha * entropy, advantages.abs() / self._settings.kappa)
        return self._policy_loss(log_probs, old_log_probs, advantages + bonus, **batch)


def warmup_ratio(warmup_steps: int, args: SimpleNamespace, max_updates: int) -> float:
    """Return the ``actor.lr_warmup_ratio`` with which OpenRLHF warms up over ``warmup_steps`` training steps.

    OpenRLHF's scheduler counts optimizer updates, ``max_updates`` in total, and rounds the warm-up updates up.
    """
    samples: int = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    updates: float = warmup_steps * (samples // args.train.batch_size) * args.train.max_epochs
    return max(updates - 0.5, 0.0) / max(max_updates, 1)


class PolicyTrainer(ppo_actor.ActorPPOTrainer):  # type: ignore[misc]
    """OpenRLHF's updates of the policy; tells DeepSpeed where an update with dynamic micro-batches ends."""

    def training_step(self, experience: Any, kl_ctl: float, step: int, loss_batch_info: Any = None) -> dict[str, Any]:
        """Train on a micro-batch, the ``step``-th since the experiences were appended. Called by ``ppo_train``."""
        _say_whether_last(self.actor.model, self.replay_buffer, step)
        status: dict[str, Any] = super().training_step(experience, kl_ctl, step, loss_batch_info)
        return status


class CriticTrainer(ppo_critic.CriticPPOTrainer):  # type: ignore[misc]
    """OpenRLHF's updates of the critic; tells DeepSpeed where an update with dynamic micro-batches ends."""

    def training_step(self, experience: Any, step: int, loss_batch_info: Any = None) -> dict[str, Any]:
        """Train on a micro-batch, the ``step``-th since the experiences were appended. Called by ``ppo_train``."""
        _say_whether_last(self.critic, self.replay_buffer, step)
        status: dict[str, Any] = super().training_step(experience, step, loss_batch_info)
        return status


class CriticActor(plain_class(ppo_critic.CriticModelActor)):  # type: ignore[misc]
    """OpenRLHF's DeepSpeed critic with `CriticTrainer`."""

    def init_model_from_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Load the model."""
        with replaced(ppo_critic, CriticPPOTrainer=CriticTrainer):
            super().init_model_from_pretrained(*args, **kwargs)


def _say_whether_last(engine: Any, replay_buffer: Any, step: int) -> None:
    """Tell DeepSpeed's ``engine`` whether a micro-batch ends an update; it counts fixed-size micro-batches itself."""
    if replay_buffer.dynamic_batch:
        engine.set_gradient_accumulation_boundary(bool(replay_buffer.dynamic_optimizer_step[step]))
