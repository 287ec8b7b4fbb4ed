"""Open a run at Weights & Biases, and turn a run's lines into its records, under the names of OpenRLHF's dashboards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import wandb
import yaml
from pydantic import ValidationError

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.redaction import redacted
from meds_openrlhf.tracking.sending.run_lines import RunLine

AXIS = "train/global_step"  # not W&B's own step, which counts records
TABLE_NAME = "train/biggest_clusters"
COLUMNS = ("step", "prompt", "label", "size", "members", "answer", "response")
INIT_SECONDS = 600.0  # time limit of W&B's client; the user gets a message much earlier


def open_run(paths: RunPaths, run_id: str, names: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
    """Open a new run or resume it. Waits for W&B, unless it is offline.

    Raises wandb.Error if W&B refuses, and ValueError or TypeError if its client does not take the settings.
    """
    paths.root.joinpath("wandb").mkdir(exist_ok=True)
    folder: dict[str, Any] = {} if environment.get("WANDB_DIR") else {"dir": str(paths.root)}
    config = redacted(yaml.safe_load(paths.config.read_text(encoding="utf-8")), environment)
    try:
        run = wandb.init(id=run_id, resume="allow", config=config, settings=_settings(), **names, **folder)
    except ValidationError as error:  # its message shows the values, which may include a key
        fields = ", ".join(".".join(map(str, one["loc"])) for one in error.errors())
        raise ValueError(f"its client does not take {fields}; check the WANDB_* variables") from None
    run.define_metric(AXIS)
    run.define_metric("train/*", step_metric=AXIS)
    run.define_metric("eval/*", step_metric=AXIS)
    return run


def _settings() -> wandb.Settings:
    return wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        init_timeout=INIT_SECONDS,
        quiet=True,
        silent=True,
        x_disable_machine_info=True,  # it would describe this process, not the training
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        x_transaction_log_flush_interval=1.0,
    )


def record_of(line: RunLine) -> dict[str, Any]:
    """The record of a line, for `wandb.log`."""
    if line.stream == "clusters":
        record = {f"train/{name}": _histogram(**one) for name, one in line.values.get("histograms", {}).items()}
        if biggest := line.values.get("biggest_clusters"):
            record[TABLE_NAME] = wandb.Table(list(COLUMNS), [_row(line.step, one) for one in biggest])
        return {name: value for name, value in record.items() if value is not None} | {AXIS: line.step}
    if line.stream == "evaluations":
        record = {f"eval/{name}": value for name, value in line.numbers.items()}
        return {**record, "eval/global_step": line.step, AXIS: line.step}
    return {**{f"train/{name}": value for name, value in line.numbers.items()}, AXIS: line.step}


def _histogram(edges: list[float], counts: list[float]) -> wandb.Histogram | None:
    return wandb.Histogram(np_histogram=(counts, edges)) if counts else None


def _row(step: int, cluster: dict[str, Any]) -> list[Any]:
    """A cluster as a row of `COLUMNS`; the prompt is its text if the line has it, else its key."""
    values = [cluster[name] for name in COLUMNS[2:]]
    return [step, cluster.get("prompt_text") or cluster["prompt"], *values]
