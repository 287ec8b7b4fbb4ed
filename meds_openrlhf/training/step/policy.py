"""OpenRLHF's policy actor: it records layer logits while it recomputes log-probs, and its engines can be replaced."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from openrlhf.trainer.ray import ppo_actor
from torch.utils.data import DataLoader

from meds_openrlhf.config.schema import FeatureSettings, MedsSettings
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.features.kind import Feature, load_function
from meds_openrlhf.features.layout import (
    find_answers,
    packed_positions,
    padded_positions,
    positions_and_targets,
    positions_on_rank,
)
from meds_openrlhf.features.recorder import LayerLogitRecorder
from meds_openrlhf.runtime.devices import has_cuda
from meds_openrlhf.training.openrlhf.access import plain_class, replaced
from meds_openrlhf.training.openrlhf.lora import save_merged, send_merged
from meds_openrlhf.training.step.samples import generated_tokens
from meds_openrlhf.training.step.update import EntropyAdvantageLoss, PolicyTrainer, warmup_ratio


@dataclass(frozen=True)
class Recorded:
    """What the policy recorded for n rollouts while it recomputed their log-probs."""

    answers: list[str | None]  # (n) final answers, None for a response without an answer
    located: NDArray[np.bool_]  # (n,) whether there is a token to record at; true also for an empty or unclosed box
    layer_logits: NDArray[np.float32]  # (n, N), NaN where nothing is located; (n, 0) if no layers are recorded
    seconds: float  # spent on finding answers and recording


class PolicyActor(plain_class(ppo_actor.PolicyModelActor)):  # type: ignore[misc]
    """OpenRLHF's DeepSpeed policy with replaceable engines, a recorder, and the settings under ``meds.policy``."""

    def leave_expandable_segments(self) -> bool:
        """Allocate memory that engines on the same GPU can map; return whether the node's environment said otherwise.

        Expandable segments, which cluster profiles set for the sake of fragmentation, are handed over by file
        descriptors, which containers refuse (``pidfd_getfd: Operation not permitted``). vLLM leaves them by itself.
        """
        names = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
        if not has_cuda() or not any("expandable_segments:True" in os.environ.get(name, "") for name in names):
            return False
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
        return True

    def init_model_from_pretrained(
        self,
        strategy: Any,
        pretrain: str,
        max_steps: int | None = None,
        vllm_engines: list[Any] | None = None,
        *,
        meds: MedsSettings,
        feature: Feature,
    ) -> None:
        """Load the model, with the warm-up counted in training steps and the settings' additions to the loss.

        ``feature``: what the log-prob recomputes record.
        """
        self._meds, settings = meds, meds.policy
        if settings.warmup_steps is not None and max_steps is not None:
            strategy.args.actor.lr_warmup_ratio = warmup_ratio(settings.warmup_steps, strategy.args, max_steps)
        if strategy.args.ds.lora.rank:
            strategy.save_model = save_merged  # OpenRLHF's method saves only the adapters
        with replaced(ppo_actor, ActorPPOTrainer=PolicyTrainer):
            super().init_model_from_pretrained(strategy, pretrain, max_steps, vllm_engines)
        if settings.entropy_advantage.alpha > 0:
            loss = EntropyAdvantageLoss(self.trainer.actor_loss_fn, settings.entropy_advantage)
            self.actor.register_forward_hook(loss.keep_entropy)
            self.trainer.actor_loss_fn = loss
        self.set_up_recording(meds.features, feature)

    def fit(self, kl_ctl: float = 0) -> dict[str, float]:
        """Run OpenRLHF's updates; with mini-batches of whole prompts, the samples are not shuffled."""
        unshuffled = {"DataLoader": lambda *args, shuffle, **kwargs: DataLoader(*args, **kwargs)}
        loaders = unshuffled if self._meds.policy.minibatches == "prompts" else {}
        rollout = self.strategy.args.rollout
        # With dynamic batches, OpenRLHF trains on at most this many prompts; extras come beside them.
        most = rollout.batch_size + self._meds.penalty.extras
        with replaced(ppo_actor, **loaders), replaced(rollout, batch_size=most):
            status: dict[str, float] = super().fit(kl_ctl)
        return status

    def broadcast_to_vllm(self) -> None:
        """Send the weights to the engines, with LoRA adapters merged into them."""
        if self.strategy.args.ds.lora.rank:
            send_merged(self.trainer)
        else:
            super().broadcast_to_vllm()

    def use_engines(self, engines: list[Any]) -> None:
        """Send the weights to ``engines`` from the next weight sync on; the engines and rank 0 form a new group."""
        self.vllm_engines = self.trainer.vllm_engines = engines
        self.strategy.args.vllm.num_engines = len(engines)  # OpenRLHF derives the group's size from it
        if dist.get_rank() == 0 and not self.trainer.use_cuda_ipc:
            self.trainer._model_update_group.destroy()  # frees its buffers on this GPU
            self.trainer._init_vllm_sync_group(self.strategy.args.vllm.sync_backend)

    # ── recording ──

    def set_up_recording(self, settings: FeatureSettings, feature: Feature) -> None:
        """Create the answer locator and, if the ``feature`` is recorded, the recorder; the model must be loaded."""
        self._recorded: list[Recorded] = []
        self._locator = AnswerLocator(self.tokenizer, settings.answer_pattern)
        self._recorder: LayerLogitRecorder | None = None
        if feature.is_recorded:
            model, function = self.actor.model, None
            if settings.function is not None:
                config = model.module.config.get_text_config()
                function = load_function(settings.function, config.num_hidden_layers, config.hidden_size)
            self._recorder = LayerLogitRecorder(model, groups=self._groups_of_one_batch(), function=function)

    def forward(
        self, sequences: torch.Tensor, action_mask: torch.Tensor, attention_mask: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        """Recompute log-probs (B, A) of ids (B, T) with an action mask (B, T - 1); called by ``make_experience``."""
        started = time.perf_counter()
        generated = generated_tokens(action_mask, attention_mask)  # search neither prompts nor tool replies
        answers = find_answers(self._locator, sequences, generated)
        positions, targets = positions_and_targets(answers, sequences)
        tokens = None if self._recorder is None else self._in_model_input(positions, attention_mask)
        seconds = time.perf_counter() - started
        layer_logits = np.empty((len(positions), 0), np.float32)
        if self._recorder is None or tokens is None:
            log_probs: torch.Tensor = super().forward(sequences, action_mask, attention_mask, **kwargs)
        else:
            with self._recorder.record(tokens, targets) as recording:
                log_probs = super().forward(sequences, action_mask, attention_mask, **kwargs)
            assert recording.layer_logits is not None
            layer_logits = recording.layer_logits.cpu().numpy()
            seconds += recording.seconds
        texts = [answer.text for answer in answers]
        self._recorded.append(Recorded(texts, (positions >= 0).numpy(), layer_logits, seconds))
        return log_probs

    def take_recorded(self) -> list[Recorded]:
        """Return what was recorded of each micro-batch since the last call, in the order of the micro-batches."""
        recorded, self._recorded = self._recorded, []
        return recorded

    def _groups_of_one_batch(self) -> list[Any]:
        """Return the process groups whose ranks get the same micro-batch: ring attention and tensor parallelism."""
        ring = self.strategy.ring_attn_group
        groups = [] if ring is None else [ring]
        if self.strategy.ds_tensor_parallel_size > 1:
            groups.append(self.strategy.ds_device_mesh["tp"].get_group())
        return groups

    def _in_model_input(self, positions: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Convert positions to indices into the tokens that the model receives on this rank."""
        if not self.actor.packing_samples:
            return padded_positions(positions, attention_mask.shape[1])
        packed = packed_positions(positions, attention_mask)
        ring = self.strategy.ring_attn_group
        if ring is None:
            return packed
        return positions_on_rank(packed, int(attention_mask.sum()), dist.get_rank(ring), dist.get_world_size(ring))
