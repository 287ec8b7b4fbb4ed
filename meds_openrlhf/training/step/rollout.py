"""OpenRLHF's generator of rollouts, extended to lose no prompt if an engine dies or a run is resumed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator, _collect_prompt_batch
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from vllm import SamplingParams

from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.training.host.openrlhf import is_too_long, longest_prompt
from meds_openrlhf.training.step.engine_fleet import EngineFleet
from meds_openrlhf.training.step.ordered_batch import OrderedBatch, PassRate, PromptRequest, Started


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
        self.tokenizer = fleet.share(tokenizer)
        self._pass_rate = PassRate()
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
        """Like OpenRLHF's method, but in the order of the data, with prompts in advance, and without losing any.

        See `OrderedBatch`. The prompts of a lost engine go to the others. Returns accepted experiences, the number of
        prompts in the batch or filtered out, and whether the prompts are exhausted.
        """
        batch = OrderedBatch(num_prompts, self._pass_rate if dynamic_filtering else None)
        options, exhausted = self._options(generate_kwargs), False
        calls: dict[Any, Started] = {}
        while not batch.is_full:
            if (more := batch.to_start()) and not exhausted:
                requests, exhausted = _draw(dataloader_iter, more)
                calls |= {self._send(request, options): batch.start(request) for request in requests}
            if not calls:
                break
            for call in self._fleet.wait(list(calls)):
                started = calls.pop(call)
                responses = self._fleet.responses(call)
                if responses is None:
                    calls[self._send(started.request, options)] = started
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

    def _send(self, request: PromptRequest, options: dict[str, Any]) -> Any:
        """Send a request to an engine; return the call."""
        self._require_engine()
        return self._fleet.generate(prompt=request.prompt, label=request.label, images=request.image, **options)

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
        """Return the prompts to draw first, and whether the epoch's others are drawn.

        First come those of rollouts that no step was given yet, if more were generated at once than a step takes.
        """
        stream = self._dataloader_iter or PromptStream.drained()
        buffered = [
            ([None], sample.prompts, sample.labels, sample.images)
            for sample in self._sample_buffer[:: self.args.rollout.n_samples_per_prompt]
        ]
        return {"put_back": [*buffered, *stream.put_back_rows], "epoch_drawn": stream.is_drained}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state; the loader must have been restored to the same point before."""
        # Iterating the loader again at the end of an epoch would start the next epoch too early.
        self._dataloader_iter = PromptStream.drained() if state["epoch_drawn"] else iter(self.prompts_dataloader)
        self._dataloader_iter.put_back_rows.extend(state["put_back"])


class PromptStream:
    """The prompts of an epoch, as OpenRLHF's loader has them: (data source, prompt, label, image), each a list of one.

    Those that were drawn too early can be put back.
    """

    def __init__(self, rows: Iterator[Any]) -> None:
        self._rows = rows
        self.put_back_rows: deque[Any] = deque()
        self.is_drained = False  # but for the rows that were put back

    @staticmethod
    def drained() -> PromptStream:
        """Return a stream without prompts."""
        stream = PromptStream(iter(()))
        stream.is_drained = True
        return stream

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.put_back_rows:
            return self.put_back_rows.popleft()
        try:
            return next(self._rows)
        except StopIteration:
            self.is_drained = True
            raise

    def put_back(self, requests: Sequence[PromptRequest]) -> None:
        """Put back the last prompts that were drawn, in their order."""
        rows = [([None], [request.prompt], [request.label], [request.image]) for request in requests]
        self.put_back_rows.extendleft(reversed(rows))


class ResumablePrompts:
    """OpenRLHF's loader of prompts, only those that ``fits``, with the state of the generator included in its own.

    OpenRLHF's checkpoints lose prompts whose rollouts are beyond a step's batch, if more are generated at once, and
    repeat an epoch whose last batch was smaller than the others.
    """

    def __init__(self, loader: Any, generator: RolloutGenerator, fits: Callable[[str], bool]) -> None:
        self._loader = loader
        self._generator = generator
        self._fits = fits

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return PromptStream(row for row in self._loader if self._fits(row[1][0]))

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
