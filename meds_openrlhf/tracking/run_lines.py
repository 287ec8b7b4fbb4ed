"""Read the lines that a run writes, for the trackers."""

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
        if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise RuntimeError("the run was resumed, which replaces its files; they are read again from the start")
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]  # the next line may still be being written
        file.seek(len(whole) - len(content), os.SEEK_CUR)
        for values in map(json.loads, whole.splitlines()):
            yield RunLine(stream, int(values.pop("step")), values)


def _as_markdown(cluster: dict[str, Any]) -> str:
    """Describe a cluster. Texts of models and data sets are code blocks, or the viewer would load images in them."""
    head = f"**size {cluster['size']}**, {cluster['members']} in this step, label {cluster['label']}"
    answer = "none" if cluster["answer"] is None else cluster["answer"]
    texts = [f"answer {answer}\nprompt {cluster['prompt']}", cluster.get("prompt_text"), cluster.get("response")]
    return "\n\n".join([head, *(textwrap.indent(text, "    ", lambda _: True) for text in texts if text)])
