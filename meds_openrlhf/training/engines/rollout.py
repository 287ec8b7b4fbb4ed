"""Generating rollouts: OpenRLHF's generator, which loses no prompt when an engine dies or when a run is resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ray
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator, _collect_prompt_batch
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call

from meds_openrlhf.training.engines.engine_fleet import EngineFleet, StaleWeightsError
from meds_openrlhf.training.errors import RunLostError, innermost


@dataclass(frozen=True)
class PromptRequest:
    """One prompt that the engines shall answer."""

    prompt: str
    label: str
    image: Any


@dataclass(frozen=True)
class Dispatched:
    """A request on its way, in the life of the engine that has it."""

    request: PromptRequest
    life: str


class RolloutGenerator(SamplesGenerator):
    """OpenRLHF's generator of rollouts; see the module's docstring.

    ``sync_weights`` brings the policy's weights to restarted engines; None where this process cannot (asynchronous
    runs), so that a run which has lost its last engine ends.
    """

    prompts_dataloader: Any

    def __init__(
        self,
        *args: Any,
        fleet: EngineFleet,
        sync_weights: Callable[[], None] | None,
        keep_below: float | None = None,
        even_batch: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, vllm_engines=fleet.usable, **kwargs)
        self._keep_below = keep_below
        self._even_batch = even_batch
        self.vllm_engines = fleet.usable  # the list itself, also where it is empty
        self._fleet = fleet
        self._sync_weights = sync_weights
        self._sample_buffer: list[Experience] = []
        self._dataloader_iter: Any = None
        self.prompts_dataloader = ResumablePrompts(self.prompts_dataloader, self)

    def generate_samples(self, **generate_kwargs: Any) -> tuple[list[Experience], float | None, int, bool]:
        """OpenRLHF's, with the engines that can be used now; an epoch's last batch is cut to whole mini-batches."""
        self._fleet.keep_those_with_weights()
        samples, passed, consumed, exhausted = super().generate_samples(**generate_kwargs)
        return self._without_remainder(samples) if exhausted else samples, passed, consumed, exhausted

    def _without_remainder(self, samples: list[Experience]) -> list[Experience]:
        step = self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt
        over = len(samples) % self._even_batch
        if not over or len(samples) == step:
            return samples
        self._fleet.tell(f"an epoch's last {over} responses fill no mini-batch, and are not trained on")
        return samples[: len(samples) - over]

    def generate_eval_samples(self, **generate_kwargs: Any) -> list[Experience]:
        """OpenRLHF's, with the engines that can be used now."""
        self._fleet.keep_those_with_weights()
        samples: list[Experience] = super().generate_eval_samples(**generate_kwargs)
        return samples

    def _generate_vllm(
        self, dataloader_iter: Iterator[Any], num_prompts: int, dynamic_filtering: bool, **generate_kwargs: Any
    ) -> tuple[list[Experience], int, bool]:
        """As OpenRLHF's, but prompts whose engine was lost go to the others.

        Accepted experiences, the number of prompts drawn, and whether there are no more.
        """
        requests, exhausted = _draw(dataloader_iter, num_prompts)
        consumed = len(requests)
        accepted: list[Experience] = []
        pending = self._dispatch(requests, generate_kwargs)
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=10.0)
            for reference in ready:
                sent = pending.pop(reference)
                responses = self._responses(reference, sent)
                if responses is None:
                    pending.update(self._dispatch([sent.request], generate_kwargs))
                    continue
                experiences = [self._process_response_into_experience(one, **generate_kwargs) for one in responses]
                if experiences and not (dynamic_filtering and self._is_filtered_out(experiences)):
                    accepted.extend(experiences)
                elif dynamic_filtering:
                    more, exhausted = _draw(dataloader_iter, 1)
                    consumed += len(more)
                    pending.update(self._dispatch(more, generate_kwargs))
        return accepted, consumed, exhausted if requests else True

    def _is_filtered_out(self, experiences: list[Experience]) -> bool:
        """DAPO's dynamic sampling: whether a prompt's mean score lies outside the range."""
        if any(experience.scores is None for experience in experiences):
            return False
        scores = [experience.scores[0].item() for experience in experiences]
        if self._keep_below is not None and max(scores) < self._keep_below:
            return False
        lowest, highest = self.args.algo.dynamic_filtering_range
        return not lowest < sum(scores) / len(scores) < highest

    def _dispatch(self, requests: list[PromptRequest], generate_kwargs: dict[str, Any]) -> dict[Any, Dispatched]:
        """Send requests to the engines, evenly: by reference to its responses, each request."""
        while requests:
            self._require_engine()
            try:
                references = self._dispatch_prompts_to_vllm(
                    [one.prompt for one in requests],
                    [one.label for one in requests],
                    images=[one.image for one in requests],
                    **generate_kwargs,
                )
                sent = [Dispatched(one, self._fleet.life_of(call)) for call, one in zip(references, requests)]
                return dict(zip(references, sent))
            except ray.exceptions.RayActorError:  # it asks every engine how busy it is, and one has just been lost
                self._fleet.keep_those_with_weights()
        return {}

    def _responses(self, reference: Any, sent: Dispatched) -> list[Any] | None:
        """The responses to one prompt; None where the engine that had it was lost."""
        try:
            responses: list[Any] = ray.get(reference)
            return responses
        except ray.exceptions.RayTaskError as error:
            if not (self._fleet.is_loss(error) or isinstance(innermost(error), StaleWeightsError)):
                raise
            self._fleet.drop(sent.life, error)
            return None
        except ray.exceptions.RayActorError as error:
            self._fleet.drop(sent.life, error)
            return None

    def _require_engine(self) -> None:
        """Where no engine is left, wait for one to come back and give it the policy's weights."""
        if self._fleet.usable:
            return
        if self._sync_weights is None:
            raise RunLostError("every vLLM engine was lost, and the policy of an asynchronous run is busy training")
        self._sync_weights()
        self._fleet.keep_those_with_weights()
        if not self._fleet.usable:
            raise RunLostError("every vLLM engine was lost, the restarted ones too")
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self._fleet.usable, "wake_up")

    # ── where a checkpoint finds the generator ──

    def state(self) -> dict[str, Any]:
        """Rollouts that later steps will train on, and whether the epoch's prompts have all been drawn."""
        return {"leftovers": list(self._sample_buffer), "epoch_drawn": self._dataloader_iter is None}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there. The loader must have been set to the same moment before."""
        self._sample_buffer = list(state["leftovers"])
        if not state["epoch_drawn"]:
            self._dataloader_iter = iter(self.prompts_dataloader)
        elif not self._sample_buffer:
            self._dataloader_iter = iter(())  # a loader that is asked again would begin the next epoch in this one


class ResumablePrompts:
    """OpenRLHF's loader of prompts, whose state also says what became of the prompts that it gave out.

    OpenRLHF's own checkpoint forgets the rollouts beyond a step's batch, where more are generated at once, and repeats
    an epoch whose last batch was smaller than the others.
    """

    def __init__(self, loader: Any, generator: RolloutGenerator) -> None:
        self._loader = loader
        self._generator = generator

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def state_dict(self) -> dict[str, Any]:
        """The loader's position and the generator's."""
        return {"loader": self._loader.state_dict(), **self._generator.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set both to where they were."""
        self._loader.load_state_dict(state["loader"])
        self._generator.restore(state)


def _draw(prompts: Iterator[Any], count: int) -> tuple[list[PromptRequest], bool]:
    """Up to ``count`` prompts, and whether there were fewer."""
    texts, labels, images, exhausted = _collect_prompt_batch(prompts, count)
    return [PromptRequest(*one) for one in zip(texts, labels, images, strict=True)], exhausted
