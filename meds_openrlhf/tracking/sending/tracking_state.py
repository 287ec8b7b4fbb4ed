"""``tracking.json``: what Weights & Biases and MLflow have confirmed of a run, and under which id.

The sending process changes it, and the driver, when it resumes a run. TensorBoard and SwanLab need no state: they get
all lines from the start in each session.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from meds_openrlhf.files import write_atomically
from meds_openrlhf.locks import try_lock
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.sending.run_lines import Positions, RunLines

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrackingState:
    """The content of ``tracking.json``."""

    id: str  # random; the names of the run's event files end with it, and SwanLab's and MLflow's run is found by it
    wandb_id: str | None = None
    offline: bool = False  # whether the lines are only in the files of W&B's offline mode
    records: int = 0  # how many records the run has at W&B
    lines: Positions = field(default_factory=dict)  # confirmed lines of each stream
    snapshots: dict[str, str] = field(default_factory=dict)  # SHA-256 of the confirmed manifests, by name
    mlflow: dict[str, Positions] = field(default_factory=dict)  # like `lines`, by the id of the run at MLflow


def read_state(paths: RunPaths) -> TrackingState | None:
    """Read the state; None if there is none. A file with something else must not stop a run: all is sent again."""
    try:
        return TrackingState(**json.loads(paths.tracking.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        logger.warning(
            "%s holds no state of tracking (%s): all is sent again, to another W&B run", paths.tracking, error
        )
        return None


def change_state(paths: RunPaths, change: Callable[[TrackingState], TrackingState]) -> TrackingState:
    """Apply ``change`` to the state, a new one if there is none, and write it; no change of another process is lost."""
    with paths.tracking.with_name(".tracking-state.lock").open("w") as lock:
        while not try_lock(lock.fileno(), optional=True):
            time.sleep(0.01)
        before = read_state(paths)
        state = change(before or TrackingState(uuid.uuid4().hex[:12]))
        if state != before:
            write_atomically(paths.tracking, json.dumps(asdict(state), indent=1) + "\n")
        return state


def rewind(paths: RunPaths) -> None:
    """Lower the positions to the lines that a resumed run has kept: the steps that it repeats are sent again.

    Call this after the run's files are cut and before a line is appended.
    """
    if read_state(paths) is None:
        return
    kept = RunLines(paths, {})
    while kept.read_new():
        pass

    def lowered(lines: Positions) -> Positions:
        return {name: min(at, kept.positions.get(name, 0)) for name, at in lines.items()}

    def rewound(state: TrackingState) -> TrackingState:
        mlflow = {run: lowered(lines) for run, lines in state.mlflow.items()}
        return replace(state, lines=lowered(state.lines), mlflow=mlflow)

    change_state(paths, rewound)
