"""The examples of a step's largest clusters as Markdown, for the trackers that show texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def clusters_as_markdown(clusters: Sequence[dict[str, Any]]) -> str:
    """Describe ``clusters``, the ``biggest_clusters`` of a line of ``clusters.jsonl``."""
    return "\n\n---\n\n".join(_as_markdown(cluster) for cluster in clusters)


def _as_markdown(cluster: dict[str, Any]) -> str:
    """Describe a cluster. Texts of models and data sets are code blocks, or the viewer would load images in them."""
    head = f"**size {cluster['size']}**, {cluster['members']} in this step, label {cluster['label']}"
    answer = "none" if cluster["answer"] is None else cluster["answer"]
    texts = [f"answer {answer}\nprompt {cluster['prompt']}", cluster.get("prompt_text"), cluster.get("response")]
    return "\n\n".join([head, *(_as_code(text) for text in texts if text is not None)])


def _as_code(text: str) -> str:
    """Indent a text as a code block, so that none of it is parsed as Markdown."""
    return "\n".join(f"    {line}" for line in text.splitlines())
