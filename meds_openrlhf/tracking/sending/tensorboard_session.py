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

from meds_openrlhf.tracking.sending.cluster_text import clusters_as_markdown
from meds_openrlhf.tracking.sending.run_lines import RunLine, RunLines
from meds_openrlhf.tracking.sending.sender import Session


class TensorBoardSession(Session):
    """Writes the lines of a run to one event file in ``folder``. ``own``: the end of the names of the run's files."""

    def __init__(self, folder: str, own: str, lines: RunLines) -> None:
        self._folder, self._own, self._lines = Path(folder), own, lines
        self._writer: EventFileWriter | None = None  # opened at the first line

    def send_new(self) -> bool:
        """Write new lines; returns whether there were any. Raises OSError if they cannot be written."""
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
        earlier = list(self._folder.glob(f"events.out.tfevents.*.{self._own}"))
        self._writer = EventFileWriter(str(self._folder), filename_suffix=f".{self._own}")
        self._writer.add_event(Event(step=0, session_log=SessionLog(status=SessionLog.START)))
        self._writer.flush()
        for path in earlier:
            os.truncate(path, 0)
        return self._writer


def _values_of(line: RunLine) -> list[Any]:
    if line.stream == "clusters":
        histograms = {name: one for name, one in line.values.get("histograms", {}).items() if one["counts"]}
        values = [Summary.Value(tag=f"train/{name}", histo=_histogram(**one)) for name, one in histograms.items()]
        if biggest := line.values.get("biggest_clusters"):
            values += text_pb("train/biggest_clusters", [clusters_as_markdown(biggest)]).value
        return values
    return [Summary.Value(tag=name, simple_value=value) for name, value in line.named_numbers.items()]


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
