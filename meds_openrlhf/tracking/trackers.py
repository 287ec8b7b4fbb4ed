"""TensorBoard, Weights & Biases, SwanLab and MLflow: which of them a run uses, and how each takes the run's lines.

Each class opens the run at its tracker, in every session the same run, by its id. The packages are imported by then,
because that takes seconds and may fail.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from meds_openrlhf.config.credentials import redacted
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.loader import flatten, read_mapping
from meds_openrlhf.files import open_own, read_file, write_atomically
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.paths import RunPaths, as_folder_name, entries_of, inside
from meds_openrlhf.runtime.processes import MARK, end_family

STREAMS = ("metrics", "evaluations", "clusters")  # the logs that are sent
PROJECT = "openrlhf_train_ppo"  # OpenRLHF's default
# The environment of a run that is sent to no server.
NOWHERE = {"WANDB_MODE": "disabled", "SWANLAB_MODE": "disabled", "MLFLOW_TRACKING_URI": ""}
AXIS = "train/global_step"  # not W&B's own step, which counts records
BIGGEST_CLUSTERS = "train/biggest_clusters"  # a text, in W&B a table
RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_EVENTS = "events.out.tfevents."  # TensorBoard's files, which end with the run's id
_WANDB_PROCESSES = uuid.uuid4().hex  # marks them
_REFUSED_BY_MLFLOW = re.compile(r"[^/\w.\- :]")

logger = logging.getLogger(__name__)


def wanted_trackers(environment: Mapping[str, str]) -> list[str]:
    """The packages of the trackers that this environment requests: by a key, an address, or offline mode."""
    wanted = ["tensorboard"]
    for package in ("wandb", "swanlab"):
        key, mode = environment.get(f"{package.upper()}_API_KEY"), environment.get(f"{package.upper()}_MODE")
        if mode != "disabled" and (key or is_offline(package, environment)):
            wanted.append(package)
    return [*wanted, *(["mlflow"] if environment.get("MLFLOW_TRACKING_URI") else [])]


def is_offline(package: str, environment: Mapping[str, str]) -> bool:
    """Whether W&B or SwanLab only writes files, for `wandb sync` or `swanlab sync`."""
    return environment.get(f"{package.upper()}_MODE") == "offline"


@dataclass(frozen=True)
class RunLine:
    """A line of a stream (metrics, evaluations or clusters): its training step and its other values."""

    stream: str
    step: int
    values: dict[str, Any]

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers, including NaN and infinities, under the names of OpenRLHF's loggers: train/NAME, eval/NAME."""
        prefix = "eval" if self.stream == "evaluations" else "train"
        return {f"{prefix}/{name}": value for name, value in self.values.items() if isinstance(value, (int, float))}

    @property
    def histograms(self) -> dict[str, dict[str, list[float]]]:
        """The histograms of a line of clusters, each with k ``counts`` and k + 1 ``edges``."""
        return {f"train/{name}": histogram for name, histogram in self.values.get("histograms", {}).items()}

    @property
    def biggest_clusters(self) -> str:
        """The examples of the step's largest clusters as Markdown, for the trackers that show texts; may be empty."""
        return "\n\n---\n\n".join(_as_markdown(cluster) for cluster in self.values.get("biggest_clusters", ()))


def _as_markdown(cluster: dict[str, Any]) -> str:
    """Describe a cluster. Texts of models and data sets are code blocks, or the viewer would load images in them."""
    head = f"**size {cluster['size']}**, {cluster['members']} in this step, label {cluster['label']}"
    answer = "none" if cluster["answer"] is None else cluster["answer"]
    texts = [f"answer {answer}\nprompt {cluster['prompt']}", cluster.get("prompt_text"), cluster.get("response")]
    return "\n\n".join([head, *(textwrap.indent(text, "    ", lambda _: True) for text in texts if text)])


class TrackedRun:
    """What trackers need of a run. Raises ConfigError."""

    def __init__(self, paths: RunPaths, of_others: bool = False) -> None:
        settings = read_mapping(paths.config, "RUN")
        self.paths, self.id, self.flags = paths, _stored_id(paths), flatten(settings)
        self.config = redacted(settings, os.environ)  # to be shown
        wanted = self.flags.get("logger.tensorboard_dir")
        self.tensorboard = paths.tensorboard if of_others or not wanted else Path(str(wanted)).absolute()

    def setting(self, flag: str, variable: str = "") -> Any:
        """The value of the tracker's own ``variable``, else of ``--logger.wandb.FLAG``, else the default."""
        default = {"run_name": self.paths.root.name, "project": PROJECT}.get(flag)
        value = os.environ.get(variable) or self.flags.get(f"logger.wandb.{flag}") or default
        return None if value is None else str(value)  # YAML reads 2026-11-25 as a date


