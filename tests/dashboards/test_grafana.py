"""Grafana's dashboard of the memory: its model, and that it asks for the gauges that the pool exports."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from meds_openrlhf.memory.pool import GAUGES
from tests.dashboards.grafana_schema import DASHBOARD

DASHBOARD_FILE = Path(__file__).parents[2] / "dashboards/grafana.json"
CONTENT = json.loads(DASHBOARD_FILE.read_text())
PANELS = [panel for panel in CONTENT["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_the_dashboard_is_one_of_grafanas() -> None:
    jsonschema.validate(CONTENT, DASHBOARD)


@pytest.mark.parametrize(
    ("field", "value"), [("schemaVersion", "39"), ("refresh", 30), ("panel", []), ("uid", "meds memory")]
)
def test_the_schema_refuses_what_grafana_does_not_know(field: str, value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**CONTENT, field: value}, DASHBOARD)


def test_every_gauge_of_the_memory_is_shown_and_no_other() -> None:
    asked = {name for query in QUERIES for name in re.findall(r"ray_\w+", query)}
    assert asked == {f"ray_{name}" for name in GAUGES}


@pytest.mark.parametrize("query", QUERIES)
def test_queries_take_the_newest_process_of_each_shard_and_the_chosen_runs(query: str) -> None:
    """Ray adds labels of the process: after a restart two series of one shard exist for a while."""
    inner = r'max by \(run, shard\) \(ray_meds_memory_\w+\{run=~"\$run"\}\)'
    assert re.fullmatch(rf"{inner}|(sum|max) by \(run\) \({inner}\)", query)


def test_legends_name_labels_that_the_query_leaves() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            left = re.match(r"\w+ by \(([^)]*)\)", target["expr"])
            assert left is not None
            assert named == set(left.group(1).split(", "))


def test_data_source_and_run_are_chosen_on_the_dashboard() -> None:
    source, run = CONTENT["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert (run["name"], run["query"]) == ("run", "label_values(ray_meds_memory_rows, run)")
    used = [panel["datasource"] for panel in PANELS]
    used += [target["datasource"] for panel in PANELS for target in panel["targets"]]
    assert {one["uid"] for one in (*used, run["datasource"])} == {"${datasource}"}


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in CONTENT["panels"]]
    assert len(set(ids)) == len(ids)
    cells: list[tuple[int, int]] = []
    for grid in (panel["gridPos"] for panel in CONTENT["panels"]):
        assert grid["x"] + grid["w"] <= 24
        cells += [(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])]
    assert len(set(cells)) == len(cells)


def test_units_fit_the_gauges() -> None:
    for panel in PANELS:
        unit = panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            (name,) = re.findall(r"ray_meds_memory_(\w+)", target["expr"])
            assert unit == ("bytes" if name == "bytes" else "s" if name.endswith("seconds") else "short")
