"""Send a run's lines to MLflow: to a server, or to the files of a folder. A line counts as sent when a call returned.

The run at MLflow is found by a tag, so a run that was created just before a process died is not created again.
"""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from meds_openrlhf.config import RunConfig
from meds_openrlhf.config.yaml_file import flatten
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.sending.destinations import names_of
from meds_openrlhf.tracking.sending.run_lines import RunLine, RunLines
from meds_openrlhf.tracking.sending.sender import Session, without_keys
from meds_openrlhf.tracking.sending.tracking_state import change_state

TAG = "meds.run"
METRICS_AT_ONCE, PARAMETERS_AT_ONCE = 1000, 100  # MLflow's limits of a call
_NOT_IN_NAMES = re.compile(r"[^/\w.\- :]")


class MlflowSession(Session):
    """Sends to a server, or writes files to a folder."""

    def __init__(
        self, paths: RunPaths, config: RunConfig, environment: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        super().__init__(paths, config, environment, say)
        self._client = MlflowClient(environment["MLFLOW_TRACKING_URI"])
        self._lines = RunLines(paths, {})
        self._run_id: str | None = None
        self._has_texts = True

    def send_new(self) -> bool:
        """See `Session`."""
        lines = self._lines.read_new()
        if lines and self._run_id is None:
            self._run_id = self._open()
            lines = self._lines.read_new()  # from where MLflow has it
        if not lines or self._run_id is None:
            return False
        now = int(time.time() * 1000)
        metrics = [
            Metric(_NOT_IN_NAMES.sub("_", name), value, now, line.step)
            for line in lines
            for name, value in line.numbers.items()
        ]
        for batch in _batches(metrics, METRICS_AT_ONCE):
            self._ask(self._client.log_batch, self._run_id, metrics=batch)
        for line in lines:
            self._send_text(self._run_id, line)
        sent = {self._run_id: dict(self._lines.positions)}
        self._note(lambda state: replace(state, mlflow={**state.mlflow, **sent}))
        return True

    def finish(self) -> None:
        """Mark the run as finished."""
        if self._run_id is not None:
            self._ask(self._client.set_terminated, self._run_id)

    def _open(self) -> str:
        """Find or create the run, and send the parameters that it does not have; those that it has cannot change."""
        state = change_state(self._paths, lambda state: state)
        names = names_of("mlflow", self._config, self._paths, self._environment)
        experiment_name = names.get("project") or self._environment["MLFLOW_EXPERIMENT_NAME"]
        experiment = self._ask(self._client.get_experiment_by_name, experiment_name)
        if experiment is None:
            experiment_id = self._ask(self._client.create_experiment, experiment_name)
        else:
            experiment_id = experiment.experiment_id
        found = self._ask(self._client.search_runs, [experiment_id], f"tags.`{TAG}` = '{state.id}'", max_results=1)
        if found:
            run = found[0]
        else:
            run = self._ask(self._client.create_run, experiment_id, run_name=names["name"], tags={TAG: state.id})
        run_id: str = run.info.run_id
        self._ask(self._client.update_run, run_id, status="RUNNING")
        settings = {_NOT_IN_NAMES.sub("_", name): str(value) for name, value in flatten(self._shown_config()).items()}
        parameters = [Param(name, value) for name, value in settings.items() if name not in run.data.params]
        for batch in _batches(parameters, PARAMETERS_AT_ONCE):
            self._ask(self._client.log_batch, run_id, params=batch)
        self._lines = RunLines(self._paths, state.mlflow.get(run_id, {}))
        return run_id

    def _send_text(self, run_id: str, line: RunLine) -> None:
        """Send the largest clusters as an artifact, whose store may be out of reach where the metrics are not."""
        if not self._has_texts or not line.biggest_clusters:
            return
        try:
            self._ask(self._client.log_text, run_id, line.biggest_clusters, f"biggest_clusters/step_{line.step:06}.md")
        except Exception as error:  # whatever the store's library raises
            self._has_texts = False
            reason = textwrap.shorten(without_keys(f"{type(error).__name__}: {error}"), 200)
            self._say(f"MLflow: the texts of the largest clusters are not sent: {reason}")


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
