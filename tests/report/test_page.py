"""The file as it is written: its policy, its data, and what hostile texts can do to its markup."""

import base64
import gzip
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.report import Limits, write_report
from tests.report.stored_runs import write_config, write_run


def unpacked(html: str, name: str) -> Any:
    (content,) = re.findall(f'<script type="text/plain" id="{name}">([A-Za-z0-9+/=]*)</script>', html)
    return json.loads(gzip.decompress(base64.b64decode(content)))


def test_scripts_and_styles_are_allowed_by_their_hashes_and_nothing_else_is(tmp_path: Path) -> None:
    html = write_report([write_run(tmp_path / "run").root], tmp_path / "r.html").read_text()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    script = html[html.rindex("<script>") + 8 : html.rindex("</script>")]
    style = html[html.index("<style>") + 7 : html.index("</style>")]
    coded = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in (script, style)]
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{coded[0]}'; style-src 'sha256-{coded[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert "innerHTML" not in script
    assert "</script" not in script
    assert not re.search(r"\b(src|href)=[\"']?(https?:)?//", html)


def test_runs_share_the_limits_and_have_details_of_their_own(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name).root for name in ("one", "two")]
    html = write_report(runs, tmp_path / "r.html", Limits(detailed_clusters=2)).read_text()
    assert [run["atlas"]["detailed"] for run in unpacked(html, "core")["runs"]] == [1, 1]
    for name in ("details-0", "details-1"):
        assert {place: list(one["clusters"]) for place, one in unpacked(html, name).items()} == {"0": ["0"]}


def test_a_resumed_and_filtered_run_says_when_it_began_and_what_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_config(run, **{"algo.dynamic_filtering_enable": True})
    run.tracking.write_text("{}")
    os.utime(run.tracking, (0, 0))
    facts = unpacked(write_report([run.root], run.report).read_text(), "core")["runs"][0]
    assert facts["started"] == "1970-01-01T00:00:00+00:00"
    assert facts["filtered"] is True


@pytest.mark.parametrize(
    ("run", "output", "problem"),
    [
        ("run", "", "--out=.: is a folder. Name a file"),
        ("run", "/proc/x.html", "cannot be written"),
        ("run", "x" * 300, "cannot be written"),
        ("run/config.yaml", "r.html", r"config\.yaml: is a file\. Name the folder of a run"),
        ("nowhere", "r.html", r"nowhere: does not exist\. Name the folder of a run"),
    ],
)
def test_a_run_that_is_no_folder_and_an_output_that_is_one_are_named(
    tmp_path: Path, run: str, output: str, problem: str
) -> None:
    write_run(tmp_path / "run")
    with pytest.raises(ConfigError, match=problem):
        write_report([tmp_path / run], Path(output))
