"""Rollouts from engines that die, and from a run that stops in the middle of an epoch."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils import samples_generator
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from torchdata.stateful_dataloader import StatefulDataLoader

from meds_openrlhf.config import MedsSettings
from meds_openrlhf.config.schema import PenaltySettings
from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.training.step import rollout
from meds_openrlhf.training.step.engine_fleet import EngineFleet
from meds_openrlhf.training.step.rollout import RolloutGenerator
from tests.training.step.fake_engine import SAMPLES, Engine, responses_to
from tests.training.step.rollouts import arguments as openrlhf_arguments
from tests.training.step.rollouts import context_of

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(autouse=True)
def _light_sampling_params(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's would make every engine's process import vLLM, to read what it has no use for."""
    monkeypatch.setattr(rollout, "SamplingParams", dict)


class Fleet(EngineFleet):
    """An engine that dies at its nth prompt; what the fleet tells is kept."""

    def __init__(self, dies_at: int) -> None:
        self.told: list[str] = []
        super().__init__([ray.remote(num_cpus=0, max_restarts=2)(Engine).remote(dies_at)], self.told.append)


class InstantFleet:
    """Needs no engines: answers prompts in an order that ``seed`` draws."""

    def __init__(self, seed: int = 0) -> None:
        self.usable, self.told = ["engine"], list[str]()
        self._rng, self._numbers = random.Random(seed), itertools.count()
        self.cancelled = 0
        self.tell = self.told.append

    def keep_those_with_weights(self) -> None: ...

    def generate(self, *, prompt: str, label: str, **_: Any) -> Any:
        return next(self._numbers), prompt, label

    def wait(self, calls: list[Any]) -> list[Any]:
        return self._rng.sample(calls, min(len(calls), 2))

    def responses(self, call: Any) -> list[dict[str, Any]]:
        return responses_to(*call[1:])

    def cancel(self, calls: list[Any]) -> None:
        self.cancelled += len(calls)


def arguments(batch: int, at_once: int, filtering: bool = False, even_batch: int = SAMPLES) -> SimpleNamespace:
    return openrlhf_arguments(**{
        "data.max_len": 12, "rollout.max_new_tokens": 10, "rollout.n_samples_per_prompt": SAMPLES,
        "rollout.batch_size": batch, "rollout.vllm_generate_batch_size": at_once, "rollout.micro_batch_size": 1,
        "train.batch_size": even_batch, "train.micro_batch_size": 1, "vllm.enable_sleep": False,
        "algo.dynamic_filtering_enable": filtering, "algo.dynamic_filtering_range": (0.5, 2.0),
        "train.async_enable": at_once > batch, "train.num_episodes": 100,
    })  # fmt: skip


def loader(prompts: int) -> StatefulDataLoader:
    data = [("default", f"{number:02d}", "label", None) for number in range(prompts)]
    torch.manual_seed(7)
    return StatefulDataLoader(data, batch_size=1, shuffle=True, drop_last=True, collate_fn=lambda one: list(zip(*one)))


def one_token_a_character(text: str, add_special_tokens: bool) -> dict[str, list[int]]:
    return {"input_ids": [ord(character) for character in text]}


def make_generator(
    fleet: Any,
    args: SimpleNamespace,
    prompts: int,
    *,
    sync_weights: Callable[[], None] | None = None,
    first_step: int = 0,
    **settings: Any,
) -> RolloutGenerator:
    theirs = SamplesGenerator(SimpleNamespace(args=args), loader(prompts), None, one_token_a_character, [])
    context = replace(context_of(MedsSettings(run_dir="unused", **settings), pool=None), first_step=first_step)
    return RolloutGenerator(theirs, fleet, context, sync_weights)


def next_samples(generator: RolloutGenerator) -> list[Experience]:
    """Of the next step; none after the last."""
    step = generator.generate()
    return [] if step is None else step.samples


def prompts_of(experiences: list[Experience]) -> list[int]:
    return [int(one.prompts[0]) for one in experiences]


