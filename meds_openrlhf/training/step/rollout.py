"""OpenRLHF's generator of rollouts, extended to lose no prompt if an engine dies or a run is resumed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from vllm import SamplingParams

from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.training.host.openrlhf import even_batch, is_too_long, longest_prompt
from meds_openrlhf.training.step.engine_fleet import EngineFleet
from meds_openrlhf.training.step.ordered_batch import OrderedBatch, PassRate, Row, Started
from meds_openrlhf.training.watch.control import TrainerContext


class RolloutGenerator(SamplesGenerator):
    """Takes the place of ``theirs``, OpenRLHF's generator; see the module's docstring.

    ``sync_weights`` sends the policy's weights to restarted engines. It is None in asynchronous runs, which cannot do
    this from the generating process and end if all engines are lost.
    """

    def __init__(
        self,
        theirs: SamplesGenerator,
        fleet: EngineFleet,
        context: TrainerContext,
        sync_weights: Callable[[], None] | None,
    ) -> None:
        prompts, tokenizer = PromptStream(self, theirs), fleet.share(theirs.tokenizer)
        super().__init__(theirs.strategy, prompts, theirs.eval_dataloader, tokenizer, fleet.usable)
        self.vllm_engines = fleet.usable  # the list itself, even if it is empty
        self._fleet = fleet
        self._keep_below = context.keeps_scores_below
        self._steps_left = context.steps_left
        self._sync_weights = sync_weights
        self._pass_rate = PassRate()
        self._has_told_of_rest = False
        # OpenRLHF's: the prompts of an epoch that is not exhausted, and the rollouts beyond a step's.
        self._dataloader_iter: PromptStream | None = None
        self._sample_buffer: list[Experience] = []

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
        if len(samples) == self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt:
            return samples
        even = even_batch(self.args)
        rest = len(samples) % even
        if rest and not self._has_told_of_rest:
            what = f"the epoch's last {rest} responses are not trained on"
            self._fleet.tell(f"{what}: its last step has a multiple of {even} responses")
            self._has_told_of_rest = True
        return samples[: len(samples) - rest]

    def generate_eval_samples(self, **generate_kwargs: Any) -> list[Experience]:
        """Generate evaluation samples with the usable engines."""
        self._fleet.keep_those_with_weights()
        samples: list[Experience] = super().generate_eval_samples(**generate_kwargs)
        return samples

    def _generate_vllm(
        self, dataloader_iter: Iterator[Row], num_prompts: int, dynamic_filtering: bool, **generate_kwargs: Any
    ) -> tuple[list[Experience], int, bool]:
        """Like OpenRLHF's method, but in the order of the data, with prompts in advance, and without losing any.

        See `OrderedBatch`. The prompts of a lost engine go to the others. Returns accepted experiences, the number of
        prompts in the batch or filtered out, and whether the prompts are exhausted.
        """
        batch = OrderedBatch(num_prompts, self._pass_rate if dynamic_filtering else None)
        options, exhausted = self._options(generate_kwargs), False
        calls: dict[Any, Started] = {}
        while not batch.is_full:
            if (more := batch.to_start()) and not exhausted:
                # Not iterated over, which would start the next epoch of a `PromptStream`.
                rows = list(islice(iter(partial(next, dataloader_iter, None), None), more))
                exhausted = len(rows) < more
                calls |= {self._send(row, options): batch.start(row) for row in rows}
            if not calls:
                break
            for call in self._fleet.wait(list(calls)):
                started = calls.pop(call)
                responses = self._fleet.responses(call)
                if responses is None:
                    calls[self._send(started.row, options)] = started
                    continue
                samples = [
                    self._process_response_into_experience(response, **generate_kwargs) for response in responses
                ]
                batch.judge(started, [] if dynamic_filtering and self._is_filtered_out(samples) else samples)
        self._fleet.cancel(list(calls))
        if rest := batch.rest():
            dataloader_iter.put_back(rest)  # type: ignore[attr-defined]
        return batch.samples, batch.consumed, exhausted and not rest

    def _is_filtered_out(self, experiences: list[Experience]) -> bool:
        """Return whether dynamic sampling (DAPO) drops a prompt, because its mean score is outside the range."""
        if any(experience.scores is None for experience in experiences):
            return False
        scores = [experience.scores[0].item() for experience in experiences]
        if self._keep_below is not None and max(scores) < self._keep_below:
            return False
        lowest, highest = self.args.algo.dynamic_filtering_range
        return not lowest < sum(scores) / len(scores) < highest

    def _options(self, generate_kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return what all requests of a batch have in common, as OpenRLHF's ``_dispatch_prompts_to_vllm`` sends it."""
        given = generate_kwargs.get
        sampling = SamplingParams(
            temperature=given("temperature", 1.0),
            top_p=given("top_p", 1.0),
            top_k=given("top_k", -1),
            max_tokens=given("max_new_tokens"),
            min_tokens=given("min_new_tokens", 1),
            skip_special_tokens=given("skip_special_tokens", False),
            logprobs=1 if self.args.algo.advantage.is_correction_level != "off" else None,
        )
        return {
            "sampling_params": sampling,
            "max_length": given("max_len", 2048),
            "hf_tokenizer": self.tokenizer,
            "num_samples": given("n_samples_per_prompt", self.args.rollout.n_samples_per_prompt),
        }

    def _send(self, row: Row, options: dict[str, Any]) -> Any:
        """Send a prompt to an engine; return the call."""
        if not self._fleet.usable:
            self._wait_for_an_engine()
        _, (prompt,), (label,), (image,) = row
        return self._fleet.generate(prompt=prompt, label=label, images=image, **options)

    def _wait_for_an_engine(self) -> None:
        """Wait until a lost engine is restarted, and send it the policy's weights."""
        if self._sync_weights is None:
            raise RunLostError("every vLLM engine was lost, and the policy of an asynchronous run is busy training")
        self._sync_weights()
        self._fleet.keep_those_with_weights()
        if not self._fleet.usable:
            raise RunLostError("every vLLM engine was lost, the restarted ones too")
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self._fleet.usable, "wake_up")


