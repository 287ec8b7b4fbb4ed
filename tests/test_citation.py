"""Every way to cite the paper says the same."""

import re
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]
PAGES = [
    page for page in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")) if "@article" in page.read_text()
]


def test_a_page_has_it() -> None:
    assert REPOSITORY / "docs/method.md" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_entry_is_that_of_the_citation_file(page: Path) -> None:
    paper = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())["preferred-citation"]
    (entry,) = re.findall(r"@article\{\w+,\n(.*?)\n\}", page.read_text(), re.DOTALL)
    fields = {name: " ".join(value.split()) for name, value in re.findall(r"(\w+)\s*= \{(.*?)\}", entry, re.DOTALL)}
    authors = [f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]]
    assert fields == {
        "title": paper["title"], "author": " and ".join(authors), "year": str(paper["year"]), "url": paper["url"],
    }  # fmt: skip
    assert len(authors) == 9
