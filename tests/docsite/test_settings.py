"""What is made by `make settings` is what the schema and the catalogue of metrics say."""

import pytest

from docsite.settings import DOCS, PAGES, page, table
from meds_openrlhf.config.loader import load_config
from tests.test_configs import CONFIGS


@pytest.mark.parametrize("name", PAGES)
def test_pages_have_the_tables_of_schema_and_catalogue(name: str) -> None:
    """`make settings` writes them."""
    assert (DOCS / name).read_text() == page(name)


def test_every_setting_is_there_once_with_its_meaning() -> None:
    rows = [line.split(" | ") for line in table().splitlines()[2:]]
    names = [row[0].strip("| `") for row in rows]
    assert len(set(names)) == len(names) > 25
    assert all(len(row[2].strip(" |")) > 20 for row in rows)
    written = load_config(CONFIGS / "cpu" / "meds.yaml").as_yaml()
    assert all(name.rpartition(".")[2] in written for name in names)
