"""Convert a run's lines to records for `wandb.log`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wandb

from meds_openrlhf.tracking.sending.run_lines import RunLine, numbers
from meds_openrlhf.tracking.sending.wandb_run import AXIS

TABLE_NAME = "train/biggest_clusters"
COLUMNS = ("step", "prompt", "label", "size", "members", "answer", "response")


def record_of(stream: str, line: RunLine) -> dict[str, Any]:
    """The record of a line. The training step is a separate axis, because W&B's own step counts records."""
    return {**_RECORDS[stream](line), AXIS: line.step}


def table_rows(line: RunLine) -> list[list[Any]]:
    """The biggest clusters of a step as rows of `COLUMNS`; the prompt is its text if the line has it, else its key."""
    return [
        [
            line.step,
            one.get("prompt_text") or one["prompt"],
            *(one[name] for name in ("label", "size", "members", "answer", "response")),
        ]
        for one in line.values.get("biggest_clusters", ())
    ]


def _metrics(line: RunLine) -> dict[str, Any]:
    return {f"train/{name}": value for name, value in numbers(line).items()}


def _evaluation(line: RunLine) -> dict[str, Any]:
    return {**{f"eval/{name}": value for name, value in numbers(line).items()}, "eval/global_step": line.step}


def _clusters(line: RunLine) -> dict[str, Any]:
    return {
        f"train/{name}": wandb.Histogram(np_histogram=(one["counts"], one["edges"]))
        for name, one in line.values.get("histograms", {}).items()
        if one["counts"]
    }


_RECORDS: dict[str, Callable[[RunLine], dict[str, Any]]] = {
    "metrics": _metrics,
    "evaluations": _evaluation,
    "clusters": _clusters,
}
