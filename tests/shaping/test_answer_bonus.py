"""The answer bonus by hand."""

import numpy as np

from meds_openrlhf.shaping.answer_bonus import answer_bonus


def test_the_answer_bonus_by_hand() -> None:
    bonus = answer_bonus(np.array([0, 1, 4, 16, 100], np.int32), weight=0.2, baseline=0.5)
    np.testing.assert_allclose(bonus, [0.1, 0.1, 0.0, -0.05, -0.08])
