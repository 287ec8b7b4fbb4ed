"""The dashboard as code: what it refers to exists, W&B's models take it, and it is saved as one mutation."""

import gzip
import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from wandb_workspaces.workspaces.internal import WorkspaceViewspec

from dashboards.wandb_workspace import (
    AXIS,
    BIGGEST_CLUSTERS,
    PASS_AT_K,
    UNANSWERED,
    main,
    make_dashboard,
    specification,
)
from meds_openrlhf.tracking.rollout_log import ROLLOUT_SCHEMA
from meds_openrlhf.tracking.rollout_recorder import cluster_line
from meds_openrlhf.tracking.trackers import AXIS as LOGGED_AXIS
from meds_openrlhf.tracking.trackers import BIGGEST_CLUSTERS as TABLE_NAME

ROOT = Path(__file__).parents[2]
KEY = "0123456789abcdef0123456789abcdef01234567"


def panels_of(specified: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for section in specified["section"]["panelBankConfig"]["sections"] for panel in section["panels"]]


@pytest.fixture(scope="module")
def panels() -> list[dict[str, Any]]:
    return panels_of(specification(make_dashboard("me", "meds")))


def logged_by_openrlhf() -> set[str]:
    """Names of timings in the source of its trainer: `status["timing/generation"]` and so on."""
    spec = find_spec("openrlhf")
    assert spec is not None
    assert spec.submodule_search_locations
    trainer = Path(spec.submodule_search_locations[0]) / "trainer" / "ppo_trainer.py"
    return set(re.findall(r'status\["([a-z_/]+)"\]', trainer.read_text()))


def documented(name: str) -> bool:
    """Whether docs/metrics.md has the name, or one that ends with `*` for all, window and step."""
    patterns = re.findall(r"`([\w/]+\*?)`", (ROOT / "docs/metrics.md").read_text())
    spans = (pattern[:-1] + span for pattern in patterns if pattern.endswith("*") for span in ("all", "window", "step"))
    return name in {*patterns, *spans}


def histograms() -> set[str]:
    """What a step of penalized rollouts gives W&B histograms of."""
    amounts = {"reward": 0.0, "shaped_reward": -0.1, "penalty": 0.1, "label": 0, "cluster_size": 2, "tokens": 1}
    texts = {"prompt": "p", "prompt_text": "p", "response": "r"}
    row = {"step": 1, "sample": 0, **texts, "correct": False, **amounts, "truncated": False}
    return set(cluster_line(pa.Table.from_pylist([row], ROLLOUT_SCHEMA))["histograms"])


def test_every_metric_is_one_that_is_logged(panels: list[dict[str, Any]]) -> None:
    metrics = {metric for panel in panels for metric in panel["config"].get("metrics", ())}
    assert len(metrics) > 20
    assert {metric.split("/")[0] for metric in metrics} == {"train"}
    logged = logged_by_openrlhf() | histograms()
    names = sorted(metric.removeprefix("train/") for metric in metrics)
    assert [name for name in names if name not in logged and not documented(name)] == []
    assert BIGGEST_CLUSTERS == TABLE_NAME


def test_what_the_dashboard_is_for_is_on_it(panels: list[dict[str, Any]]) -> None:
    shown = [panel["config"]["metrics"] for panel in panels if "metrics" in panel["config"]]
    assert ["train/meds/eigen_ratio_all"] in shown
    assert ["train/meds/reward_raw", "train/meds/reward_shaped"] in shown
    assert ["train/meds/penalized_share"] in shown
    assert ["train/meds/cluster_sizes"] in shown
    assert ["train/meds/rows"] in shown
    areas = [panel["config"]["metrics"] for panel in panels if panel["config"].get("plotType") == "stacked-area"]
    assert areas[0] == [
        "train/timing/generation",
        "train/timing/make_experience",
        "train/timing/ppo_train",
        "train/timing/broadcast",
    ]


def test_every_plot_is_over_training_steps(panels: list[dict[str, Any]]) -> None:
    plots = [panel for panel in panels if panel["viewType"] == "Run History Line Plot"]
    assert len(plots) == len(panels) - 1  # the table
    assert {panel["config"]["xAxis"] for panel in plots} == {AXIS} == {LOGGED_AXIS}


def test_evaluations_of_any_source_are_found(panels: list[dict[str, Any]]) -> None:
    plots = [panel for panel in panels if "metricRegex" in panel["config"]]
    assert all(plot["config"]["useMetricRegex"] is True for plot in plots)
    assert [plot["config"]["metricRegex"] for plot in plots] == [PASS_AT_K, UNANSWERED]
    assert re.fullmatch(PASS_AT_K, "eval/eval_arithmetic_pass16")
    assert re.fullmatch(UNANSWERED, "eval/eval_arithmetic_unanswered_rate")
    assert not re.fullmatch(PASS_AT_K, "eval/eval_arithmetic_truncated_rate")
    assert "`eval_SOURCE_pass1`" in (documented := (ROOT / "docs/metrics.md").read_text())
    assert "`eval_SOURCE_unanswered_rate`" in documented


def test_wandbs_own_models_read_the_file_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "dashboard.json"
    assert main(["--offline", str(target)]) == 0
    assert "Step time: 4 panels" in capsys.readouterr().out
    content = json.loads(target.read_text())
    again = WorkspaceViewspec.model_validate(content).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert again == content


def test_without_a_key_nothing_is_saved(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert main(["--entity", "me"]) == 2
    assert capsys.readouterr().err.startswith("error: WANDB_API_KEY: is not set. Export your key")
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("error: --entity: must be given")


class Server(ThreadingHTTPServer):
    """W&B's GraphQL in as far as a view is saved; ``saved`` are the mutation's variables."""

    saved: list[dict[str, Any]]
    refuses = False


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        content = json.loads(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
        data: dict[str, Any] = {"serverInfo": {"features": []}, "viewer": {"id": "V", "entity": "me", "teams": None}}
        if "upsertView" in content["query"]:
            self.server.saved.append(content["variables"])
            data = {"upsertView": {"view": {"id": "1", "name": "nw-abc-v"}, "inserted": True}}
        answer = json.dumps({"data": data}).encode()
        refused = self.server.refuses and "upsertView" in content["query"]
        self.send_response(403 if refused else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as http:
        http.saved = []
        Thread(target=http.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{http.server_port}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield http
        http.shutdown()


def test_it_is_saved_as_a_view_of_the_project(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--entity", "me", "--project", "errors", "--name", "Ours"]) == 0
    (saved,) = server.saved
    assert (saved["entityName"], saved["projectName"], saved["displayName"]) == ("me", "errors", "Ours")
    assert len(panels_of(json.loads(saved["spec"]))) == 25
    printed = capsys.readouterr()
    assert re.search(r"/me/errors\?nw=abc\n", printed.out)
    assert KEY not in printed.out + printed.err


def test_a_refusal_is_one_line_without_the_key(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.refuses = True
    assert main(["--entity", "me", "--project", "errors"]) == 2
    printed = capsys.readouterr()
    assert "error: --project=me/errors: could not be saved at W&B" in printed.err
    assert KEY not in printed.out + printed.err
