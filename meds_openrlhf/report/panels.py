"""The panels of curves and the metrics in each. Only metrics that some run has are drawn."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

_EIGEN_RATIOS = [
    (f"meds/eigen_ratio_{right}{span}", f"{'right' if right else 'wrong'}, {span}")
    for right in ("", "right_")
    for span in ("step", "window", "all")
]
_PASS = re.compile(r"eval_(?P<source>.+)_pass(?P<k>\d+)")
_UNANSWERED = re.compile(r"eval_(?P<source>.+)_unanswered_rate")
_SKIPPED = re.compile(r"rollout/num_samples|eval_num_samples|generated_samples")


@dataclass(frozen=True)
class Panel:
    """A chart: ``series`` are metrics and their names in the legend.

    ``form``: "lines" or "stack" (parts of a whole, a chart for each run). ``source``: "steps" or "evaluations".
    ``unit``: "" for plain numbers, "share", "bytes", "s" or "ms". ``group``: the heading above the chart. ``off``: the
    metrics that are hidden until the reader switches them on.
    """

    group: str
    title: str
    series: list[tuple[str, str]]
    unit: str = ""
    form: str = "lines"
    source: str = "steps"
    hint: str = ""
    off: list[str] = field(default_factory=list)


KNOWN = [
    Panel("Reward", "Reward", [("meds/reward_raw", "raw"), ("meds/reward_shaped", "shaped")]),
    Panel("Reward", "Reward of the rollouts", [("rollout/reward_mean", "mean"), ("rollout/reward_std", "deviation")]),
    Panel("Reward", "Accuracy (pass@1 of the rollouts)", [("meds/accuracy", "accuracy")], "share"),
    Panel(
        "Diversity",
        "Top-1 eigen ratio",
        _EIGEN_RATIOS,
        hint="Share of the variance along one line. Near 1 rollouts vary in one way only; lower is more diverse.",
        off=[name for name, _ in _EIGEN_RATIOS if not name.endswith("step")],
    ),
    Panel("Penalty", "Mean penalty", [("meds/penalty_mean", "mean penalty")]),
    Panel("Penalty", "Rollouts penalized", [("meds/penalized_share", "share")], "share"),
    Panel("Penalty", "Effect of the penalties within groups", [("meds/penalty_effect", "of the variance")], "share"),
    Panel("Policy", "Entropy", [("policy_entropy", "of the rollouts"), ("entropy_loss", "during the updates")]),
    Panel("Policy", "KL", [("kl", "to the reference"), ("ppo_kl", "to the policy that sampled")]),
    Panel("Policy", "Policy loss", [("policy_loss", "loss")]),
    Panel("Policy", "Gradient norm", [("actor_grad_norm", "norm")]),
    Panel("Policy", "Response length, tokens", [("rollout/response_length_mean", "mean")]),
    Panel(
        "Policy",
        "Responses cut off, and without an answer",
        [("rollout/truncated_rate", "cut off"), ("rollout/unanswered_rate", "without an answer")],
        "share",
        hint="A response without an answer has no place in the memory, so no penalty reaches it.",
    ),
    Panel("Memory", "Rows and prompts", [("meds/rows", "rows"), ("meds/prompts", "prompts")]),
    Panel("Memory", "Clusters", [("meds/clusters", "clusters")]),
    Panel("Memory", "Noise among stored rows", [("meds/noise_share", "share")], "share"),
    Panel("Memory", "Size on disk", [("meds/bytes", "bytes")], "bytes"),
    Panel(
        "Time",
        "Time of a step",
        [
            ("timing/generation", "generation"),
            ("timing/make_experience", "experience"),
            ("timing/ppo_train", "training"),
            ("timing/broadcast", "weight sync"),
        ],
        "s",
        "stack",
    ),
    Panel(
        "Time",
        "The memory's own time",
        [
            (f"meds/time_{name}_ms", title)
            for name, title in (
                ("recording", "recording"),
                ("assign", "labelling"),
                ("append", "storing"),
                ("cluster", "clustering (aside)"),
                ("wait", "waiting"),
            )
        ],
        "ms",
        hint="Clustering runs beside training; only waiting for it costs time.",
    ),
]


def panels_of(steps: set[str], evaluations: set[str]) -> list[Panel]:
    """The panels with data, given the names of all runs' metrics; known panels come first."""
    found = [_with(panel, [series for series in panel.series if series[0] in steps]) for panel in KNOWN]
    found = [panel for panel in found if panel.series]
    drawn = {name for panel in found for name, _ in panel.series}
    at = next((i for i, panel in enumerate(found) if panel.group != "Reward"), len(found))
    others = sorted(name for name in steps - drawn if not _SKIPPED.fullmatch(name))
    found[at:at] = _of_evaluations(evaluations)
    rest = [Panel("All other metrics", name, [(name, name)]) for name in others]
    passes = {name for name in evaluations if any(kind.fullmatch(name) for kind in (_PASS, _UNANSWERED, _SKIPPED))}
    rest += [Panel("All other metrics", n, [(n, n)], source="evaluations") for n in sorted(evaluations - passes)]
    return found + rest


def _of_evaluations(names: set[str]) -> list[Panel]:
    """A panel with pass@k for each evaluated data set, and one with all their shares without an answer."""
    by_source: dict[str, list[int]] = {}
    for name in names:
        match = _PASS.fullmatch(name)
        if match:
            by_source.setdefault(match["source"], []).append(int(match["k"]))
    unanswered = [(name, match["source"]) for name in sorted(names) if (match := _UNANSWERED.fullmatch(name))]
    title = "Responses without an answer in evaluations"
    shares = [Panel("Reward", title, unanswered, "share", source="evaluations")] if unanswered else []
    return shares + [
        Panel(
            "Reward",
            f"pass@k on {source}",
            [(f"eval_{source}_pass{k}", f"pass@{k}") for k in sorted(ks)],
            "share",
            source="evaluations",
        )
        for source, ks in sorted(by_source.items())
    ]


def _with(panel: Panel, series: list[tuple[str, str]]) -> Panel:
    """The panel with only ``series``; if all of them would be off, all are on."""
    off = [name for name, _ in series if name in panel.off]
    return replace(panel, series=series, off=off if len(off) < len(series) else [])
