"""The tour: its code runs with the base installation alone, and prints what the committed notebook shows."""

import json
import shutil
from dataclasses import dataclass

import pytest

from tests.cli.base_installation import REPOSITORY, make_site, run_program

EXAMPLES = REPOSITORY / "examples"
CELLS = [cell for cell in json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
# The interpreter takes less time for so few rows than compiling does.
PROGRAM = """
import contextlib, io, json, os
os.environ.update(NUMBA_DISABLE_JIT="1", MPLBACKEND="agg")
names, printed = {}, []
for source in json.load(open("cells.json")):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        exec(source, names)
    printed.append(text.getvalue())
plt = names["plt"]
axes = [axes for number in plt.get_fignums() for axes in plt.figure(number).axes]
print(json.dumps([printed, [[one.get_xlabel(), one.get_ylabel()] for one in axes]]))
"""


@dataclass(frozen=True)
class Tour:
    """What every code cell printed, and the labels of every figure's axes."""

    printed: list[str]
    labels: list[list[str]]


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Tour:
    folder = tmp_path_factory.mktemp("tour")
    shutil.copytree(EXAMPLES / "tour_run", folder / "tour_run")
    (folder / "cells.json").write_text(json.dumps(["".join(cell["source"]) for cell in CELLS]))
    finished = run_program(make_site(tmp_path_factory.mktemp("site")), PROGRAM, folder)
    assert finished.returncode == 0, finished.stderr
    return Tour(*json.loads(finished.stdout))


def test_the_committed_outputs_are_what_the_cells_print(tour: Tour) -> None:
    streams = [[one for one in cell["outputs"] if one["output_type"] == "stream"] for cell in CELLS]
    assert {one["name"] for cell in streams for one in cell} == {"stdout"}
    assert ["".join("".join(one["text"]) for one in cell) for cell in streams] == tour.printed
    assert [cell["execution_count"] for cell in CELLS] == list(range(1, len(CELLS) + 1))


def test_every_axis_has_a_label_and_every_figure_is_committed(tour: Tour) -> None:
    figures = [one for cell in CELLS for one in cell["outputs"] if "image/png" in one.get("data", {})]
    assert len(figures) == len(tour.labels) == 2
    assert all(x and y for x, y in tour.labels)
    assert sum(file.stat().st_size for file in (EXAMPLES / "tour_run").rglob("*") if file.is_file()) < 150_000
    assert (EXAMPLES / "tour.ipynb").stat().st_size < 150_000
