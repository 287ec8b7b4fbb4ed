"""TensorBoard, Weights & Biases, SwanLab and MLflow: which of them a run uses, and how each takes the run's lines.

Each class opens the run at its tracker, in every session the same run, by its id. The packages are imported by then,
because that takes seconds and may fail.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Protocol

import yaml

from meds_openrlhf.config import load_config
from meds_openrlhf.config.loader import flatten
from meds_openrlhf.files import write_atomically
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.runtime.processes import MARK, end_family
from meds_openrlhf.tracking.redaction import described, redacted
from meds_openrlhf.tracking.run_lines import STREAMS, RunLine

PROJECT = "openrlhf_train_ppo"  # OpenRLHF's default
# The environment of a run that is sent to no server.
NOWHERE = {"WANDB_MODE": "disabled", "SWANLAB_MODE": "disabled", "MLFLOW_TRACKING_URI": ""}
AXIS = "train/global_step"  # not W&B's own step, which counts records
BIGGEST_CLUSTERS = "train/biggest_clusters"  # a text, in W&B a table
_WANDB_PROCESSES = uuid.uuid4().hex  # marks them


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


class TrackedRun:
    """What trackers need of a run; ``say`` shows a line to the user. Raises ConfigError."""

    def __init__(self, paths: RunPaths, say: Callable[[str], None]) -> None:
        self.paths, self.say, self.flags = paths, say, load_config(paths.config).openrlhf
        self.id = _stored_id(paths)
        self.name = self.setting("run_name", default=paths.root.name)
        self.config = redacted(yaml.safe_load(paths.config.read_text(encoding="utf-8")), os.environ)  # to be shown

    def setting(self, flag: str, variable: str = "", default: str | None = None) -> Any:
        """The value of the tracker's own ``variable``, else of ``--logger.wandb.FLAG``, else the default."""
        return os.environ.get(variable) or self.flags.get(f"logger.wandb.{flag}") or default


def _stored_id(paths: RunPaths) -> str:
    """The run's id at all trackers; a new run gets the environment's or a random one."""
    with suppress(FileNotFoundError, ValueError, LookupError, TypeError):
        return str(json.loads(paths.tracking.read_text(encoding="utf-8"))["id"])
    run_id = os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:12]
    write_atomically(paths.tracking, json.dumps({"id": run_id}) + "\n")
    return run_id


class Tracker(Protocol):
    """A session: ``sent`` is the last step of each stream that it has already; `close` waits for the rest to arrive."""

    @property
    def sent(self) -> Mapping[str, int]: ...  # noqa: D102

    def send(self, lines: list[RunLine]) -> None: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


