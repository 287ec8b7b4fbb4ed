"""Read the lines that a run writes, for the trackers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from meds_openrlhf.paths import RunPaths

AT_ONCE = 1000  # maximum lines of a stream per call

Positions = dict[str, int]  # by stream: how many of its lines


class RewoundError(Exception):
    """The run was resumed, which cuts its files: read them from the start."""


@dataclass(frozen=True)
class RunLine:
    """A line of a stream (metrics, evaluations or clusters): its training step and its other values."""

    stream: str
    step: int
    values: dict[str, Any]

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers, including NaN and infinities, which the user needs to see.

        Their names are those of OpenRLHF's loggers: ``train/NAME``, and ``eval/NAME`` of evaluations.
        """
        prefix = "eval" if self.stream == "evaluations" else "train"
        return {f"{prefix}/{name}": value for name, value in self.values.items() if isinstance(value, (int, float))}

    @property
    def histograms(self) -> dict[str, dict[str, list[float]]]:
        """The histograms of a line of clusters, each with k ``counts`` and k + 1 ``edges``; empty ones are left out."""
        histograms = self.values.get("histograms", {})
        return {f"train/{name}": histogram for name, histogram in histograms.items() if histogram["counts"]}

    @property
    def biggest_clusters(self) -> str | None:
        """The examples of the step's largest clusters as Markdown, for the trackers that show texts."""
        clusters = self.values.get("biggest_clusters")
        return "\n\n---\n\n".join(_as_markdown(cluster) for cluster in clusters) if clusters else None


class RunLines:
    """The complete lines of a run's streams after ``positions``, each of them once."""

    def __init__(self, paths: RunPaths, positions: Mapping[str, int]) -> None:
        self._paths = {"metrics": paths.metrics, "evaluations": paths.evaluations, "clusters": paths.clusters}
        self._files: dict[str, BinaryIO] = {}
        self._first = positions
        self.positions: Positions = {}  # what was read

    def read_new(self) -> list[RunLine]:
        """Read the next lines, sorted by step. Raises RewoundError if the run has cut its files."""
        self.check_files()
        lines = [line for stream in self._paths for line in self._next_of(stream)]
        return sorted(lines, key=lambda line: line.step)

    def check_files(self) -> None:
        """Raise RewoundError if a file was replaced: an open file keeps its inode, its replacement has another one."""
        for stream, file in self._files.items():
            try:
                there, opened = self._paths[stream].stat(), os.fstat(file.fileno())
            except FileNotFoundError:
                raise RewoundError from None
            if (there.st_dev, there.st_ino) != (opened.st_dev, opened.st_ino):
                raise RewoundError

    def _next_of(self, stream: str) -> Iterator[RunLine]:
        if stream not in self._files:
            try:
                file = self._paths[stream].open("rb")
            except FileNotFoundError:
                return
            self._files[stream] = file
            # A file that was cut has fewer lines than were sent; all that follow are new.
            self.positions[stream] = sum(1 for _ in self._texts(stream, self._first.get(stream, 0)))
        for text in self._texts(stream, AT_ONCE):
            values = json.loads(text)
            self.positions[stream] += 1
            yield RunLine(stream, int(values.pop("step")), values)

    def _texts(self, stream: str, most: int) -> Iterator[bytes]:
        file = self._files[stream]
        for _ in range(most):
            start = file.tell()
            text = file.readline()
            if not text.endswith(b"\n"):  # still being written
                file.seek(start)
                return
            yield text


def _as_markdown(cluster: dict[str, Any]) -> str:
    """Describe a cluster. Texts of models and data sets are code blocks, or the viewer would load images in them."""
    head = f"**size {cluster['size']}**, {cluster['members']} in this step, label {cluster['label']}"
    answer = "none" if cluster["answer"] is None else cluster["answer"]
    texts = [f"answer {answer}\nprompt {cluster['prompt']}", cluster.get("prompt_text"), cluster.get("response")]
    return "\n\n".join([head, *(_as_code(text) for text in texts if text is not None)])


def _as_code(text: str) -> str:
    """Indent a text as a code block, so that none of it is parsed as Markdown."""
    return "\n".join(f"    {line}" for line in text.splitlines())