def test_what_fills_no_mini_batch_at_an_epochs_end_is_left_out_and_said_once() -> None:
    fleet = InstantFleet()
    generator = make_generator(fleet, arguments(4, 4, even_batch=4), 7)
    for _ in range(2):
        assert len(next_samples(generator)) == 4 * SAMPLES
        assert len(next_samples(generator)) == 4  # 3 prompts, 6 responses
    assert fleet.told == ["the epoch's last 2 responses are left out, as usual: a step needs a multiple of 4"]


def test_after_the_last_step_nothing_is_generated() -> None:
    generator = make_generator(InstantFleet(), arguments(4, 4), 20, max_steps=2)
    assert [len(next_samples(generator)) for _ in range(2)] == [4 * SAMPLES] * 2
    generator._fleet.usable.clear()  # nobody could
    assert generator.generate() is None
    part = make_generator(InstantFleet(), arguments(4, 4, even_batch=8), 5, max_steps=2)
    made = [len(next_samples(part)) for _ in range(3)]
    assert made == [4 * SAMPLES, 4 * SAMPLES, 0]  # a batch without responses is no step
    done = make_generator(InstantFleet(), arguments(4, 4), 20, first_step=2, max_steps=2)
    assert done.generate() is None


def test_too_long_prompts_are_left_out_also_after_a_restart() -> None:
    """Prompts from 100 on have three tokens, and two are left to them."""
    through, resumed = (make_generator(InstantFleet(), arguments(batch=40, at_once=40), 110) for _ in range(2))
    step = through.generate()
    assert step is not None
    first = prompts_of(step.samples)
    resumed.resume(step.state)
    for generator in (through, resumed):
        rest = [prompt for _ in range(2) for prompt in prompts_of(next_samples(generator))]
        assert sorted({*first, *rest}) == list(range(100))
        assert len(rest) == 60 * SAMPLES


class ShortOfRoom(InstantFleet):
    """Has no responses to every third prompt, whose images leave no room for one."""

    def responses(self, call: Any) -> list[dict[str, Any]]:
        return [] if int(call[1]) % 3 == 0 else super().responses(call)


@pytest.mark.parametrize("filtering", [False, True])
def test_prompts_that_are_too_long_with_their_images_are_dropped_and_said_once(filtering: bool) -> None:
    fleet = ShortOfRoom()
    generator = make_generator(fleet, arguments(4, 4, filtering), 40, penalty=PenaltySettings(extras=2 * filtering))
    generator.args.train.num_episodes = 1
    drawn = list[int]()
    while samples := next_samples(generator):
        drawn += prompts_of(samples)
        assert len(samples) % SAMPLES == 0
    answered = {prompt for prompt in range(40) if prompt % 3}
    assert set(drawn) <= answered
    assert filtering or sorted(drawn) == sorted([*answered] * SAMPLES)
    (told,) = fleet.told
    assert told.startswith("dropping prompts that are too long with their images, such as '")


class WithoutReward(InstantFleet):
    """Whose reward function raised for a response to prompt 3; OpenRLHF then gives None."""

    def responses(self, call: Any) -> list[dict[str, Any]]:
        first, *others = super().responses(call)
        return [{**first, "reward": None, "scores": None} if int(call[1]) == 3 else first, *others]


@pytest.mark.parametrize("filtering", [False, True])
def test_responses_without_a_reward_end_the_run_unless_a_model_gives_it(filtering: bool) -> None:
    args = arguments(8, 8, filtering)
    said = f"^1 of {SAMPLES} responses to a prompt have no reward: reward.remote_url raised"
    with pytest.raises(RunLostError, match=said):
        make_generator(WithoutReward(), args, 8).generate()
    args.reward.model_name_or_path = "a model"
    assert filtering or len(next_samples(make_generator(WithoutReward(), args, 8))) == 8 * SAMPLES


class SometimesWithout(InstantFleet):
    """Returns no log-probs of every third prompt, and too few of every other third, as a user's agent may."""

    def responses(self, call: Any) -> list[dict[str, Any]]:
        kept = {0: None, 1: [0.0], 2: [0.0, -0.5]}[int(call[1]) % 3]
        return [{**response, "rollout_log_probs": kept} for response in super().responses(call)]


