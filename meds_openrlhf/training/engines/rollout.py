"""OpenRLHF's generator of rollouts, extended to lose no prompt if an engine dies or a run is resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ray
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator, _collect_prompt_batch
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call

from meds_openrlhf.training.engines.agent import AgentErrors
from meds_openrlhf.training.engines.engine_fleet import EngineFleet, StaleWeightsError
from meds_openrlhf.training.errors import RunLostError, innermost
from meds_openrlhf.training.prompt_length import is_too_long, longest_prompt


@dataclass(frozen=True)
class PromptRequest:
    """A prompt for the engines."""

    prompt: str
    label: str
    image: Any


@dataclass(frozen=True)
class Dispatched:
    """A request sent to an engine, with the life of that engine."""

    request: PromptRequest
    life: str


@dataclass(frozen=True)
class SharedTokenizer:
    """Takes the place of a tokenizer in calls of engines: it takes 0.1 s to pickle, so an engine fetches it once.

    All calls of an engine share it, also those of an agent.
    """

    reference: Any


class RolloutGenerator(SamplesGenerator):
    """OpenRLHF's generator of rollouts; see the module's docstring.

    ``sync_weights`` sends the policy's weights to restarted engines. It is None in asynchronous runs, which cannot do
    this from the generating process and end if all engines are lost. ``even_batch`` divides the last batch of an epoch.
    After ``steps_left`` batches nothing more is generated; None for no limit.
    """

    prompts_dataloader: Any
    tokenizer: Any

    def __init__(
        self,
        *args: Any,
        fleet: EngineFleet,
        sync_weights: Callable[[], None] | None,
        keep_below: float | None = None,
        even_batch: int = 1,
        steps_left: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, vllm_engines=fleet.usable, **kwargs)
        tokenizer, most = self.tokenizer, longest_prompt(self.args)
        self.tokenizer = SharedTokenizer(ray.put(tokenizer))
        self._keep_below = keep_below
        self._even_batch = even_batch
        self._steps_left = steps_left
        self._has_told_of_rest = False
        self.vllm_engines = fleet.usable  # the list itself, even if it is empty
        self._fleet = fleet
        self._sync_weights = sync_weights
        self._sample_buffer: list[Experience] = []
        self._dataloader_iter: Any = None
        self.prompts_dataloader = ResumablePrompts(
            self.prompts_dataloader, self, lambda text: not is_too_long(text, most, tokenizer)
        )

    def generate_samples(self, **generate_kwargs: Any) -> tuple[list[Experience], float | None, int, bool]:
        """Generate samples with the usable engines; the last batch of an epoch is cut to whole mini-batches.

        After the run's last step there are none, and the prompts count as exhausted.
        """
        if self._steps_left is not None and self._steps_left <= 0:
            return [], None, 0, True
        self._fleet.keep_those_with_weights()
        samples, passed, consumed, exhausted = super().generate_samples(**generate_kwargs)
        if exhausted:
            samples = self._without_rest(samples)
        if self._steps_left is not None:
            self._steps_left -= bool(samples)
        return samples, passed, consumed, exhausted

    def _without_rest(self, samples: list[Experience]) -> list[Experience]:
        step = self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt
        over = len(samples) % self._even_batch
        if not over or len(samples) == step:
            return samples
        if not self._has_told_of_rest:
            what = f"the epoch's last {over} responses are not trained on"
            self._fleet.tell(f"{what}: its last step has a multiple of {self._even_batch} responses")
            self._has_told_of_rest = True
        return samples[: len(samples) - over]

    def generate_eval_samples(self, **generate_kwargs: Any) -> list[Experience]:
        """Generate evaluation samples with the usable engines."""
        self._fleet.keep_those_with_weights()
        samples: list[Experience] = super().generate_eval_samples(**generate_kwargs)
        return samples

    def _generate_vllm(
        self, dataloader_iter: Iterator[Any], num_prompts: int, dynamic_filtering: bool, **generate_kwargs: Any
    ) -> tuple[list[Experience], int, bool]:
        """Like OpenRLHF's method, but send the prompts of a lost engine to the others.

        A prompt with an episode in which an agent raised in every attempt is left out, and the next takes its place.
        Returns accepted experiences, the number of prompts drawn, and whether the prompts are exhausted.
        """
        requests, exhausted = _draw(dataloader_iter, num_prompts)
        consumed = len(requests)
        accepted: list[Experience] = []
        agent_errors = AgentErrors()
        pending = self._dispatch(requests, generate_kwargs)
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=10.0)
            for reference in ready:
                sent = pending.pop(reference)
                responses = self._responses(reference, sent)
                if responses is None:
                    pending.update(self._dispatch([sent.request], generate_kwargs))
                    continue
                answered = agent_errors.has_answered(responses, num_prompts)
                kept = responses if answered else []
                experiences = [self._process_response_into_experience(response, **generate_kwargs) for response in kept]
                if experiences and not (dynamic_filtering and self._is_filtered_out(experiences)):
                    accepted.extend(experiences)
                elif dynamic_filtering or not answered:
                    more, exhausted = _draw(dataloader_iter, 1)
                    consumed += len(more)
                    pending.update(self._dispatch(more, generate_kwargs))
        if line := agent_errors.line():
            self._fleet.tell(line)
        return accepted, consumed, exhausted if requests else True

    def _is_filtered_out(self, experiences: list[Experience]) -> bool:
        """Return whether dynamic sampling (DAPO) drops a prompt, because its mean score is outside the range."""
        if any(experience.scores is None for experience in experiences):
            return False
        scores = [experience.scores[0].item() for experience in experiences]
        if self._keep_below is not None and max(scores) < self._keep_below:
            return False
        lowest, highest = self.args.algo.dynamic_filtering_range
        return not lowest < sum(scores) / len(scores) < highest

    def _dispatch(self, requests: list[PromptRequest], generate_kwargs: dict[str, Any]) -> dict[Any, Dispatched]:
        """Distribute requests evenly over the engines; return them by the reference to their responses."""
        while requests:
            self._require_engine()
            try:
                references = self._dispatch_prompts_to_vllm(
                    [request.prompt for request in requests],
                    [request.label for request in requests],
                    images=[request.image for request in requests],
                    **generate_kwargs,
                )
                sent = [Dispatched(request, self._fleet.life_of(call)) for call, request in zip(references, requests)]
                return dict(zip(references, sent))
            except ray.exceptions.RayActorError:  # the call queries every engine's load, and an engine was just lost
                self._fleet.keep_those_with_weights()
        return {}

    def _responses(self, reference: Any, sent: Dispatched) -> list[Any] | None:
        """Return the responses to one prompt, or None if its engine was lost."""
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
        """If no engine is left, wait until one is restarted and send it the policy's weights."""
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

    # ── state for checkpoints ──

    def state(self) -> dict[str, Any]:
        """Return rollouts for later steps, and whether all prompts of the epoch have been drawn."""
        return {"leftovers": list(self._sample_buffer), "epoch_drawn": self._dataloader_iter is None}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state; the loader must have been restored to the same point before."""
        self._sample_buffer = list(state["leftovers"])
        if not state["epoch_drawn"]:
            self._dataloader_iter = iter(self.prompts_dataloader)
        elif not self._sample_buffer:
            self._dataloader_iter = iter(())  # iterating the loader again would start the next epoch too early


class ResumablePrompts:
    """OpenRLHF's loader of prompts, only those that ``fits``, with the state of the generator included in its own.

    OpenRLHF's checkpoints lose rollouts beyond a step's batch, if more are generated at once, and repeat an epoch whose
    last batch was smaller than the others.
    """

    def __init__(self, loader: Any, generator: RolloutGenerator, fits: Callable[[str], bool]) -> None:
        self._loader = loader
        self._generator = generator
        self._fits = fits

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return (row for row in self._loader if self._fits(row[1][0]))  # (data source, prompt, ...), each a list of one

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the loader and the generator."""
        return {"loader": self._loader.state_dict(), **self._generator.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the loader and the generator."""
        self._loader.load_state_dict(state["loader"])
        self._generator.restore(state)


def _draw(prompts: Iterator[Any], count: int) -> tuple[list[PromptRequest], bool]:
    """Draw up to ``count`` prompts; return them and whether there were fewer."""
    texts, labels, images, exhausted = _collect_prompt_batch(prompts, count)
    return [PromptRequest(*columns) for columns in zip(texts, labels, images, strict=True)], exhausted
