"""The report of a small evaluation is what is stored in tests/evaluation/stored, digit by digit.

If a change is meant, this writes the files again: python -m tests.evaluation.test_stored_report
"""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from meds_openrlhf.evaluation.report import write_report
from meds_openrlhf.evaluation.results import BenchmarkResult
from meds_openrlhf.evaluation.settings import Settings
from tests.evaluation.measured import result

STORED = Path(__file__).parent / "stored"
FILES = ("report.md", "results.json", "table.csv", "table.md")


def _results() -> list[BenchmarkResult]:
    """Three models on two benchmarks, the last without the second; of the first benchmark there are more samples."""
    generator, found = random.Random(3), []
    for model, right in (("base", 2), ("dapo|1", 3), ("meds", 5)):
        for benchmark, problems, n in (("aime", 6, 12), ("minerva", 9, 6)):
            letters = ["".join(generator.choices("1234-", [right, 2, 2, 1, 1], k=n)) for _ in range(problems)]
            if (model, benchmark) != ("meds", "minerva"):
                found.append(result(model, benchmark, *letters))
    return found


def write(folder: Path) -> None:
    """Write the report, as `meds eval` does."""
    settings = {name: Settings(f"models/{name}", name, 1.0, 0.95, 7, 80, {}) for name in ("base", "dapo|1", "meds")}
    write_report(folder, _results(), settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("report")
    write(found)
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_report_is_what_is_stored(name: str, folder: Path) -> None:
    assert (folder / name).read_text() == (STORED / name).read_text()


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        write(Path(scratch))
        for file in FILES:
            (STORED / file).write_text((Path(scratch) / file).read_text())
