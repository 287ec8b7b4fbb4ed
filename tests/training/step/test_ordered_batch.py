"""Which prompts make a batch, and how many are started for it."""

import random

import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.training.step.ordered_batch import OrderedBatch, PassRate, Row, Started


def rows(count: int) -> list[Row]:
    return [([""], [str(number)], [""], [None]) for number in range(count)]


def sample_of(started: Started) -> Experience:
    return Experience(prompts=started.row[1], action_mask=torch.ones(1, 3))


def filled(batch: OrderedBatch, verdicts: list[bool], rng: random.Random) -> tuple[list[int], list[Row], list[Row]]:
    """Answer prompts in any order until the batch is full, or none are left; returns it, the rest and the undrawn."""
    left, running = rows(len(verdicts)), list[Started]()
    while not batch.is_full:
        more = batch.to_start()
        assert more >= 0
        running += [batch.start(row) for row in left[:more]]
        del left[:more]
        if not running:
            break
        started = running.pop(rng.randrange(len(running)))
        number = int(started.row[1][0])
        batch.judge(started, [sample_of(started)], passes=verdicts[number], right=number % 3)
    return [int(sample.prompts[0]) for sample in batch.samples], batch.rest(), left


@given(
    verdicts=st.lists(st.booleans(), max_size=60), earlier=st.lists(st.booleans(), max_size=40),
    wanted=st.integers(1, 12), seed=st.integers(0, 99), ahead=st.booleans(),
)  # fmt: skip
def test_a_batch_is_the_first_prompts_that_pass_whatever_is_answered_first(
    verdicts: list[bool], wanted: int, earlier: list[bool], seed: int, ahead: bool
) -> None:
    rate = PassRate()
    for passed in earlier:
        rate.add(passed)
    batch = OrderedBatch(wanted, rate if ahead else None, spares=2)
    found, rest, undrawn = filled(batch, verdicts, random.Random(seed))
    passing = [number for number, passed in enumerate(verdicts) if passed]
    assert found == passing[:wanted]
    consumed = passing[wanted - 1] + 1 if len(passing) >= wanted else len(verdicts)
    assert batch.consumed == consumed
    assert batch.generated_tokens == 3 * consumed
    spare = [number for number in range(0, consumed, 3) if not verdicts[number]]
    assert [int(sample.prompts[0]) for sample in batch.spare_samples] == spare[:2]
    of_no_use = [number for number in range(consumed) if not verdicts[number] and number not in spare[:2]]
    assert batch.dropped == [(str(number), number % 3, 1) for number in of_no_use]
    assert [*rest, *undrawn] == rows(len(verdicts))[consumed:]
    if not ahead:
        assert not rest


def test_as_many_are_started_as_the_rate_asks_for_and_one_deviation_more() -> None:
    rate = PassRate()
    assert [rate.needed(missing) for missing in (0, 1, 512)] == [0, 1, 512]  # nothing is known yet
    for number in range(10_000):
        rate.add(number % 4 == 0)
    found = rate.needed(512)
    # 2,048 would do on average, and 2,048 draws of 1/4 have a deviation of 20 passes.
    assert 2048 + 70 < found < 2048 + 90
    rate.begin_step()
    for _ in range(10_000):  # newer steps count twice as much: three of four pass
        rate.add(True)
    assert 512 * 4 / 3 + 10 < rate.needed(512) < 512 * 4 / 3 + 20
    for _ in range(1_000_000):
        rate.add(False)
    assert rate.needed(512) < 512 * 16 * 1.2


def test_what_has_passed_out_of_turn_is_missing_no_more() -> None:
    rate = PassRate()
    for number in range(10_000):
        rate.add(number % 2 == 0)
    batch = OrderedBatch(4, rate)
    started = [batch.start(row) for row in rows(batch.to_start())]
    assert len(started) > 8
    assert batch.to_start() == 0
    for late in started[1:5]:
        batch.judge(late, [sample_of(late)])
    assert batch.to_start() == 0  # enough have passed; only the first one's verdict is open
    assert not batch.is_full
    batch.judge(started[0], [sample_of(started[0])], passes=False)
    assert batch.is_full
    assert batch.consumed == 5
    assert batch.rest() == [prompt.row for prompt in started[5:]]
