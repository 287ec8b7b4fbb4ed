"""The table of settings is what the schema says."""

from docsite.settings import PAGE, page, table
from meds_openrlhf.config.loader import load_config
from tests.test_configs import CONFIGS


def test_the_page_has_the_table_of_the_schema() -> None:
    """`make settings` writes it."""
    assert PAGE.read_text() == page()


def test_every_setting_is_there_once_with_its_meaning() -> None:
    rows = [line.split(" | ") for line in table().splitlines()[2:]]
    names = [row[0].strip("| `") for row in rows]
    assert len(set(names)) == len(names) > 25
    assert all(len(row[2].strip(" |")) > 20 for row in rows)
    written = load_config(CONFIGS / "cpu" / "meds.yaml").as_yaml()
    assert all(name.rpartition(".")[2] in written for name in names)
