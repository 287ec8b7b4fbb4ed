"""What `make settings` writes, and that Grafana's dashboard asks for the gauges that the pool exports."""

import json
import re
from pathlib import Path

import pytest

from docsite.settings import GRAFANA, files
from meds_openrlhf.memory.pool import GAUGES

CONTENT = json.loads(GRAFANA.read_text())
PANELS = [panel for panel in CONTENT["panels"] if panel["type"] != "row"]
TARGETS = [(panel, target) for panel in PANELS for target in panel["targets"]]


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_what_is_made_from_schema_and_catalog_is_up_to_date(path: Path) -> None:
    """`make settings` writes it."""
    assert path.read_text() == files()[path]


def test_every_gauge_of_the_memory_is_shown_in_its_unit_and_no_other() -> None:
    assert {name for _, target in TARGETS for name in re.findall(r"ray_(\w+)", target["expr"])} == set(GAUGES)
    for panel, target in TARGETS:
        (name,) = re.findall(r"ray_meds_memory_(\w+)", target["expr"])
        unit = "bytes" if name == "bytes" else "s" if name.endswith("seconds") else "short"
        assert panel["fieldConfig"]["defaults"]["unit"] == unit


def test_queries_take_the_newest_process_of_each_shard() -> None:
    """Ray adds labels of the process: after a restart two series of one shard exist for a while."""
    inner = r'max by \(run, shard\) \(ray_meds_memory_\w+\{run=~"\$run"\}\)'
    for _, target in TARGETS:
        assert re.fullmatch(rf"{inner}|(sum|max) by \(run\) \({inner}\)", target["expr"])
        left = re.findall(r"\w+", target["expr"].partition("(")[2].partition(")")[0])
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == set(left)
