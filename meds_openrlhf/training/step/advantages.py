"""OpenRLHF's advantages per token: estimated without its loops, and as `shaping.law` sees them, for whole responses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from scipy.signal import lfilter

from meds_openrlhf.shaping.law import capped
from meds_openrlhf.shaping.method import Bools, Change
from meds_openrlhf.training.step.samples import SampleOrder


@dataclass(frozen=True)
class TokenAdvantages:
    """The advantages and returns (B, A) in a step's ``experiences``, with ``group`` responses to each prompt."""

    experiences: list[Experience]
    order: SampleOrder
    group: int

    def outcomes(self) -> NDArray[np.floating]:
        """Return the advantages (g, N) of whole responses: the means over their generated tokens."""
        return self.order.values(map(_outcomes, self.experiences)).reshape(-1, self.group)

    def change(self, change: Change) -> None:
        """Change the advantages of each response's tokens, and the returns unless they are what a critic learns."""
        factors, added = (np.asarray(values, np.float32).reshape(-1) for values in change)
        for experience in self.experiences:
            by, plus = (torch.from_numpy(values[experience.index]) for values in (factors, added))
            tokens = plus[:, None] * experience.action_mask
            experience.advantages = experience.advantages * by[:, None] + tokens
            if experience.values is None:
                experience.returns = experience.returns * by[:, None] + tokens
                experience.info["return"] = experience.info["return"] * by + plus

    def cap(self, unshaped: TokenAdvantages, correct: Bools) -> None:
        """Cap the advantages of wrong responses, token by token; returns stay."""
        right = correct.reshape(-1, 1)
        for experience, other in zip(self.experiences, unshaped.experiences, strict=True):
            advantages = capped(experience.advantages.numpy(), other.advantages.numpy(), right[experience.index])
            experience.advantages = torch.from_numpy(advantages)


class Estimators(RemoteExperienceMaker):  # type: ignore[misc]
    """OpenRLHF's maker of experiences without its loops over tokens."""

    def get_advantages_and_returns(
        self,
        values: torch.Tensor,
        rewards: torch.Tensor,
        action_mask: torch.Tensor | None,
        gamma: float,
        lambd: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return generalized advantages and returns (B, A) from a critic's values and rewards (B, A) (GAE).

        Called by OpenRLHF, whose loop over tokens this replaces.
        """
        if action_mask is not None:
            values, rewards = action_mask * values, action_mask * rewards
        later = torch.nn.functional.pad(values[:, 1:], (0, 1))
        advantages = _discounted_sums((rewards + gamma * later - values).float(), gamma * lambd)
        return advantages, advantages + values

    def get_cumulative_returns(
        self, rewards: torch.Tensor, action_mask: torch.Tensor | None, gamma: float
    ) -> torch.Tensor:
        """Return the discounted sum (B, A) of each token's and all later rewards (B, A); called by OpenRLHF.

        It is ``returns[t] = rewards[t] + gamma * returns[t + 1]`` over generated tokens, in OpenRLHF's order.
        """
        return _discounted_sums(rewards if action_mask is None else action_mask * rewards, gamma)


def _discounted_sums(values: torch.Tensor, factor: float) -> torch.Tensor:
    """Return ``sums[t] = values[t] + factor * sums[t + 1]`` (B, A), in that order of operations."""
    backwards = lfilter(np.ones(1, np.float32), np.array([1, -factor], np.float32), values.numpy()[:, ::-1])
    return torch.from_numpy(backwards[:, ::-1].copy())


def _outcomes(experience: Experience) -> NDArray[np.floating]:
    tokens = experience.action_mask.sum(dim=1).clamp(min=1)
    return np.asarray((experience.advantages * experience.action_mask).sum(dim=1) / tokens)
