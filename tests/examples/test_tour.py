"""The tour: its code runs with the extras that it names, and prints what the committed notebook shows."""

import json
import shutil
from pathlib import Path

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


@pytest.mark.needs("numba")
def test_committed_outputs_are_what_the_cells_print(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "tour_run", tmp_path / "tour/tour_run")
    (tmp_path / "tour/cells.json").write_text(json.dumps(["".join(cell["source"]) for cell in CELLS]))
    (tmp_path / "site").mkdir()
    finished = run_program(make_site(tmp_path / "site", "atlas", "eval"), PROGRAM, tmp_path / "tour")
    assert finished.returncode == 0, finished.stderr
    printed, labels = json.loads(finished.stdout)
    streams = [[one for one in cell["outputs"] if one["output_type"] == "stream"] for cell in CELLS]
    assert {one["name"] for cell in streams for one in cell} == {"stdout"}
    assert ["".join("".join(one["text"]) for one in cell) for cell in streams] == printed
    assert [cell["execution_count"] for cell in CELLS] == list(range(1, len(CELLS) + 1))
    figures = [one for cell in CELLS for one in cell["outputs"] if "image/png" in one.get("data", {})]
    assert len(figures) == len(labels) == 2
    assert all(x and y for x, y in labels)
