"""The lines that a run writes, as the trackers take them."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from meds_openrlhf.paths import RunPaths

STREAMS = ("metrics", "evaluations", "clusters")


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


class RunLines:
    """The complete lines of a run's files, each of them once."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = dict(zip(STREAMS, (paths.metrics, paths.evaluations, paths.clusters)))
        self._files: dict[str, BinaryIO] = {}

    def read_new(self) -> list[RunLine]:
        """Read the lines since the last call, sorted by step. Raises RuntimeError if the run was resumed meanwhile."""
        return sorted((line for stream in self._paths for line in self._next_of(stream)), key=lambda line: line.step)

    def _next_of(self, stream: str) -> Iterator[RunLine]:
        path = self._paths[stream]
        if stream not in self._files:
            if not path.exists():
                return
            self._files[stream] = path.open("rb")
        file = self._files[stream]
        if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise RuntimeError("the run was resumed, which replaces its files; they are read again from the start")
        while (line := file.readline()).endswith(b"\n"):
            values = json.loads(line)
            yield RunLine(stream, int(values.pop("step")), values)
        file.seek(-len(line), os.SEEK_CUR)  # the line is still being written
