"""Limits on what goes into a report; the page says what was left out."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the whole page; several runs share the limits of the first group."""

    prompts: int = 5_000  # with the biggest clusters
    rows: int = 2_000_000  # of these prompts
    detailed_clusters: int = 3_000  # the biggest clusters, with examples and a heatmap
    steps: int = 2_000  # points of a curve; more steps are averaged

    examples: int = 4  # per cluster
    example_characters: int = 3_000
    prompt_characters: int = 3_000
    answer_characters: int = 200
    heatmap_rows: int = 8  # members, and as many neighbours

    def shared_by(self, runs: int) -> Limits:
        """The limits of each of ``runs`` runs."""
        shared = ("prompts", "rows", "detailed_clusters")
        parts = {name: max(getattr(self, name) // runs, 1) for name in shared}
        return replace(self, **parts, steps=max(self.steps // runs, 200))
