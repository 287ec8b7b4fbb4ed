"""W&B's dashboard as code: W&B's models take it, evaluations are found, and it is saved as one mutation."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from wandb_workspaces.workspaces.internal import WorkspaceViewspec

from dashboards.wandb_workspace import main
from meds_openrlhf.runs.catalog import CHARTS
from tests.http_server import JsonHandler, serving

KEY = "0123456789abcdef0123456789abcdef01234567"


def test_all_metrics_are_drawn_over_training_steps(
    tmp_path: Path,
) -> None:
    assert main(["--offline", str(tmp_path / "dashboard.json")]) == 0
    content = json.loads((tmp_path / "dashboard.json").read_text())
    again = WorkspaceViewspec.model_validate(content).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert again == content  # W&B's own models read it back
    panels = [panel for section in content["section"]["panelBankConfig"]["sections"] for panel in section["panels"]]
    shown = [panel["config"]["metrics"] for panel in panels if "metrics" in panel["config"]]
    names = [f"train/{metric.name}" for chart in CHARTS for metric in chart.metrics]
    assert [name for metrics in shown for name in metrics] == names
    assert ["train/meds/reward_raw", "train/meds/reward_shaped"] in shown
    assert ["train/meds/eigen_ratio_all"] in shown  # six lines of each of twenty runs could not be told apart
    areas = [panel["config"]["metrics"] for panel in panels if panel["config"].get("plotType") == "stacked-area"]
    parts = ("generation", "make_experience", "send", "ppo_train", "broadcast")
    assert areas == [[f"train/timing/{part}" for part in parts]]
    plots = [panel for panel in panels if panel["viewType"] == "Run History Line Plot"]
    assert len(plots) == len(panels) - 1  # the table
    assert {panel["config"]["xAxis"] for panel in plots} == {"train/global_step"}
    evaluations = [panel["config"] for panel in panels if "metricRegex" in panel["config"]]
    assert all(plot["useMetricRegex"] is True for plot in evaluations)
    pass_at_k, unanswered = (plot["metricRegex"] for plot in evaluations)
    assert re.fullmatch(pass_at_k, "eval/eval_arithmetic_pass16")
    assert re.fullmatch(unanswered, "eval/eval_arithmetic_unanswered_rate")
    assert not re.fullmatch(pass_at_k, "eval/eval_arithmetic_truncated_rate")


def test_without_a_key_nothing_is_saved(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert main(["--entity", "me"]) == 2
    assert capsys.readouterr().err.startswith("error: WANDB_API_KEY: is not set. Export your key")
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("error: --entity: must be given")


class Handler(JsonHandler):
    """W&B's GraphQL in as far as a view is saved; ``views`` are the variables of the mutations."""

    views: list[dict[str, Any]]
    status: list[int]

    def do_POST(self) -> None:
        asked = json.loads(self.body())
        if "upsertView" not in asked["query"]:
            viewer = {"id": "V", "entity": "me", "teams": None}
            return self.say(200, {"data": {"serverInfo": {"features": []}, "viewer": viewer}})
        self.views.append(asked["variables"])
        view = {"upsertView": {"view": {"id": "1", "name": "nw-abc-v"}, "inserted": True}}
        return self.say(self.status.pop(), {"data": view})


def test_it_is_saved_as_a_view_of_the_project(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, views = ["--entity", "me", "--project", "errors"], list[dict[str, Any]]()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with serving(Handler, views=views, status=[403, 200]) as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        assert main(command) == 0
        printed = capsys.readouterr()
        assert main(command) == 2
        refusal = capsys.readouterr()
    view = views[0]
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("me", "errors", "MEDS")
    assert re.search(r"/me/errors\?nw=abc\n", printed.out)
    assert "error: --project=me/errors: could not be saved at W&B" in refusal.err
    assert KEY not in printed.out + printed.err + refusal.out + refusal.err
