"""Groups of responses are read from steps that have all their texts."""

import random
from pathlib import Path

import pytest

from analysis.judged import Group, index_groups, read_groups
from meds_openrlhf.config.errors import ConfigError
from tests.analysis.runs import write_log


def test_steps_without_all_their_texts_are_left_out_and_counted(tmp_path: Path) -> None:
    run = write_log(tmp_path, {1: {"p": ["a", "b"], "q": ["c"]}, 2: {"p": ["d", None], "q": ["e"]}, 3: {"q": ["f"]}})
    note = f"{run}: 1 of 7 rollouts have no text in the log; 1 steps without all their texts are left out"
    assert index_groups(run) == ({1: {"p": 2, "q": 1}, 3: {"q": 1}}, [note])
    assert read_groups(run, [(1, "p"), (3, "q"), (1, "p")]) == {
        (1, "p"): Group(1, "p", "Question p?", ("a", "b")),
        (3, "q"): Group(3, "q", "Question q?", ("f",)),
    }


def test_responses_are_drawn_without_repeating() -> None:
    group = Group(1, "p", "?", tuple("abcdef"))
    drawn = group.drawn(4, random.Random(0), "answer")
    assert list(drawn) == ["answer 1", "answer 2", "answer 3", "answer 4"]
    assert len(set(drawn.values())) == 4
    assert drawn == group.drawn(4, random.Random(0), "answer")
    assert sorted(group.drawn(9, random.Random(1), "answer").values()) == list("abcdef")


def test_a_log_of_samples_names_the_setting(tmp_path: Path) -> None:
    run = write_log(tmp_path, {1: {"p": ["a", None]}, 2: {"p": [None, "b"]}})
    message = "has the texts of only 2 of 4 rollouts. Train with meds.tracking.rollouts: all"
    with pytest.raises(ConfigError, match=message):
        index_groups(run)
