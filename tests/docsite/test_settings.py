"""What is made by `make settings` is what the schema and the catalogue of metrics say."""

import pytest

from docsite.settings import DOCS, PAGES, page


@pytest.mark.parametrize("name", PAGES)
def test_pages_have_the_tables_of_schema_and_catalogue(name: str) -> None:
    """`make settings` writes them."""
    assert (DOCS / name).read_text() == page(name)
