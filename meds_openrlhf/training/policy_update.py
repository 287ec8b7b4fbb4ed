"""Additions to OpenRLHF's policy update: entropy in the advantages, KL-Cov, and a warm-up counted in training steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from openrlhf.models import aggregate_loss
from torch import nn

from meds_openrlhf.config.schema import EntropyAdvantageSettings, KlCovSettings


def entropy_bonus(entropy: torch.Tensor, advantages: torch.Tensor, *, alpha: float, kappa: float) -> torch.Tensor:
    """Return ``min(alpha * entropy, |advantage| / kappa)``, (B, A) like its two arguments, without a gradient.

    Cheng et al., "Reasoning with Exploration: An Entropy Perspective" (2025), Section 3: tokens at which the policy is
    uncertain get a larger reward or a smaller penalty, but for kappa > 1 no advantage changes its sign.
    """
    return torch.minimum(alpha * entropy.detach(), advantages.abs() / kappa)


class EntropyAdvantageLoss(nn.Module):
    """OpenRLHF's policy loss on advantages with the entropy bonus added.

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
        bonus = entropy_bonus(entropy, advantages, alpha=self._settings.alpha, kappa=self._settings.kappa)
        return self._policy_loss(log_probs, old_log_probs, advantages + bonus, **batch)


def largest_covariance(
    log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, *, share: float
) -> torch.Tensor:
    """Return a mask (B, A) of the ``share`` of tokens, at least one, with the largest covariance.

    Cui et al., "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models" (2025), KL-Cov: the
    covariance of a token is ``(log p - mean log p) * (A - mean A)``, with means over the tokens of ``mask``. All
    arguments are (B, A). Where it is large, an update makes a likely token likelier, and entropy falls fastest.
    """
    counted = mask.bool()
    chosen = torch.zeros_like(counted)
    if not counted.any():
        return chosen
    log_prob, advantage = log_probs.detach()[counted].float(), advantages[counted].float()
    covariance = (log_prob - log_prob.mean()) * (advantage - advantage.mean())
    largest = torch.zeros_like(covariance, dtype=torch.bool)
    largest[covariance.topk(max(1, int(share * len(covariance)))).indices] = True
    chosen[counted] = largest
    return chosen


class KlCovLoss(nn.Module):
    """OpenRLHF's policy loss with the term of KL-Cov for the tokens of largest covariance in each micro-batch.

    As in its authors' code, the divergence from the policy that sampled is estimated by ``|log p - log p_old|``.
    """

    def __init__(self, policy_loss: nn.Module, settings: KlCovSettings) -> None:
        super().__init__()
        self._policy_loss = policy_loss
        self._settings = settings

    def forward(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        action_mask: torch.Tensor,
        rollout_log_probs: torch.Tensor | None = None,
        **normalization: Any,
    ) -> Any:
        """Return the result of OpenRLHF's loss, with the term added to the loss; all arguments are (B, A)."""
        loss, *metrics = self._policy_loss(
            log_probs,
            old_log_probs,
            advantages,
            action_mask=action_mask,
            rollout_log_probs=rollout_log_probs,
            **normalization,
        )
        chosen = largest_covariance(log_probs, advantages, action_mask, share=self._settings.share)
        term = self._settings.coef * (log_probs - old_log_probs).abs() * chosen
        token_level: Any = self._policy_loss.token_level_loss
        return loss + aggregate_loss(term, action_mask, token_level, **normalization), *metrics


def warmup_ratio(warmup_steps: int, args: SimpleNamespace, max_updates: int) -> float:
    """Return the ``actor.lr_warmup_ratio`` with which OpenRLHF warms up over ``warmup_steps`` training steps.

    Its scheduler counts optimizer updates, ``max_updates`` in total, and rounds the number of warm-up updates up.
    """
    samples: int = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    updates: float = warmup_steps * (samples // args.train.batch_size) * args.train.max_epochs
    return max(updates - 0.5, 0.0) / max(max_updates, 1)