class _TensorBoard:
    """Writes all curves in each session; its first event makes viewers drop what earlier sessions have written."""

    sent: ClassVar[Mapping[str, int]] = {}

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # torch's writer would load torch

        folder = Path(run.flags.get("logger.tensorboard_dir") or run.paths.tensorboard) / run.name
        earlier = list(folder.glob(f"events.out.tfevents.*.{run.id}"))
        self._writer = EventFileWriter(str(folder), filename_suffix=f".{run.id}")
        self._writer.add_event(Event(step=0, session_log=SessionLog(status=SessionLog.START)))
        self._writer.flush()
        for path in earlier:  # emptied, because viewers stumble over a file that is removed
            os.truncate(path, 0)

    def send(self, lines: list[RunLine]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.histogram_pb2 import HistogramProto
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb

        for line in lines:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in line.numbers.items()]
            for name, histogram in line.histograms.items():
                values.append(Summary.Value(tag=name, histo=HistogramProto(**_histogram(**histogram))))
            if line.biggest_clusters:
                values += text_pb(BIGGEST_CLUSTERS, [line.biggest_clusters]).value
            self._writer.add_event(Event(wall_time=time.time(), step=line.step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _histogram(edges: list[float], counts: list[float]) -> dict[str, Any]:
    """Convert k counts between k + 1 edges; the sums assume values in the middle of their bins."""
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    return {
        "min": edges[0],
        "max": edges[-1],
        "num": sum(counts),
        "sum": sum(middle * count for middle, count in zip(middles, counts)),
        "sum_squares": sum(middle**2 * count for middle, count in zip(middles, counts)),
        "bucket_limit": edges,  # an empty bin below the first edge: TensorBoard's bins are open to the left
        "bucket": [0, *counts],
    }


class _Wandb:
    """Hands lines to W&B's own process, which uploads them; offline, each session's file has all lines.

    The run's summary at W&B says which lines it has.
    """

    def __init__(self, run: TrackedRun) -> None:
        os.environ.update(WANDB_SILENT="true")  # a setting would come too late for its login
        import wandb

        self._teardown = wandb.teardown  # else its process would end with this one
        run.paths.root.joinpath("wandb").mkdir(exist_ok=True)
        os.environ[MARK] = _WANDB_PROCESSES
        try:
            self._run = wandb.init(
                id=run.id,
                resume="allow",
                name=run.setting("run_name", "WANDB_NAME", run.paths.root.name),
                project=run.setting("project", "WANDB_PROJECT", PROJECT),
                group=run.setting("group", "WANDB_RUN_GROUP"),
                entity=run.setting("org", "WANDB_ENTITY"),
                dir=os.environ.get("WANDB_DIR") or str(run.paths.root),
                config=run.config,
                # x_disable_meta: the command line may have a key.
                settings=wandb.Settings(console="off", disable_code=True, disable_git=True, x_disable_meta=True),
            )
        except Exception as error:  # of any kind: without this, the client calls the next try's run "in use"
            wandb.teardown()
            if type(error).__name__ == "ValidationError":  # its message shows the values, which may include a key
                raise ValueError("its client refuses its settings; check the WANDB_* variables") from None
            raise
        self._run.define_metric(AXIS)
        for names in ("train/*", "eval/*"):
            self._run.define_metric(names, step_metric=AXIS)
        self.sent = {stream: self._run.summary.get(f"sent/{stream}", -1) for stream in STREAMS}

    def send(self, lines: list[RunLine]) -> None:
        import wandb

        for line in lines:
            record: dict[str, Any] = {**line.numbers, AXIS: line.step}
            if line.stream == "evaluations":
                record["eval/global_step"] = line.step
            for name, histogram in line.histograms.items():
                record[name] = wandb.Histogram(np_histogram=(histogram["counts"], histogram["edges"]))
            if biggest := line.values.get("biggest_clusters"):
                shown = ("label", "size", "members", "answer", "response")
                rows = [[line.step, c.get("prompt_text") or c["prompt"], *(c[name] for name in shown)] for c in biggest]
                record[BIGGEST_CLUSTERS] = wandb.Table(["step", "prompt", *shown], rows)
            self._run.log(record)
            self._run.summary[f"sent/{line.stream}"] = line.step

    def close(self) -> None:
        self._run.finish()
        self._teardown()


class _SwanLab:
    """Takes all lines in each session; its client asks SwanLab which steps it has, and leaves these out."""

    sent: ClassVar[Mapping[str, int]] = {}

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
        self._run = swanlab.init(
            id=run.id,
            resume="allow",
            name=run.setting("run_name", "SWANLAB_EXP_NAME", run.paths.root.name),
            project=run.setting("project", "SWANLAB_PROJ_NAME", PROJECT),
            group=run.setting("group", "SWANLAB_GROUP"),
            config=run.config,
            log_dir=str(run.paths.root / "swanlab"),
            settings=settings,
        )
        self._text = swanlab.Text

    def send(self, lines: list[RunLine]) -> None:
        for line in lines:
            texts = {BIGGEST_CLUSTERS: self._text(line.biggest_clusters)} if line.biggest_clusters else {}
            if record := {**line.numbers, **texts}:
                self._run.log(record, step=line.step)

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    """Sends to a server, or writes files to a folder. The run there is found by a tag, and so is what it has."""

    def __init__(self, run: TrackedRun) -> None:
        # Read by MLflow when it is imported: nothing is sent to its makers, and newer versions accept a folder.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._say, self._has_texts = run.say, True
        self._client = client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
        project = run.setting("project", "MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = client.get_experiment_by_name(project)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(project)
        found = client.search_runs([experiment_id], f"tags.`meds.run` = '{run.id}'", max_results=1)
        there = found[0] if found else client.create_run(experiment_id, run_name=run.name, tags={"meds.run": run.id})
        self._id = there.info.run_id
        client.update_run(self._id, status="RUNNING")
        settings = {_mlflow_name(name): str(value) for name, value in flatten(run.config).items()}
        parameters = [Param(name, value) for name, value in settings.items() if name not in there.data.params]
        for some in _parts(parameters, 100):  # MLflow's limit; what it has cannot be changed
            client.log_batch(self._id, params=some)
        tags = there.data.tags.items()
        self.sent = {name.removeprefix("meds.sent."): int(step) for name, step in tags if name.startswith("meds.sent.")}

    def send(self, lines: list[RunLine]) -> None:
        from mlflow.entities import Metric, RunTag

        now = int(time.time() * 1000)
        numbers = [(_mlflow_name(name), value, line.step) for line in lines for name, value in line.numbers.items()]
        for some in _parts(numbers, 1000):  # MLflow's limit
            self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value, step in some])
        for line in lines:
            self._send_text(line)
        last = {line.stream: line.step for line in lines}
        self._client.log_batch(self._id, tags=[RunTag(f"meds.sent.{name}", str(step)) for name, step in last.items()])

    def _send_text(self, line: RunLine) -> None:
        """Send the largest clusters as an artifact, whose store may be out of reach where the metrics are not."""
        if line.biggest_clusters and self._has_texts:
            try:
                self._client.log_text(self._id, line.biggest_clusters, f"biggest_clusters/step_{line.step:06}.md")
            except Exception as error:  # whatever the store's library raises
                self._has_texts = False
                self._say(f"MLflow: the texts of the largest clusters are not sent: {described(error)}")

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _mlflow_name(name: str) -> str:
    return re.sub(r"[^/\w.\- :]", "_", name)


def _parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


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
