"""Steps of rollouts, of which a test says what matters to it."""

from typing import Any

import numpy as np

from meds_openrlhf.memory.sets import UNASSIGNED
from meds_openrlhf.rollouts.step import StepTable


def step_table(n: int, **given: Any) -> StepTable:
    """A step of ``n`` wrong rollouts, without tokens, rows or clusters, except for what is ``given``."""
    columns = {
        "step": 1, "group": n, "prompt": ["key"] * n, "prompt_text": ["prompt"] * n, "ground_truth": ["7"] * n,
        "answer": ["8"] * n, "token_ids": np.empty(0, np.int32), "tokens": np.zeros(n, np.int64),
        "generated": np.empty(0, bool), "truncated": np.zeros(n, bool), "is_extra": np.zeros(n, bool),
        "correct": np.zeros(n, bool), "reward": np.zeros(n, np.float32), "row": np.empty((n, 0), np.float32),
        "has_row": np.zeros(n, bool), "label": np.full(n, UNASSIGNED, np.int32),
        "cluster_size": np.zeros(n, np.int32), "shaped_reward": np.zeros(n), "success": np.zeros(n),
    }  # fmt: skip
    return StepTable(**{**columns, **given})