def test_missing_log_probs_are_left_out_unless_the_loss_needs_them() -> None:
    args = arguments(4, 4)
    samples = next_samples(make_generator(SometimesWithout(), args, 40))
    assert [sample.rollout_log_probs for sample in samples] == [None] * len(samples)
    args.algo.advantage.is_correction_level = "token"
    with pytest.raises(RunLostError, match=r"some tokens have no log-probs of the engines, and .*_level=token needs"):
        make_generator(SometimesWithout(), args, 40).generate()


@pytest.mark.parametrize(("extras", "even_batch"), [(0, 2), (2, 2), (100, 2), (2, 4), (3, 4), (4, 8)])
def test_groups_without_a_right_answer_follow_in_whole_mini_batches(extras: int, even_batch: int) -> None:
    """In data order, whichever was answered first. Only odd prompts are answered right."""
    found = []
    for seed in (0, 1):
        args = arguments(4, 4, filtering=True, even_batch=even_batch)
        generator = make_generator(InstantFleet(seed), args, 40, penalty=PenaltySettings(extras=extras))
        step = generator.generate()
        assert step is not None
        samples, consumed = step.samples, step.state["total_consumed_prompts"]
        found.append(prompts_of(samples))
    assert found[0] == found[1]
    first, rest = found[0][: 4 * SAMPLES], found[0][4 * SAMPLES :]
    assert {prompt % 2 for prompt in first} == {1}
    assert {prompt % 2 for prompt in rest} <= {0}
    assert len(rest) == min(extras, consumed - 4) * SAMPLES // even_batch * even_batch
    assert step.extras == len(rest)
    assert bool(rest) == (extras > 0)
    assert step.tokens == consumed * SAMPLES * int(samples[0].action_mask.sum())


