"""OpenRLHF's generator of rollouts, extended to lose no prompt if an engine dies or a run is resumed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from vllm import SamplingParams

from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.training.openrlhf.access import even_batch, is_too_long, longest_prompt
from meds_openrlhf.training.step.batches import FlatSamples
from meds_openrlhf.training.step.context import TrainerContext
from meds_openrlhf.training.step.engine_fleet import EngineFleet
from meds_openrlhf.training.step.ordered_batch import OrderedBatch, PassRate, Row, Started
from meds_openrlhf.training.step.samples import GENERATED_TOKENS, IS_EXTRA, is_right


class RolloutGenerator(SamplesGenerator):
    """Replaces ``theirs``, OpenRLHF's generator; see the module's docstring.

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
        prompts = PromptStream(self, theirs)
        super().__init__(theirs.strategy, prompts, theirs.eval_dataloader, theirs.tokenizer, fleet.usable)
        self.vllm_engines = fleet.usable  # the fleet's list itself, which OpenRLHF does not keep if it is empty
        self._fleet = fleet
        meds = context.meds
        self._threshold, self._extras = meds.penalty.correct_threshold, meds.penalty.extras
        self._steps_left = None if meds.max_steps is None else meds.max_steps - context.first_step
        self._sync_weights = sync_weights
        self._pass_rate = PassRate()
        self._told: set[str] = set()
        # Used by OpenRLHF: the current epoch's iterator, None once exhausted, and rollouts left over for later steps.
        self._dataloader_iter: PromptStream | None = None
        self._sample_buffer: list[Experience] = []
        # What a step's generation gave beside its samples.
        self._spare_samples: list[Experience] = []
        self._generated_tokens = 0

    def generate_samples(self, **generate_kwargs: Any) -> tuple[list[Experience], float | None, int, bool]:
        """Generate a step's samples; the last batch of an epoch is cut to whole mini-batches.

        Whole mini-batches of groups without a right response follow, at most ``meds.penalty.extras``. Called by
        OpenRLHF's ``fit``. After the run's last step, returns no samples and reports exhaustion.
        """
        if self._steps_left is not None and self._steps_left <= 0:
            return [], None, 0, True
        self._fleet.keep_those_with_weights()
        self._spare_samples = []
        samples, passed, consumed, exhausted = super().generate_samples(**generate_kwargs)
        if exhausted:
            samples = self._without_surplus(samples)
        if samples:
            self._settle_log_probs(samples)
            batch, even = len(samples), even_batch(self.args)
            samples = samples + self._spare_samples[: len(self._spare_samples) // even * even]
            each = self._generated_tokens / len(samples)
            for place, sample in enumerate(samples):
                sample.info[GENERATED_TOKENS] = torch.tensor([each], dtype=torch.float64)
                sample.info[IS_EXTRA] = torch.tensor([place >= batch])
            self._generated_tokens = 0  # an epoch's end that is too short for a step counts for the next one
        if self._steps_left is not None:
            self._steps_left -= bool(samples)
        return FlatSamples(samples), passed, consumed, exhausted

    def _settle_log_probs(self, samples: list[Experience]) -> None:
        """Leave out the engines' log-probs if some are missing, as of agents that ask for none in a later turn.

        Raises RunLostError if the loss needs them.
        """
        if all(
            sample.rollout_log_probs is not None and sample.rollout_log_probs.shape == sample.action_mask.shape
            for sample in samples
        ):
            return
        level = self.args.algo.advantage.is_correction_level
        if level != "off":
            hint = (
                f"algo.advantage.is_correction_level={level} needs them: the agent must keep sampling_params.logprobs"
            )
            raise RunLostError(f"some tokens have no log-probs of the engines, and {hint}")
        for sample in samples:
            sample.rollout_log_probs = None

    def _without_surplus(self, samples: list[Experience]) -> list[Experience]:
        if len(samples) == self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt:
            return samples
        even = even_batch(self.args)
        surplus = len(samples) % even
        if surplus:
            skipped = f"skipping the epoch's last {surplus} responses: the last step needs a multiple of {even}"
            self._tell_once("surplus", skipped)
        return samples[: len(samples) - surplus]

    def _tell_once(self, what: str, message: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._fleet.tell(message)

    def generate_eval_samples(self, **generate_kwargs: Any) -> list[Experience]:
        """Generate evaluation samples with the usable engines. Called by OpenRLHF's evaluations."""
        self._fleet.keep_those_with_weights()
        of_training = self._generated_tokens
        samples: list[Experience] = super().generate_eval_samples(**generate_kwargs)
        self._generated_tokens = of_training
        return samples

    def _generate_vllm(
        self, dataloader_iter: Iterator[Row], num_prompts: int, dynamic_filtering: bool, **generate_kwargs: Any
    ) -> tuple[list[Experience], int, bool]:
        """Like OpenRLHF's method, but in data order, starting prompts in advance and losing none; see `OrderedBatch`.

        Called by OpenRLHF's ``generate_samples`` and ``generate_eval_samples``. Returns accepted experiences, the
        number of prompts in the batch or filtered out, and whether the prompts are exhausted.
        """
        batch = OrderedBatch(num_prompts, self._pass_rate if dynamic_filtering else None, self._extras)
        trains = isinstance(dataloader_iter, PromptStream)
        options, exhausted = self._options(generate_kwargs, with_log_probs=trains), False
        experience_of = self._process_response_into_experience
        calls: dict[Any, Started] = {}
        while not batch.is_full:
            if (more := batch.to_start()) and not exhausted:
                rows = _draw(dataloader_iter, more)
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
                if not responses:  # too long with its images
                    where = "" if trains else " from evaluations"
                    text = f"dropping prompts that are too long with their images{where}, such as "
                    self._tell_once(f"images{where}", f"{text}{started.row[1][0][:60]!r}")
                    batch.judge(started, [], passes=False)
                    continue
                samples = [experience_of(response, **generate_kwargs) for response in responses]
                passes = not (dynamic_filtering and self._is_filtered_out(samples))
                batch.judge(started, samples, passes, is_spare=not passes and self._is_all_wrong(samples))
        self._fleet.cancel(list(calls))
        self._spare_samples += batch.spare_samples
        self._generated_tokens += batch.generated_tokens
        if rest := batch.rest():  # only with dynamic filtering, and then the iterator is a `PromptStream`
            dataloader_iter.put_back(rest)  # type: ignore[attr-defined]
        return batch.samples, batch.consumed, exhausted and not rest

    def _is_filtered_out(self, experiences: list[Experience]) -> bool:
        """Return whether dynamic sampling (DAPO) drops a prompt, because its mean score is outside the range."""
        if any(experience.scores is None for experience in experiences):
            return False
        scores = [experience.scores[0].item() for experience in experiences]
        lowest, highest = self.args.algo.dynamic_filtering_range
        return not lowest < sum(scores) / len(scores) < highest

    def _is_all_wrong(self, experiences: list[Experience]) -> bool:
        """Return whether none of a prompt's responses, which have scores, is right."""
        return not any(is_right(experience, self._threshold).any() for experience in experiences)

    def _options(self, generate_kwargs: dict[str, Any], with_log_probs: bool) -> dict[str, Any]:
        """Return the arguments that all requests of a batch share, as in OpenRLHF's ``_dispatch_prompts_to_vllm``."""
        given = generate_kwargs.get
        sampling = SamplingParams(
            temperature=given("temperature", 1.0),
            top_p=given("top_p", 1.0),
            top_k=given("top_k", -1),
            max_tokens=given("max_new_tokens"),
            min_tokens=given("min_new_tokens", 1),
            skip_special_tokens=given("skip_special_tokens", False),
            logprobs=0 if with_log_probs else None,  # of the token itself, and of no others
        )
        return {
            "sampling_params": sampling,
            "max_length": given("max_len", 2048),
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
            raise RunLostError("every vLLM engine was lost, and an asynchronous run cannot sync restarted engines")
        self._sync_weights()
        self._fleet.keep_those_with_weights()
        if not self._fleet.usable:
            raise RunLostError("every vLLM engine was lost, including the restarted engines")
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self._fleet.usable, "wake_up")


def _draw(rows: Iterator[Row], count: int) -> list[Row]:
    """Draw up to ``count`` prompts with ``next``, because ``iter`` would start the next epoch of a `PromptStream`."""
    return list(islice(iter(partial(next, rows, None), None), count))


class PromptStream:
    """OpenRLHF's loader of prompts, and the iterator over an epoch; prompts that were drawn too early can be put back.

    Skips prompts that are too long. The state has the loader's state, the prompts to draw first, and whether the loader
    is drained. OpenRLHF saves only the first, and so loses prompts generated ahead and may repeat an epoch.
    """

    def __init__(self, generator: RolloutGenerator, theirs: SamplesGenerator) -> None:
        self._generator = generator
        self._loader = theirs.prompts_dataloader
        self._tokenizer, self._longest = theirs.tokenizer, longest_prompt(theirs.args)
        self._rows: Iterator[Row] = iter(())  # not yet drawn in this epoch
        self._put_back: deque[Row] = deque()
        self._is_drained = True  # except for prompts that were put back

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
        """Put back the prompts that were drawn last, in the order in which they were drawn."""
        self._put_back.extendleft(reversed(rows))

    def state_dict(self) -> dict[str, Any]:
        """Return the state after a step; the prompts of rollouts that no step has used yet come first."""
        buffered = [
            ([None], sample.prompts, sample.labels, sample.images)
            for sample in self._generator._sample_buffer[:: self._generator.args.rollout.n_samples_per_prompt]
        ]
        first = [*buffered, *self._put_back]
        return {"loader": self._loader.state_dict(), "put_back": first, "epoch_drawn": self._is_drained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        self._loader.load_state_dict(state["loader"])
        if not state["epoch_drawn"]:  # otherwise, iterating over the loader would start the next epoch too early
            iter(self)
        self._put_back.extend(state["put_back"])
        self._generator._dataloader_iter = self  # so that OpenRLHF continues with this epoch
