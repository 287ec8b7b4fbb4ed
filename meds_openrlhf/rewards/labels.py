"""Whether a built-in reward can read the labels of a training set, and whether a response can match them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.gym.problem import is_label, require_made
from meds_openrlhf.rewards.grading import MOST_UNMATCHED, fault_of, unmatched

CHECKED_LABELS = 200  # are compared with themselves at a start, which takes seconds
logger = logging.getLogger(__name__)


def require_labels(reward: str, data: Any, column: str | None, resume: bool = False) -> None:
    """Require labels in ``column`` of ``data`` that the built-in ``reward`` can read and a response can match.

    All labels are looked at; of mathematics, `CHECKED_LABELS` are compared with themselves, which takes seconds. A run
    that is resumed has trained on them, and is only warned.
    """
    if column is None:
        raise ConfigError("data.label_key", None, f"names no column, and meds.reward={reward} compares with labels.")
    values = list(data[column])
    labels = {f"row {row}": str(label) for row, label in enumerate(values, start=1)}
    if reward == "gym":
        try:
            require_made(labels)
        except ValueError as error:
            raise ConfigError("meds.reward", reward, f"cannot read the labels in data.label_key: {error}") from error
    elif any(map(is_label, labels.values())):
        raise ConfigError("meds.reward", reward, "cannot read reasoning-gym's labels in data.label_key. Set it to gym.")
    else:
        fault = _fault_among(values, compare=reward != "math-string" and not resume)
        if fault is not None:
            hint, is_refused = fault
            advice = f"{hint} `meds data prepare` makes data sets of single answers."
            if is_refused and not resume:
                raise ConfigError("data.label_key", column, advice)
            logger.warning("data.label_key=%s: %s", column, advice)


def _fault_among(values: Sequence[Any], compare: bool) -> tuple[str, bool] | None:
    """Say which labels of mathematics no response, or only a copy of them, can match; and whether that is too much."""
    for row, value in enumerate(values, start=1):
        fault = fault_of(value)
        if fault:
            return f"the label of row {row} {fault}, which no answer equals: {value!r:.80}.", True
    rows = range(0, len(values) if compare else 0, -(-len(values) // CHECKED_LABELS) or 1)
    places = unmatched([str(values[row]).strip() for row in rows])
    if not places:
        return None
    example = rows[places[0]]
    found = f"{len(places)} of {len(rows)} labels cannot be compared, e.g. that of row {example + 1}"
    return f"{found}: {values[example]!r:.80}.", len(places) > MOST_UNMATCHED * len(rows)