@pytest.mark.parametrize("extras", [0, 4])
def test_an_epochs_end_without_a_step_counts_for_the_next_step(extras: int) -> None:
    """Of 40 prompts 20 pass: two batches of 8, and 4 that fill no mini-batch."""
    args = arguments(8, 8, filtering=True, even_batch=8 * SAMPLES)
    generator = make_generator(InstantFleet(), args, 40, penalty=PenaltySettings(extras=extras))
    steps = [step for _ in range(3) if (step := generator.generate())]
    assert [len(step.samples) // SAMPLES for step in steps] == [8, 8, 8]
    each = int(steps[0].samples[0].action_mask.sum()) * SAMPLES
    consumed = [0, *(step.state["total_consumed_prompts"] for step in steps)]
    assert [step.tokens for step in steps] == [(after - before) * each for before, after in pairwise(consumed)]
    assert steps[2].state["episode"] == 1
    groups = [len(step.samples) // SAMPLES + len(step.dropped) for step in steps]  # 8 extras are no whole mini-batch
    assert groups == [after - before for before, after in pairwise(consumed)]


def test_the_last_engine_gets_the_policys_weights_after_its_restart() -> None:
    fleet, syncs = Fleet(2), list[bool]()

    def sync_weights() -> None:
        syncs.append(fleet.take_in_restarted())
        fleet.note_sync()

    generator = make_generator(fleet, arguments(4, 4), 8, sync_weights=sync_weights)
    assert len(next_samples(generator)) == 4 * SAMPLES
    assert syncs == [True]
    lost = "vLLM engine 0 was lost (ActorUnavailableError); waiting for its restart"
    assert fleet.told == [lost, "vLLM engine 0 is back"]


def test_a_run_that_cannot_sync_ends_with_its_last_engine() -> None:
    fleet = InstantFleet()
    generator = make_generator(fleet, arguments(4, 4), 8)
    fleet.usable.clear()
    with pytest.raises(RunLostError, match="every vLLM engine was lost"):
        generator.generate()


# ── a run that stops and goes on draws every prompt once, in the same order ──


def train(generator: RolloutGenerator, stop_after: int | None) -> tuple[list[list[int]], dict[str, Any] | None]:
    """The prompts of each step, and what a checkpoint after the last one would hold if the run stops there."""
    steps: list[list[int]] = []
    generator.args.train.num_episodes = 3
    while (step := generator.generate()) is not None:
        steps.append(prompts_of(step.samples))
        if len(steps) == stop_after:
            return steps, step.state
    return steps, None


@given(
    prompts=st.integers(1, 13), batch=st.integers(1, 5), at_once=st.integers(1, 9), stop=st.integers(1, 30),
    filtering=st.booleans(), seeds=st.tuples(*[st.integers(0, 99)] * 3),
)  # fmt: skip
@settings(max_examples=150)
def test_stopped_anywhere_it_goes_on_as_if_it_had_not(
    prompts: int, batch: int, at_once: int, stop: int, filtering: bool, seeds: tuple[int, int, int]
) -> None:
    """Whichever prompts are answered first; half of the prompts do not pass the filter."""
    args = arguments(batch, max(batch, at_once), filtering)
    whole, _ = train(make_generator(InstantFleet(seeds[0]), args, prompts), None)
    before, state = train(make_generator(InstantFleet(seeds[1]), args, prompts), stop)
    if state is None:  # it had ended by then
        assert before == whole
        return
    resumed = make_generator(InstantFleet(seeds[2]), args, prompts)
    torch.manual_seed(99)  # a new process
    resumed.resume(state)
    after, _ = train(resumed, None)
    assert before + after == whole
    drawn = [prompt for step in whole for prompt in step]
    passing = range(1, prompts, 2) if filtering else range(prompts)
    assert sorted(drawn) == sorted([*passing] * SAMPLES * 3)


def test_prompts_in_advance_are_aborted_and_come_first_in_the_next_step() -> None:
    fleet = InstantFleet()
    generator = make_generator(fleet, arguments(8, 8, filtering=True), 100)
    drawn = [prompt for _ in range(6) for prompt in prompts_of(next_samples(generator))[::SAMPLES]]
    assert fleet.cancelled
    data = [int(row[1][0]) for row in loader(100)]
    assert drawn == [prompt for prompt in data if prompt % 2][:48]


@pytest.mark.parametrize("correction", ["off", "token"])
@pytest.mark.parametrize(
    ("temperature", "top_p", "max_new_tokens", "samples"), [(1.0, 1.0, None, SAMPLES), (0.7, 0.9, 10, 3)]
)
def test_a_request_is_what_openrlhf_would_send(
    correction: str,
    temperature: float,
    top_p: float,
    max_new_tokens: int | None,
    samples: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(samples_generator, "SamplingParams", dict)
    monkeypatch.setattr(samples_generator, "ray", SimpleNamespace(get=lambda counts: counts))
    sent: list[dict[str, Any]] = []
    idle, taking = SimpleNamespace(remote=lambda: 0), SimpleNamespace(remote=lambda **request: sent.append(request))
    engine = SimpleNamespace(get_num_unfinished_requests=idle, generate_responses=taking)
    args = arguments(4, 4)
    args.algo.advantage.is_correction_level = correction
    args.rollout.top_p, args.rollout.max_new_tokens = top_p, max_new_tokens
    given = {"temperature": temperature, "top_p": top_p, "max_new_tokens": max_new_tokens, "max_len": args.data.max_len}
    generator = make_generator(InstantFleet(), args, 4)
    theirs = SamplesGenerator(SimpleNamespace(args=args), None, None, None, [engine])  # an engine has a tokenizer
    theirs._dispatch_prompts_to_vllm(["prompt"], ["label"], images=[None], **given, n_samples_per_prompt=samples)
    generator._fleet = SimpleNamespace(usable=[engine], generate=lambda **request: sent.append(request))
    generator._send(([""], ["prompt"], ["label"], [None]), generator._options(samples, temperature, True))
    assert generator._options(samples, temperature, False)["sampling_params"]["logprobs"] is None  # of an evaluation
    del sent[0]["hf_tokenizer"]
    logprobs = [request["sampling_params"].pop("logprobs") for request in sent]
    assert logprobs == [None if correction == "off" else 1, 0]  # a token's own, which comes with any number of others
    assert sent[0] == sent[1]
