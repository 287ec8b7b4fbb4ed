"""Write a run's lines to TensorBoard's event files.

A session writes all curves from the start, so nothing has to be remembered: its first event makes viewers drop what
earlier sessions of the run have written, whose files it empties. (Viewers stumble over a file that is removed.)
"""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from meds_openrlhf.tracking.sending.destinations import names_of
from meds_openrlhf.tracking.sending.run_lines import RunLine
from meds_openrlhf.tracking.sending.sender import Session
from meds_openrlhf.tracking.sending.tracking_state import change_state


class TensorBoardSession(Session):
    """Writes the lines of a run to one event file."""

    _writer: EventFileWriter | None = None  # opened at the first line

    def send_new(self) -> bool:
        """See `Session`; raises OSError if the lines cannot be written."""
        lines = self._lines.read_new()
        if not lines:
            return False
        writer = self._writer or self._open()
        for line in lines:
            if values := _values_of(line):
                writer.add_event(Event(wall_time=time.time(), step=line.step, summary=Summary(value=values)))
        writer.flush()
        return True

    def finish(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> EventFileWriter:
        names = names_of("tensorboard", self._config, self._paths, self._environment)
        folder = Path(self._config.openrlhf.get("logger.tensorboard_dir") or self._paths.tensorboard) / names["name"]
        run_id = change_state(self._paths, lambda state: state).id  # the names of the run's files end with it
        earlier = list(folder.glob(f"events.out.tfevents.*.{run_id}"))
        self._writer = EventFileWriter(str(folder), filename_suffix=f".{run_id}")
        self._writer.add_event(Event(step=0, session_log=SessionLog(status=SessionLog.START)))
        self._writer.flush()
        for path in earlier:
            os.truncate(path, 0)
        return self._writer


def _values_of(line: RunLine) -> list[Any]:
    values = [Summary.Value(tag=name, simple_value=value) for name, value in line.numbers.items()]
    values += [Summary.Value(tag=name, histo=_histogram(**histogram)) for name, histogram in line.histograms.items()]
    if line.biggest_clusters:
        values += text_pb("train/biggest_clusters", [line.biggest_clusters]).value
    return values


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
