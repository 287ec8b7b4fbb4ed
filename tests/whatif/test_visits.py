"""What came before a visit, by hand; and a log read back."""

from pathlib import Path

import numpy as np
import pytest

from meds_openrlhf.cli.main import main
from meds_openrlhf.memory.successes import DECAY
from meds_openrlhf.whatif.visits import read_visits
from tests.whatif.written import visits_of, write_dump

STEPS = ({"a": "rxxy", "b": "zz--"}, {"a": "xyrr", "c": "rrrr"}, {"a": "xwrr", "b": "zrrr"}, {"a": "rrrr"})


def test_what_was_given_and_solved_before() -> None:
    visits = visits_of(*STEPS)
    assert visits.number.tolist() == [0, 0, 1, 0, 2, 1, 3]
    assert visits.right.tolist() == [1, 0, 2, 4, 2, 3, 4]
    given = [visits.given_before[begin:end].tolist() for begin, end in zip(visits.offsets, visits.offsets[1:])]
    assert given == [[0] * 4, [0] * 4, [2, 1, 1, 1], [0] * 4, [3, 0, 3, 3], [2, 0, 0, 0], [5] * 4]
    of_a = [0, 1 / 4, (DECAY + 2) / (4 * DECAY + 4), (DECAY**2 + 2 * DECAY + 2) / (4 * (DECAY**2 + DECAY + 1))]
    assert visits.success[visits.prompt == 0] == pytest.approx(of_a)
    assert visits.success[visits.prompt == 1].tolist() == [0, 0]
    assert not visits.solved_before.any()  # two of four are not most
    solved = visits_of({"a": "rrrx"}, {"a": "xxxx"}, {"a": "rrrr"}, {"a": "rrrr"})
    assert solved.solved_before.tolist() == [False, True, False, True]  # in 1 of 1, in 1 of 2, in 2 of 3


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.jsonl", *STEPS)
    main(["atlas", str(dump), "--out", str(tmp_path / "atlas")])
    read, wanted = read_visits(tmp_path / "atlas"), visits_of(*STEPS)
    assert [read.texts[code] for code in read.prompt] == [wanted.texts[code] for code in wanted.prompt]
    for name in ("step", "offsets", "correct", "reward", "given_before", "success", "solved_before"):
        np.testing.assert_array_equal(getattr(read, name), getattr(wanted, name))
    wrong = np.where(wanted.correct, 0, wanted.given_before)
    np.testing.assert_array_equal(read.stored, wrong)  # the memory of answers counts the same
    assert ((read.answer < 0) == (wanted.answer < 0)).all()