class PromptStream:
    """OpenRLHF's loader of prompts, and the prompts of an epoch; those that were drawn too early can be put back.

    Leaves out prompts that are too long. Its state is that of the loader, the prompts to draw first and whether the
    epoch's others are drawn: OpenRLHF's checkpoints lose prompts whose rollouts are beyond a step's batch, if more are
    generated at once, and repeat an epoch whose last batch was smaller than the others.
    """

    def __init__(self, generator: RolloutGenerator, theirs: SamplesGenerator) -> None:
        self._generator = generator
        self._loader = theirs.prompts_dataloader
        self._tokenizer, self._longest = theirs.tokenizer, longest_prompt(theirs.args)
        self._rows: Iterator[Row] = iter(())  # that the loader has left in this epoch
        self._put_back: deque[Row] = deque()
        self._is_drained = True  # but for the rows that were put back

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> PromptStream:
        """Start an epoch."""
        self._rows, self._is_drained = iter(self._loader), False
        return self

    def __next__(self) -> Row:
        if self._put_back:
            return self._put_back.popleft()
        for row in self._rows:
            if not is_too_long(row[1][0], self._longest, self._tokenizer):
                return row
        self._rows, self._is_drained = iter(()), True
        raise StopIteration

    def put_back(self, rows: list[Row]) -> None:
        """Put back the last prompts that were drawn, in their order."""
        self._put_back.extendleft(reversed(rows))

    def state_dict(self) -> dict[str, Any]:
        """Return the state after a step; the prompts of rollouts that no step was given yet come first."""
        buffered = [
            ([None], sample.prompts, sample.labels, sample.images)
            for sample in self._generator._sample_buffer[:: self._generator.args.rollout.n_samples_per_prompt]
        ]
        first = [*buffered, *self._put_back]
        return {"loader": self._loader.state_dict(), "put_back": first, "epoch_drawn": self._is_drained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        self._loader.load_state_dict(state["loader"])
        if not state["epoch_drawn"]:  # iterating the loader again would start the next epoch too early
            iter(self)
        self._put_back.extend(state["put_back"])
        self._generator._dataloader_iter = self  # so that OpenRLHF goes on with this epoch
