"""The dashboard of runs at Weights & Biases, as code: eigen ratios, penalties, rewards, pass@k, memory, step times.

    python -m dashboards.wandb_workspace --offline dashboard.json          # look at its specification, no network
    WANDB_API_KEY=... python -m dashboards.wandb_workspace --entity my-team --project my-project

Saves a workspace view of the project; saving again creates another view. The view shows every run of the project, so
log runs to the same project to compare them. The names of the metrics are those of docs/metrics.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.command_line import exit_code_of
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import write_atomically
from meds_openrlhf.tracking.trackers import PROJECT

if TYPE_CHECKING:
    import wandb_workspaces.workspaces as ws

AXIS = "train/global_step"
NAME = "MEDS"
MOST_RUNS = 20  # shown in a panel
PASS_AT_K = r"eval/eval_.*_pass[0-9]+"
UNANSWERED = r"eval/eval_.*_unanswered_rate"

# Sections with their panels as (title, metrics, style of the lines); all metrics are under `train/` at W&B.
SECTIONS: tuple[tuple[str, tuple[tuple[str, tuple[str, ...], str | None], ...]], ...] = (
    (
        "Do errors look alike?",
        (
            ("Top-1 eigen ratio, all errors so far", ("meds/eigen_ratio_all",), None),
            ("Top-1 eigen ratio, last steps", ("meds/eigen_ratio_window",), None),
            ("Top-1 eigen ratio, this step", ("meds/eigen_ratio_step",), None),
        ),
    ),
    (
        "Penalties",
        (
            ("Share of rollouts that are penalized", ("meds/penalized_share",), None),
            ("Mean penalty", ("meds/penalty_mean",), None),
            ("Effect of the penalties within groups", ("meds/penalty_effect",), None),
            ("Sizes of the clusters that rollouts fell into", ("meds/cluster_sizes",), None),
            ("Penalties", ("meds/penalties",), None),
        ),
    ),
    (
        "Rewards",
        (
            ("Reward, raw and shaped", ("meds/reward_raw", "meds/reward_shaped"), None),
            ("Accuracy", ("meds/accuracy",), None),
            ("Entropy of the policy", ("policy_entropy",), None),
            ("Share of responses without an answer", ("rollout/unanswered_rate",), None),
        ),
    ),
    (
        "Memory",
        (
            ("Rows", ("meds/rows",), None),
            ("Rows of this step", ("meds/rows_step",), None),
            ("Prompts", ("meds/prompts",), None),
            ("Bytes", ("meds/bytes",), None),
            ("Clusters", ("meds/clusters",), None),
            ("Share of noise", ("meds/noise_share",), None),
        ),
    ),
    (
        "Step time",
        (
            (
                "Where a step's seconds go",
                ("timing/generation", "timing/make_experience", "timing/ppo_train", "timing/broadcast"),
                "stacked-area",
            ),
            ("Seconds of a step", ("timing/step_total",), None),
            (
                "The memory's part, ms",
                ("meds/time_recording_ms", "meds/time_assign_ms", "meds/time_append_ms", "meds/time_wait_ms"),
                "stacked-area",
            ),
            ("Clustering, beside the training, ms", ("meds/time_cluster_ms",), None),
        ),
    ),
)
BIGGEST_CLUSTERS = "train/biggest_clusters"


def make_dashboard(entity: str, project: str, name: str = NAME) -> ws.Workspace:
    """Build the workspace from W&B's own models; nothing is sent."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    sections = [
        ws.Section(name=title, panels=[_plot(*panel) for panel in panels], is_open=True) for title, panels in SECTIONS
    ]
    rewards = next(section for section in sections if section.name == "Rewards")
    for title, names in (("pass@k", PASS_AT_K), ("responses without an answer", UNANSWERED)):
        rewards.panels.append(wr.LinePlot(title=f"Evaluations: {title}", x=AXIS, metric_regex=names))  # type: ignore[attr-defined]
    table = wr.WeavePanelSummaryTable(table_name=BIGGEST_CLUSTERS)  # type: ignore[attr-defined]
    sections.append(ws.Section(name="Biggest clusters", panels=[table], is_open=True))
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=sections,
        settings=ws.WorkspaceSettings(x_axis=AXIS, max_runs=MOST_RUNS),
    )


def specification(dashboard: ws.Workspace) -> dict[str, Any]:
    """The dashboard in W&B's storage format."""
    specified: dict[str, Any] = json.loads(dashboard._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))
    return specified


def save(dashboard: ws.Workspace) -> str:
    """Save the dashboard to W&B as a new view and return its address.

    Raises ConfigError if there is no key or W&B refuses; messages never contain the key.
    """
    if not os.environ.get("WANDB_API_KEY"):
        raise ConfigError("WANDB_API_KEY", None, "is not set. Export your key, or write a file with --offline FILE.")
    import wandb
    from wandb.apis.normalize import normalize_exceptions

    try:
        normalize_exceptions(dashboard.save_as_new_view)()  # turns network errors into wandb.Error
        return str(dashboard.url)
    except wandb.Error as error:
        place = f"{dashboard.entity}/{dashboard.project}"
        hint = f"could not be saved at W&B ({type(error).__name__}). Check the project, your key and WANDB_BASE_URL."
        raise ConfigError("--project", place, hint) from error


def _plot(title: str, metrics: tuple[str, ...], style: str | None) -> Any:
    """A panel over training steps, with a line per run and metric."""
    import wandb_workspaces.reports.v2 as wr

    names = [f"train/{metric}" for metric in metrics]
    options = {"plot_type": style, "max_runs_to_show": MOST_RUNS}
    return wr.LinePlot(title=title, x=AXIS, y=names, **options)  # type: ignore[attr-defined]


def parse_arguments(command_line: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    summary = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m dashboards.wandb_workspace", description=summary)
    parser.add_argument("--entity", help="user or team at W&B that owns the project")
    parser.add_argument("--project", default=PROJECT, help="project at W&B; default: %(default)s, as for runs")
    parser.add_argument("--name", default=NAME, help="of the view; default: %(default)s")
    parser.add_argument("--offline", type=Path, metavar="FILE", help="write the specification as JSON, save nothing")
    return parser.parse_args(command_line)


def publish(arguments: argparse.Namespace) -> None:
    """Write the file and print the panels, or save the view and print its address."""
    if arguments.offline is not None:
        dashboard = make_dashboard(arguments.entity or "", arguments.project, arguments.name)
        write_atomically(arguments.offline, json.dumps(specification(dashboard), indent=2) + "\n")
        for section in dashboard.sections:
            print(f"{section.name}: {len(section.panels)} panels")
        return
    if arguments.entity is None:
        raise ConfigError("--entity", None, "must be given. Name the user or team that owns the project.")
    print(save(make_dashboard(arguments.entity, arguments.project, arguments.name)))


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    arguments = parse_arguments(command_line)
    return exit_code_of(lambda: publish(arguments))


if __name__ == "__main__":
    sys.exit(main())
