"""Write a run's lines to TensorBoard event files, without torch."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData
from tensorboard.summary.writer.record_writer import RecordWriter

from meds_openrlhf.tracking.sending.run_lines import STREAMS, RunLine, RunLines, numbers
from meds_openrlhf.tracking.sending.tracking_state import Positions, SentBackError, StateFile, TrackingState

AT_ONCE = 1000  # maximum lines of a stream between two updates of the stored position
_EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d+)\.")


class TensorboardSink:
    """Writes each new line exactly once from a viewer's perspective: lines that a new session repeats are replaced."""

    def __init__(self, folder: str, state: StateFile, lines: RunLines) -> None:
        self._folder, self._state, self._lines = Path(folder), state, lines
        before = state.read()
        self._times_sent_back = before.times_sent_back
        self._again, self._positions = self._where_to_begin(before)
        self._file: BinaryIO | None = None  # opened at the first new line
        self._folder.mkdir(parents=True, exist_ok=True)
        if before.tensorboard_again_from is not None:  # hides the later steps immediately
            self._open()

    def hand_new(self, last: bool = False) -> bool:
        """Write new lines; returns whether there were any."""
        new = {stream: self._lines.read(stream, self._positions.get(stream, 0), AT_ONCE) for stream in STREAMS}
        if not any(new.values()):
            return False
        if self._state.read().times_sent_back != self._times_sent_back:
            raise SentBackError  # these may be lines from before the resume
        file = self._file or self._open()
        for stream, lines in new.items():
            for line in lines:
                self._write(line.step, _SUMMARIES[stream](line))
            self._positions = {**self._positions, stream: self._positions.get(stream, 0) + len(lines)}
        file.flush()
        os.fsync(file.fileno())
        self._note()
        return True

    def finish(self) -> bool:
        """Close the file. Always returns True, because nothing is in transit."""
        if self._file is not None:
            self._file.close()
            self._note()
        return True

    def _open(self) -> BinaryIO:
        self._file = _new_event_file(self._folder)
        self._records = RecordWriter(self._file)
        self._add(Event(file_version="brain.Event:2"))
        if self._again is not None:
            self._add(Event(step=self._again, session_log=SessionLog(status=SessionLog.START)))
        return self._file

    def _where_to_begin(self, before: TrackingState) -> tuple[int | None, Positions]:
        """The first step that is written again, if any, and the number of lines of each stream before it.

        A killed session may have written lines after its last stored position, so those are written again.
        """
        if not _event_files(self._folder):  # a new folder or a renamed run gets everything
            return None, {}
        following = [self._lines.read(stream, before.tensorboard.get(stream, 0), 1) for stream in STREAMS]
        steps = [lines[0].step for lines in following if lines]
        if before.tensorboard_again_from is not None:
            steps.append(before.tensorboard_again_from)
        if not steps:
            return None, before.tensorboard
        again = min(steps)
        counts = {stream: self._lines.count_up_to(stream, again - 1) for stream in STREAMS}
        return again, {stream: min(counts[stream], before.tensorboard.get(stream, 0)) for stream in STREAMS}

    def _note(self) -> None:
        def noted(state: TrackingState) -> TrackingState:
            return replace(state, tensorboard=self._positions, tensorboard_again_from=None)

        self._state.change(noted, of=self._times_sent_back)

    def _write(self, step: int, values: list[Any]) -> None:
        if values:
            self._add(Event(step=step, summary=Summary(value=values)))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())


def _new_event_file(folder: Path) -> BinaryIO:
    """Create a file that sorts after all existing files: TensorBoard reads them by name, which starts with a time.

    Two sessions may start within a second, and the clocks of two machines may differ.
    """
    folder.mkdir(parents=True, exist_ok=True)
    newest = max(_event_files(folder), default=0)
    number = max(int(time.time()), newest + 1)
    return (folder / f"events.out.tfevents.{number:010d}.{socket.gethostname()}.{os.getpid()}").open("xb")


def _event_files(folder: Path) -> list[int]:
    """The time numbers of the existing event files."""
    if not folder.is_dir():
        return []
    matches = [_EVENT_FILE.match(path.name) for path in folder.iterdir()]
    return [int(match.group(1)) for match in matches if match]


def _metrics(line: RunLine) -> list[Any]:
    return [Summary.Value(tag=f"train/{name}", simple_value=value) for name, value in numbers(line).items()]


def _evaluation(line: RunLine) -> list[Any]:
    return [Summary.Value(tag=f"eval/{name}", simple_value=value) for name, value in numbers(line).items()]


def _clusters(line: RunLine) -> list[Any]:
    values = [
        Summary.Value(tag=f"train/{name}", histo=_histogram(one["edges"], one["counts"]))
        for name, one in line.values.get("histograms", {}).items()
        if one["counts"]
    ]
    if biggest := line.values.get("biggest_clusters"):
        values.append(_text("train/biggest_clusters", "\n\n---\n\n".join(_as_markdown(one) for one in biggest)))
    return values


_SUMMARIES: dict[str, Callable[[RunLine], list[Any]]] = {
    "metrics": _metrics,
    "evaluations": _evaluation,
    "clusters": _clusters,
}


def _histogram(edges: list[float], counts: list[float]) -> HistogramProto:
    """Convert k counts between k + 1 edges; the sums assume values in the middle of their bins."""
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    return HistogramProto(
        min=edges[0],
        max=edges[-1],
        num=sum(counts),
        sum=sum(middle * count for middle, count in zip(middles, counts)),
        sum_squares=sum(middle**2 * count for middle, count in zip(middles, counts)),
        bucket_limit=edges,  # an empty bin below the first edge: TensorBoard's bins are open to the left
        bucket=[0, *counts],
    )


def _text(tag: str, text: str) -> Summary.Value:
    plugin = SummaryMetadata.PluginData(plugin_name="text", content=TextPluginData(version=0).SerializeToString())
    tensor = TensorProto(
        dtype="DT_STRING",
        string_val=[text.encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)


def _as_markdown(cluster: dict[str, Any]) -> str:
    """Describe a cluster. Texts of models and data sets are code blocks, or the viewer would load images in them."""
    head = f"**size {cluster['size']}**, {cluster['members']} in this step, label {cluster['label']}"
    answer = "none" if cluster["answer"] is None else cluster["answer"]
    texts = [f"answer {answer}\nprompt {cluster['prompt']}", cluster.get("prompt_text"), cluster.get("response")]
    return "\n\n".join([head, *(_as_code(text) for text in texts if text is not None)])


def _as_code(text: str) -> str:
    """Indent a text as a code block, so that none of it is parsed as Markdown."""
    return "\n".join(f"    {line}" for line in text.splitlines())