def _stored_id(paths: RunPaths) -> str:
    """The run's id at all trackers; a new run gets the environment's or a random one."""
    stored, where = None, "WANDB_RUN_ID"
    with suppress(FileNotFoundError, ValueError, LookupError, TypeError):
        stored, where = str(parse_json(read_file(paths.tracking))["id"]), str(paths.tracking)
    run_id = stored or os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:12]
    if not RUN_ID.fullmatch(run_id):
        raise ConfigError(where, run_id, "is no id of a run: 1 to 64 letters, digits, - and _.")
    if stored:
        return stored
    write_atomically(paths.tracking, json.dumps({"id": run_id}) + "\n")
    return run_id


class Tracker(Protocol):
    """A session: ``sent`` is the last step of each stream that it has already; `close` waits for the rest to arrive."""

    sent: Mapping[str, int] = {}

    def send(self, line: RunLine) -> None: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


class _TensorBoard(Tracker):
    """Writes all curves in each session; its first event makes viewers drop what earlier sessions have written."""

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # torch's writer would load torch

        folder = inside(run.tensorboard, as_folder_name(run.setting("run_name")))
        # In a folder that the configuration names outside of the run, nothing is changed that is there.
        own = entries_of(run.paths.root, folder) if run.paths.root in folder.parents else []
        earlier = [path for path in own if path.name.startswith(_EVENTS) and path.name.endswith(f".{run.id}")]
        self._event, self._text = Event, text_pb
        self._writer = EventFileWriter(str(folder), filename_suffix=f".{run.id}")
        self._writer.add_event(Event(step=0, session_log={"status": "START"}))
        self._writer.flush()
        for path in earlier:  # truncated, because viewers fail if a file is removed
            with open_own(path) as file:
                file.truncate(0)

    def send(self, line: RunLine) -> None:
        values = [{"tag": name, "simple_value": value} for name, value in line.numbers.items()]
        for name, histogram in line.histograms.items():
            edges, counts = histogram["edges"], histogram["counts"]
            # Below the first edge is an empty bin, because TensorBoard's are open to the left.
            bins = {"bucket_limit": edges, "bucket": [0, *counts], "num": sum(counts)}
            values.append({"tag": name, "histo": {"min": edges[0], "max": edges[-1], **bins}})
        if line.biggest_clusters:
            values += self._text(BIGGEST_CLUSTERS, [line.biggest_clusters]).value
        self._writer.add_event(self._event(wall_time=time.time(), step=line.step, summary={"value": values}))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Wandb(Tracker):
    """Hands lines to W&B's own process, which uploads them; offline, each session's file has all lines.

    The run's summary at W&B says which lines it has.
    """

    def __init__(self, run: TrackedRun) -> None:
        os.environ.update(WANDB_SILENT="true")  # a setting would come too late for its login
        import wandb

        self._wandb = wandb
        os.environ[MARK] = _WANDB_PROCESSES
        try:
            self._run = wandb.init(
                id=run.id,
                resume="allow",
                config=run.config,
                name=run.setting("run_name", "WANDB_NAME"),
                project=run.setting("project", "WANDB_PROJECT"),
                group=run.setting("group", "WANDB_RUN_GROUP"),
                entity=run.setting("org", "WANDB_ENTITY"),
                dir=os.environ.get("WANDB_DIR") or str(run.paths.wandb.parent),
                # x_disable_meta: the command line may have a key.
                settings=wandb.Settings(console="off", disable_code=True, disable_git=True, x_disable_meta=True),
            )
        except Exception as error:  # any error: without the teardown, the next attempt's run is "in use"
            wandb.teardown()
            if type(error).__name__ == "ValidationError":  # its message shows the values, which may include a key
                raise ValueError("the client refuses its settings; check the WANDB_* variables") from None
            raise
        self._run.define_metric(AXIS)
        for names in ("train/*", "eval/*"):
            self._run.define_metric(names, step_metric=AXIS)
        self.sent = {stream: self._run.summary.get(f"sent/{stream}", -1) for stream in STREAMS}

    def send(self, line: RunLine) -> None:
        record: dict[str, Any] = {**line.numbers, AXIS: line.step}
        if line.stream == "evaluations":
            record["eval/global_step"] = line.step
        for name, histogram in line.histograms.items():
            record[name] = self._wandb.Histogram(np_histogram=(histogram["counts"], histogram["edges"]))
        if biggest := line.values.get("biggest_clusters"):
            shown = ("label", "size", "members", "answer", "response")
            rows = [[line.step, c.get("prompt_text") or c["prompt"], *(c[name] for name in shown)] for c in biggest]
            record[BIGGEST_CLUSTERS] = self._wandb.Table(["step", "prompt", *shown], rows)
        self._run.log(record)
        self._run.summary[f"sent/{line.stream}"] = line.step

    def close(self) -> None:
        self._run.finish()
        self._wandb.teardown()  # otherwise the client's process outlives the run


