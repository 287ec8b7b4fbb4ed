"""The project's version and the paper's citation stand in one place; whatever else names them is held to it here."""

import re
from pathlib import Path

import tomllib
import yaml

from meds_openrlhf import __version__

REPOSITORY = Path(__file__).parents[1]
CITATION = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())


def test_the_package_alone_says_its_version_and_the_changes_begin_with_it() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "meds_openrlhf.__version__"}
    assert not {"version", "date-released"} & CITATION.keys()
    newest = re.search(r"^## (\S+), ", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == __version__
    files = [path for folder in ("docs", "ray_jobs") for path in (REPOSITORY / folder).rglob("*") if path.is_file()]
    tags = {tag for path in files for tag in re.findall(r"meds-openrlhf:(\d[\w.]*)", path.read_text(errors="ignore"))}
    assert tags == {__version__}  # of the image


def test_every_way_to_cite_the_paper_says_the_same() -> None:
    paper = CITATION["preferred-citation"]
    authors = [f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]]
    expected = {name: str(paper[name]) for name in ("title", "year", "url")} | {"author": " and ".join(authors)}
    pages = "\n".join(page.read_text() for page in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")))
    entries = re.findall(r"@article\{\w+,\n(.*?)\n\}", pages, re.DOTALL)
    for entry in entries:
        fields = re.findall(r"(\w+)\s*= \{(.*?)\}", entry, re.DOTALL)
        assert {name: " ".join(value.split()) for name, value in fields} == expected
    assert entries
    assert len(authors) == 9
