"""Nothing that a user or a run needs is replaced."""

import os
from pathlib import Path

import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.outputs import output_file, require_output, require_outputs, write_output


@pytest.fixture
def run(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    files = "config.yaml metrics.jsonl rollouts/000004.arrow memory/format.json memory/shard-0000/1.arrow"
    for name in files.split():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("precious")
    return root


@pytest.mark.parametrize(
    "name",
    [
        *("config.yaml", "metrics.jsonl", "rollouts/000004.arrow", "rollouts/new.arrow", "memory/new.arrow", ".lock"),
        *("memory/shard-0000/1.arrow", "tracking.json", "model/config.json", "checkpoints/x", "linked/config.yaml"),
    ],
)
def test_no_file_of_a_run_is_an_output(run: Path, name: str) -> None:
    (run.parent / "linked").symlink_to("run")
    target = run.parent / name if name.startswith("linked") else run / name
    with pytest.raises(ConfigError, match=r"^--out=.*: is (a file of the run|inside the memory) "):
        write_output(target, "gone", "--out")
    assert {path.read_text() for path in run.rglob("*") if path.is_file()} == {"precious"}


@pytest.mark.parametrize("name", ["report.html", "mine.jsonl", "notes/mine.html"])
def test_a_report_and_files_of_the_users_own_may_lie_in_a_run(run: Path, name: str) -> None:
    write_output(run / name, "old", "--out")
    write_output(run / name, "new", "--out")
    assert (run / name).read_text() == "new"


def test_what_is_no_file_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "target").write_text("precious")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "stream").symlink_to("/dev/stdout")
    if os.getuid() == 0:
        os.mknod(tmp_path / "device", 0o666 | 0o020000, os.makedev(1, 3))
    kinds = {path: path.lstat().st_mode for path in tmp_path.iterdir()}
    for path in kinds:
        if path.name != "target":
            with pytest.raises(ConfigError, match=r"is a folder|is not a file"):
                require_output(path, "--out")
            with pytest.raises(ConfigError), output_file(path, "--out") as file:
                file.write(b"gone")
    assert {path: path.lstat().st_mode for path in tmp_path.iterdir()} == kinds
    assert (tmp_path / "target").read_text() == "precious"


def test_a_file_has_one_output_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linked").symlink_to(".")
    for other in (tmp_path / "a.html", Path("b/../a.html"), Path("linked/a.html"), Path("a.html")):
        with pytest.raises(ConfigError, match="is named for two outputs"):
            require_outputs({"--out": Path("a.html"), "--json": other})
    require_outputs({"--out": Path("a.html"), "--json": Path("a.json"), "--markdown": None})
