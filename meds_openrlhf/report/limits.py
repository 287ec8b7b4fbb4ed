"""Limits on what goes into a report; the page says what was left out."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the whole page; several runs share the limits of the first group.

    Details (examples and heatmaps) are cut short if they would make the file larger than ``page_bytes``.
    """

    prompts: int = 5_000  # with the biggest clusters
    rows: int = 2_000_000  # of these prompts
    listed_clusters: int = 20_000  # the biggest clusters
    detailed_clusters: int = 3_000  # the biggest clusters, with examples and a heatmap
    page_bytes: int = 19_000_000
    steps: int = 2_000  # points of a curve; more steps are averaged

    examples: int = 4  # per cluster
    example_characters: int = 3_000
    prompt_characters: int = 3_000
    answer_characters: int = 200
    heatmap_rows: int = 8  # members, and as many neighbours

    def shared_by(self, runs: int) -> Limits:
        """The limits of each of ``runs`` runs."""
        shared = ("prompts", "rows", "listed_clusters", "detailed_clusters", "page_bytes")
        parts = {name: max(getattr(self, name) // runs, 1) for name in shared}
        return replace(self, **parts, steps=max(self.steps // runs, 200))
