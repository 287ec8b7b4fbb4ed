"""The project's version stands in one place; whatever else must name it is held to it here."""

import re
from pathlib import Path

import tomllib
import yaml

from meds_openrlhf import __version__

REPOSITORY = Path(__file__).parents[1]


def test_the_package_alone_says_its_version() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "meds_openrlhf.__version__"}
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert not {"version", "date-released"} & citation.keys()


def test_the_newest_entry_of_the_changes_is_about_this_version() -> None:
    newest = re.search(r"^## (\S+), ", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == __version__


def test_the_image_is_tagged_with_it_everywhere() -> None:
    files = [path for folder in ("docs", "ray_jobs") for path in (REPOSITORY / folder).rglob("*") if path.is_file()]
    tags = {tag for path in files for tag in re.findall(r"meds-openrlhf:(\d[\w.]*)", path.read_text(errors="ignore"))}
    assert tags == {__version__}
