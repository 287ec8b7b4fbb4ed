"""`make release`: when it refuses, and that both of its files are complete and work."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from meds_openrlhf import __version__
from scripts.release import build, missing_in, refusal, try_out

DATED = f"# Changes\n\n## {__version__}, 2026-11-23\n\nThe first version.\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("dist"))


def test_what_is_not_ready_is_refused() -> None:
    assert refusal(DATED, "") is None
    assert refusal(DATED, " M README.md\n") == "the working tree has changes that are not committed:\n M README.md"
    wanted = f"CHANGELOG.md has no line `## {__version__}, YYYY-MM-DD`"
    assert refusal(DATED.replace("2026-11-23", "not released"), "") == wanted
    assert refusal(DATED.replace(f"## {__version__}", "## 0.0.9"), "") == wanted


@pytest.mark.needs("setuptools")
def test_both_files_are_complete(files: tuple[Path, Path]) -> None:
    wheel, source = files
    assert wheel.name == f"meds_openrlhf-{__version__}-py3-none-any.whl"
    assert source.name == f"meds_openrlhf-{__version__}.tar.gz"
    assert missing_in(wheel, source) == []


@pytest.mark.needs("setuptools")
def test_what_is_missing_is_named(files: tuple[Path, Path], tmp_path: Path) -> None:
    poor = tmp_path / "poor.whl"
    with ZipFile(files[0]) as wheel, ZipFile(poor, "w") as rest:
        for name in wheel.namelist():
            text = wheel.read(name)
            if name.endswith("METADATA"):
                text = text.replace(b"text/markdown", b"text/plain")
            if name != "meds_openrlhf/report/assets/style.css":
                rest.writestr(name, text)
    assert missing_in(poor, files[1]) == [
        "wheel: meds_openrlhf/report/assets/style.css",
        "wheel: the version or the README in its metadata",
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [0, 1], ids=["wheel", "source"])
def test_an_installation_of_it_works(files: tuple[Path, Path], number: int) -> None:
    assert try_out(files[number]) == []
