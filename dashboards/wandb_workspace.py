"""The dashboard of runs at Weights & Biases, as code: the catalog's charts of training, pass@k, the biggest clusters.

    python -m dashboards.wandb_workspace --offline dashboard.json          # look at its specification, no network
    WANDB_API_KEY=... python -m dashboards.wandb_workspace --entity my-team --project my-project

Saves a workspace view of the project; saving again creates another view. The view shows every run of the project, so
log runs to the same project to compare them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.command_line import exit_code_of
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import write_atomically
from meds_openrlhf.runs.catalog import CHARTS, Chart
from meds_openrlhf.step_log import PASS_AT_K, UNANSWERED
from meds_openrlhf.tracking.trackers import AXIS, BIGGEST_CLUSTERS, PROJECT

if TYPE_CHECKING:
    import wandb_workspaces.workspaces as ws

NAME = "MEDS"  # of the view
MOST_RUNS = 20  # shown in a panel
EVALUATIONS = (("pass@k", f"eval/{PASS_AT_K.pattern}"), ("responses without an answer", f"eval/{UNANSWERED.pattern}"))


def make_dashboard(entity: str, project: str) -> ws.Workspace:
    """Build the workspace from W&B's own models; nothing is sent."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    sections: dict[str, list[Any]] = {}
    for chart in CHARTS:
        sections.setdefault(chart.group, []).extend(_plots(chart))
    for title, names in EVALUATIONS:
        sections["Reward"].append(wr.LinePlot(title=f"Evaluations: {title}", x=AXIS, metric_regex=names))  # type: ignore[attr-defined]
    sections["Biggest clusters"] = [wr.WeavePanelSummaryTable(table_name=BIGGEST_CLUSTERS)]  # type: ignore[attr-defined]
    return ws.Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=[ws.Section(name=title, panels=panels, is_open=True) for title, panels in sections.items()],
        settings=ws.WorkspaceSettings(x_axis=AXIS, max_runs=MOST_RUNS),
    )


def _plots(chart: Chart) -> list[Any]:
    """A panel with a line per run and metric; of a chart with hidden lines, which are many, a panel for each metric."""
    import wandb_workspaces.reports.v2 as wr

    panels = {chart.title: chart.metrics}
    if any(metric.hidden for metric in chart.metrics):
        panels = {f"{chart.title}: {metric.title}": [metric] for metric in chart.metrics}
    options = {"plot_type": "stacked-area" if chart.form == "stack" else None, "max_runs_to_show": MOST_RUNS}
    return [
        wr.LinePlot(title=title, x=AXIS, y=[f"train/{metric.name}" for metric in metrics], **options)  # type: ignore[attr-defined]
        for title, metrics in panels.items()
    ]


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


def publish(arguments: argparse.Namespace) -> None:
    """Write the file and print the panels, or save the view and print its address."""
    if arguments.offline is None and arguments.entity is None:
        raise ConfigError("--entity", None, "must be given. Name the user or team that owns the project.")
    dashboard = make_dashboard(arguments.entity or "", arguments.project)
    if arguments.offline is None:
        print(save(dashboard))
        return
    specified = dashboard._to_model().spec.model_dump_json(by_alias=True, exclude_none=True, indent=2)
    write_atomically(arguments.offline, specified + "\n")
    for section in dashboard.sections:
        print(f"{section.name}: {len(section.panels)} panels")


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    parser = argparse.ArgumentParser("python -m dashboards.wandb_workspace", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--entity", help="user or team at W&B that owns the project")
    parser.add_argument("--project", default=PROJECT, help="project at W&B (default: %(default)s, as for runs)")
    parser.add_argument("--offline", type=Path, metavar="FILE", help="write the specification to a JSON file instead")
    arguments = parser.parse_args(command_line)
    return exit_code_of(lambda: publish(arguments))


if __name__ == "__main__":
    sys.exit(main())
