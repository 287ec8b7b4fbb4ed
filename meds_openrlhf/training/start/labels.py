"""Checks of the labels of a training: the built-in reward can read them, and a response can match them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.gym.label import is_label
from meds_openrlhf.gym.problem import require_made
from meds_openrlhf.rewards.labels import MOST_UNMATCHED, fault_of, unmatched

CHECKED_LABELS = 200  # are compared with themselves at a start, which takes seconds
logger = logging.getLogger(__name__)


def require_labels(config: RunConfig, data: Any, column: str | None) -> None:
    """Require labels that the built-in reward can read and a response can match.

    All labels are looked at; of mathematics, `CHECKED_LABELS` are compared with themselves, which takes seconds.
    """
    reward = config.meds.reward
    if reward is None:
        return
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
        _require_matching(column, values, compare=reward != "math-string")


def _require_matching(column: str, values: Sequence[Any], compare: bool) -> None:
    """Require labels of mathematics that a response can match; warn of a few that only a copy of them matches."""
    make = "`meds data prepare` makes data sets of single answers."
    for row, value in enumerate(values, start=1):
        fault = fault_of(value)
        if fault:
            hint = f"the label of row {row} {fault}, which no answer equals: {value!r:.80}. {make}"
            raise ConfigError("data.label_key", column, hint)
    rows = range(0, len(values) if compare else 0, -(-len(values) // CHECKED_LABELS) or 1)
    places = unmatched([str(values[row]).strip() for row in rows])
    if places:
        example = rows[places[0]]
        hint = f"{len(places)} of {len(rows)} labels cannot be compared, e.g. that of row {example + 1}"
        error = ConfigError("data.label_key", column, f"{hint}: {values[example]!r:.80}. {make}")
        if len(places) > MOST_UNMATCHED * len(rows):
            raise error
        logger.warning("%s Only a copy of such a label is right.", error)
