"""The studies of a real model: truths and metrics by hand, and the committed results again from what was recorded."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from studies import smollm2_fingerprint, smollm2_recurrence
from studies.smollm2_fingerprint import neighbor_gain, truths_of

RESULTS = Path(__file__).parents[2] / "results"


def test_truths_are_the_equations_that_a_response_writes() -> None:
    text = "She has $3 x 4 = 12 apples, and 12 - -2 = 14.\nThen 14 ÷ 7 × 2 = 4."
    assert truths_of(text) == {
        "path": "3*4=12 12--2=14 14/7*2=4", "first": "3*4=12", "operators": "* - /*",
    }  # fmt: skip
    assert truths_of("12 apples") == {"path": None, "first": None, "operators": None}


def test_nearest_neighbors_are_counted_within_strata_less_what_chance_gives() -> None:
    values = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    truth, stratum, prompt = np.array([0, 0, 1, 2, 0]), np.array([0, 0, 0, 0, 1]), np.array(["p"] * 5)
    found = neighbor_gain(values, truth, stratum, prompt)
    # The first two have each other; the others' neighbors differ in truth. By chance: 1/3, 1/3, 0 and 0.
    assert found.loc["p"].to_dict() == pytest.approx({"sum": 4 / 3, "hits": 2.0, "count": 4.0})
    scalars = neighbor_gain(np.array([1.0, 1.1, 5.0, 9.0, 1.0]), truth, stratum, prompt)
    assert scalars.loc["p"].to_dict() == pytest.approx({"sum": 4 / 3, "hits": 2.0, "count": 4.0})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-fingerprint/published", "smollm2-fingerprint/started", "smollm2-recurrence"])
def test_what_was_recorded_gives_the_committed_tables(name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    shutil.copytree(RESULTS / name, out)
    (out / "report.md").unlink()
    study = smollm2_recurrence if name == "smollm2-recurrence" else smollm2_fingerprint
    study.judge(out)
    assert (out / "report.md").read_text() == (RESULTS / name / "report.md").read_text()