class _SwanLab(Tracker):
    """Takes all lines in each session; its client asks SwanLab which steps it has, and leaves these out."""

    def __init__(self, run: TrackedRun) -> None:
        import swanlab
        from swanlab.sdk.internal.pkg import console

        console.c.quiet = True  # it would print every failed request; no setting says so
        settings = swanlab.Settings(
            interactive=False,
            # What it would collect describes this process, not the training.
            probe=dict.fromkeys(("hardware", "runtime", "requirements", "git", "swanlab", "monitor"), False),
            terminal={"proxy_type": "none"},
            # Online, the run's folder has everything already; each failed start would leave another copy.
            core={"skip_store": not is_offline("swanlab", os.environ)},
        )
        self._text = swanlab.Text
        self._run = swanlab.init(
            id=run.id,
            resume="allow",
            config=run.config,
            name=run.setting("run_name", "SWANLAB_EXP_NAME"),
            project=run.setting("project", "SWANLAB_PROJ_NAME"),
            group=run.setting("group", "SWANLAB_GROUP"),
            log_dir=str(run.paths.swanlab),
            settings=settings,
        )

    def send(self, line: RunLine) -> None:
        texts = {BIGGEST_CLUSTERS: self._text(line.biggest_clusters)} if line.biggest_clusters else {}
        if record := {**line.numbers, **texts}:
            self._run.log(record, step=line.step)

    def close(self) -> None:
        self._run.finish()


class _Mlflow(Tracker):
    """Sends to a server, or writes files to a folder. Tags of the MLflow run identify it and the last step sent."""

    def __init__(self, run: TrackedRun) -> None:
        # Before its import: nothing is sent to its makers or printed, and newer versions accept a folder.
        for variable in ("DISABLE_TELEMETRY", "SUPPRESS_PRINTING_URL_TO_STDOUT", "ALLOW_FILE_STORE"):
            os.environ.setdefault(f"MLFLOW_{variable}", "true")
        from mlflow import MlflowClient, entities

        self._entities, self._takes_texts = entities, True
        self._client = client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
        project = run.setting("project", "MLFLOW_EXPERIMENT_NAME")
        experiment = client.get_experiment_by_name(project)
        where = experiment.experiment_id if experiment else client.create_experiment(project)
        found = client.search_runs([where], f"tags.`meds.run` = '{run.id}'", max_results=1)
        name, tags = run.setting("run_name"), {"meds.run": run.id}
        there = found[0] if found else client.create_run(where, run_name=name, tags=tags)
        self._id = there.info.run_id
        client.update_run(self._id, status="RUNNING")
        settings = {_REFUSED_BY_MLFLOW.sub("_", name): str(value) for name, value in flatten(run.config).items()}
        # What MLflow has cannot be changed.
        new = [entities.Param(name, value) for name, value in settings.items() if name not in there.data.params]
        client.log_batch(self._id, params=new)
        self.sent = {stream: int(there.data.tags.get(f"meds.sent.{stream}", -1)) for stream in STREAMS}

    def send(self, line: RunLine) -> None:
        if line.biggest_clusters and self._takes_texts:
            try:
                self._client.log_text(self._id, line.biggest_clusters, f"biggest_clusters/step_{line.step:06}.md")
            except Exception:  # whatever the artifact store's library raises; the metrics are sent without them
                logger.exception("MLflow: the texts of the largest clusters are not sent")
                self._takes_texts = False
        now = int(time.time() * 1000)
        named = {_REFUSED_BY_MLFLOW.sub("_", name): value for name, value in line.numbers.items()}
        metrics = [self._entities.Metric(name, value, now, line.step) for name, value in named.items()]
        sent = self._entities.RunTag(f"meds.sent.{line.stream}", str(line.step))
        self._client.log_batch(self._id, metrics=metrics, tags=[sent])

    def close(self) -> None:
        self._client.set_terminated(self._id)


def abandon() -> None:
    """End W&B's process if it has not ended, or this process would wait for it at its end."""
    if wandb := sys.modules.get("wandb"):
        end_family(_WANDB_PROCESSES, but=os.getpid())
        with suppress(Exception):  # of any kind: it has lost its process
            wandb.teardown()


# By package: the name for users, and the class.
TRACKERS: dict[str, tuple[str, Callable[[TrackedRun], Tracker]]] = {
    "tensorboard": ("TensorBoard", _TensorBoard),
    "wandb": ("W&B", _Wandb),
    "swanlab": ("SwanLab", _SwanLab),
    "mlflow": ("MLflow", _Mlflow),
}
