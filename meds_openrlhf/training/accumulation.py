"""OpenRLHF's updates, in which the gradients of all micro-batches of an update add up, under every ZeRO stage.

With batches by tokens (``train.dynamic_batch_enable``) an update has any number of micro-batches. OpenRLHF configures
one and calls the optimizer after the last, but DeepSpeed then takes every micro-batch for the last of an update, and
ZeRO-1 and ZeRO-2 overwrite the gradients of those before it.
"""

from __future__ import annotations

from typing import Any

from openrlhf.trainer.ray import ppo_actor, ppo_critic

from meds_openrlhf.training.openrlhf_source import plain_class, replaced


class PolicyTrainer(ppo_actor.ActorPPOTrainer):  # type: ignore[misc]
    """OpenRLHF's updates of the policy."""

    def training_step(self, experience: Any, kl_ctl: float, step: int, loss_batch_info: Any = None) -> dict[str, Any]:
        """Run a micro-batch, the ``step``-th since the experiences came."""
        _say_whether_last(self.actor.model, self.replay_buffer, step)
        status: dict[str, Any] = super().training_step(experience, kl_ctl, step, loss_batch_info)
        return status


class CriticTrainer(ppo_critic.CriticPPOTrainer):  # type: ignore[misc]
    """OpenRLHF's updates of the critic."""

    def training_step(self, experience: Any, step: int, loss_batch_info: Any = None) -> dict[str, Any]:
        """Run a micro-batch, the ``step``-th since the experiences came."""
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
    """Tell DeepSpeed's ``engine`` whether this micro-batch is the last of its update; it counts those of fixed size."""
    if replay_buffer.dynamic_batch:
        engine.set_gradient_accumulation_boundary(bool(replay_buffer.dynamic_optimizer_step[step]))
