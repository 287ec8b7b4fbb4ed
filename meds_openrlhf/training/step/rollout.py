"""Rollouts for one training step after the other; no prompt is lost if an engine dies or a run is resumed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from vllm import SamplingParams

from meds_openrlhf.placement.batching import even_batch
from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.training.openrlhf.access import is_too_long, longest_prompt
from meds_openrlhf.training.step.batches import FlatSamples
from meds_openrlhf.training.step.context import TrainerContext
from meds_openrlhf.training.step.engine_fleet import EngineFleet
from meds_openrlhf.training.step.log import evaluation_metrics
from meds_openrlhf.training.step.ordered_batch import OrderedBatch, PassRate, Row, Started
from meds_openrlhf.training.step.samples import is_right


@dataclass(frozen=True)
class Rollouts:
    """What a step trains on; the last ``extras`` samples are of groups that dynamic filtering dropped.

    ``dropped``: the prompt's text of each group that was generated and is not trained on, with its right and all
    responses. ``tokens`` were generated for it, those of dropped prompts included, in ``seconds``. ``pass_rate``: a
    hundred times the responses of prompts that passed the filter over the prompts, None without prompts. ``state``: the
    data's after this step, for a checkpoint.
    """

    samples: FlatSamples
    tokens: int = 0
    extras: int = 0
    dropped: list[tuple[str, int, int]] = field(default_factory=list)
    pass_rate: float | None = None
    seconds: float = 0.0
    state: dict[str, Any] = field(default_factory=dict)


class RolloutGenerator:
    """Generates rollouts with the engines of a ``fleet``; data, tokenizer and responses are those of ``theirs``.

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
        self.args = theirs.args
        self._theirs, self._fleet, self._sync_weights = theirs, fleet, sync_weights
        self._prompts = PromptStream(theirs.prompts_dataloader, theirs.tokenizer, longest_prompt(theirs.args))
        meds = context.meds
        self._threshold, self._extras = meds.penalty.correct_threshold, meds.penalty.extras
        self._steps_left = float("inf") if meds.max_steps is None else meds.max_steps - context.first_step
        self._metrics = evaluation_metrics(meds, theirs.tokenizer) if self.evaluates else None
        self._pass_rate = PassRate()
        self._told: set[str] = set()
        self._episode = self._consumed = 0
        self._buffer: list[Experience] = []  # generated for later steps
        self._spares: list[Experience] = []
        # An epoch's end that is too short for a step counts for the next one.
        self._tokens, self._dropped = 0, list[tuple[str, int, int]]()

    @property
    def evaluates(self) -> bool:
        """Whether there are prompts to evaluate."""
        return self._theirs.eval_dataloader is not None

    def resume(self, state: dict[str, Any]) -> None:
        """Go on behind the step that had this ``state``."""
        self._episode, self._consumed = state["episode"], state["total_consumed_prompts"]
        if state["data_loader_state_dict"]:
            self._prompts.load_state_dict(state["data_loader_state_dict"])

    @property
    def has_data(self) -> bool:
        """Whether the last epoch is not over."""
        return bool(self._episode < self.args.train.num_episodes)

    @property
    def is_over(self) -> bool:
        """Whether there are no more steps."""
        return self._steps_left <= 0 or not self.has_data

    def generate(self) -> Rollouts | None:
        """Generate the next step's rollouts; None after the run's last step or epoch."""
        rollouts = None
        while rollouts is None and not self.is_over:
            rollouts = self.generate_batch()
        return rollouts

    def generate_batch(self) -> Rollouts | None:
        """Generate a batch; None for an epoch's end that is too short for a step."""
        started, episode = time.perf_counter(), self._episode
        samples, pass_rate = self._next_samples()
        if not samples:
            self._drop(self._spares)
            return None
        self._steps_left -= 1
        even, tokens = even_batch(self.args), self._tokens
        extras = len(self._spares) // even * even
        self._drop(self._spares[extras:])
        dropped = self._dropped
        samples = samples + self._spares[:extras]
        self._settle_log_probs(samples)
        self._tokens, self._dropped = 0, []
        state = {
            "episode": episode,
            "total_consumed_prompts": self._consumed,
            "data_loader_state_dict": self._prompts.state_dict(before=self._buffered_rows()),
        }
        seconds = time.perf_counter() - started
        return Rollouts(FlatSamples(samples), tokens, extras, dropped, pass_rate, seconds, state)

    def evaluate(self) -> dict[str, float]:
        """Generate responses to all evaluation prompts; return their metrics."""
        given, samples, rows = self.args.eval, list[Experience](), iter(self._theirs.eval_dataloader)
        options = self._options(given.n_samples_per_prompt, given.temperature, with_log_probs=False)
        exhausted = False
        self._fleet.keep_those_with_weights()
        with self._awake():
            while not exhausted:
                batch, exhausted = self._answered(rows, self.args.rollout.batch_size, options)
                samples += batch.samples
        assert self._metrics is not None
        return self._metrics(self._theirs.eval_dataloader, samples, given.n_samples_per_prompt)

    def _next_samples(self) -> tuple[list[Experience], float | None]:
        """The samples of a batch and the pass rate; at an epoch's end perhaps none, cut to whole mini-batches."""
        rollout, pass_rate = self.args.rollout, None
        wanted = rollout.batch_size * rollout.n_samples_per_prompt
        if not self._prompts.is_open and not self._buffer:
            self._prompts.begin_epoch()
        self._spares = []
        if len(self._buffer) < wanted and self._prompts.is_open:
            filters = self.args.algo.dynamic_filtering_enable
            options = self._options(rollout.n_samples_per_prompt, rollout.temperature, with_log_probs=True)
            self._fleet.keep_those_with_weights()
            with self._awake():
                prompts = rollout.vllm_generate_batch_size or rollout.batch_size
                batch, exhausted = self._answered(self._prompts, prompts, options, filters)
            if filters and batch.consumed:
                pass_rate = len(batch.samples) / batch.consumed * 100
            self._consumed += batch.consumed
            self._tokens += batch.generated_tokens
            self._buffer += batch.samples
            self._spares = batch.spare_samples
            self._dropped += batch.dropped
            rest = batch.rest()  # only with dynamic filtering
            self._prompts.put_back(rest)
            self._prompts.is_open = not exhausted or bool(rest)
        samples, self._buffer = self._buffer[:wanted], self._buffer[wanted:]
        if not self._prompts.is_open and not self._buffer:
            self._episode += 1
            samples = self._without_surplus(samples)
        return samples, pass_rate

    def _buffered_rows(self) -> list[Row]:
        each = self.args.rollout.n_samples_per_prompt
        return [([None], sample.prompts, sample.labels, sample.images) for sample in self._buffer[::each]]

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
            left_out = f"the epoch's last {surplus} responses are left out, as usual: a step needs a multiple of {even}"
            self._tell_once("surplus", left_out)
        self._drop(samples[len(samples) - surplus :])
        return samples[: len(samples) - surplus]

    def _drop(self, samples: list[Experience]) -> None:
        """Count groups that are not trained on."""
        each = self.args.rollout.n_samples_per_prompt
        for group in (samples[begin : begin + each] for begin in range(0, len(samples), each)):
            self._dropped.append((group[0].prompts[0], self._right_of(group), each))

    def _tell_once(self, what: str, message: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._fleet.tell(message)

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Wake engines that sleep while the policy trains, and let them sleep again."""
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self._fleet.usable, "wake_up")
        yield
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self._fleet.usable, "sleep")

    def _answered(
        self, rows: Iterator[Row], wanted: int, options: dict[str, Any], filters: bool = False
    ) -> tuple[OrderedBatch, bool]:
        """Answer prompts in data order until ``wanted`` pass, starting some in advance; see `OrderedBatch`.

        Returns the batch, and whether there are no more rows. Raises RunLostError if the reward function failed.
        """
        batch = OrderedBatch(wanted, self._pass_rate if filters else None, self._extras)
        trains, exhausted = rows is self._prompts, False
        calls: dict[Any, Started] = {}
        while not batch.is_full:
            if (more := batch.to_start()) and not exhausted:
                drawn = _draw(rows, more)
                exhausted = len(drawn) < more
                calls |= {self._send(row, options): batch.start(row) for row in drawn}
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
                samples = [self._sample_of(response) for response in responses]
                missing = sum(sample.rewards is None for sample in samples)
                if missing and not self.args.reward.model_name_or_path:
                    what = f"{missing} of {len(samples)} responses to a prompt have no reward"
                    raise RunLostError(f"{what}: reward.remote_url raised or did not answer (--verbose prints why)")
                passes = not (filters and self._is_filtered_out(samples))
                batch.judge(started, samples, passes, right=0 if passes else self._right_of(samples))
        self._fleet.cancel(list(calls))
        return batch, exhausted

    def _sample_of(self, response: dict[str, Any]) -> Experience:
        return self._theirs._process_response_into_experience(response, max_len=self.args.data.max_len)

    def _is_filtered_out(self, experiences: list[Experience]) -> bool:
        """Return whether dynamic sampling (DAPO) drops a prompt, because its mean score is outside the range."""
        if any(experience.scores is None for experience in experiences):
            return False
        scores = [experience.scores[0].item() for experience in experiences]
        lowest, highest = self.args.algo.dynamic_filtering_range
        return not lowest < sum(scores) / len(scores) < highest

    def _right_of(self, experiences: list[Experience]) -> int:
        """Return how many of a prompt's responses are right."""
        return sum(int(is_right(experience, self._threshold).sum()) for experience in experiences)

    def _options(self, samples: int, temperature: float, with_log_probs: bool) -> dict[str, Any]:
        """Return the arguments that all requests of a batch share, as OpenRLHF's ``_dispatch_prompts_to_vllm`` does."""
        rollout = self.args.rollout
        sampling = SamplingParams(
            temperature=temperature,
            top_p=rollout.top_p,
            top_k=-1,
            max_tokens=rollout.max_new_tokens,
            min_tokens=1,
            skip_special_tokens=False,
            logprobs=0 if with_log_probs else None,  # of the token itself, and of no others
        )
        return {"sampling_params": sampling, "max_length": self.args.data.max_len, "num_samples": samples}

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
    """OpenRLHF's loader of prompts, as the iterator over an epoch; prompts that were drawn too early can be put back.

    Skips prompts of more than ``longest`` tokens. The state has the loader's state, the prompts to draw first, and
    whether the loader is drained. OpenRLHF saves only the first, and so loses prompts generated ahead and may repeat an
    epoch.
    """

    def __init__(self, loader: Any, tokenizer: Any, longest: int) -> None:
        self._loader, self._tokenizer, self._longest = loader, tokenizer, longest
        self._rows: Iterator[Row] = iter(())  # not yet drawn in this epoch
        self._put_back: deque[Row] = deque()
        self._is_drained = True  # except for prompts that were put back
        self.is_open = False  # whether the epoch may have more prompts

    def begin_epoch(self) -> None:
        """Start the next epoch."""
        self._rows, self._is_drained, self.is_open = iter(self._loader), False, True

    def __iter__(self) -> PromptStream:
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

    def state_dict(self, before: list[Row]) -> dict[str, Any]:
        """Return the state after a step; the prompts ``before``, of rollouts that no step has used yet, come first."""
        first = [*before, *self._put_back]
        return {"loader": self._loader.state_dict(), "put_back": first, "epoch_drawn": self._is_drained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state, in the middle of its epoch."""
        self._loader.load_state_dict(state["loader"])
        if not state["epoch_drawn"]:  # otherwise, iterating over the loader would start the next epoch too early
            self.begin_epoch()
        self._put_back.extend(state["put_back"])
        self.is_open = True
