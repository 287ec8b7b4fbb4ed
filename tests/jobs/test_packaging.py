"""What goes along with a job is what Ray packs, and is refused where a head would not take it."""

import zipfile
from pathlib import Path

import pytest
from ray._private import ray_constants
from ray._private.runtime_env.packaging import create_package

from meds_openrlhf.config import ConfigError
from meds_openrlhf.jobs import packaging
from meds_openrlhf.jobs.packaging import Package, readable_size, require_fit, survey


def fill(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("12345\n")


def test_what_is_said_is_what_ray_packs(tmp_path: Path) -> None:
    root = tmp_path / "work"
    fill(root, "run.yaml", "code/a.py", "code/runs/kept.txt", "data/small.jsonl", "big/x.bin", "code/note.tmp")
    fill(root, "runs/old/config.yaml", ".venv/lib/x.py", "env-3.11/pyvenv.cfg", "env-3.11/lib/y.py", ".env", "wandb/z")
    fill(root, "model/global_step50/weights.pt", "code/__pycache__/a.pyc", ".git/config")
    fill(root, "keys.env", "code/.env.local", "tls/head.pem", "tls/head.key", "id_rsa", "ssh/id_ed25519.pub", ".netrc")
    fill(root, "credentials", "code/credentials.json")
    (root / ".gitignore").write_text("*.tmp\n")
    (root / "big/.rayignore").write_text("*.bin\n")
    package = survey(root)
    expected = {".gitignore", "run.yaml", "code/a.py", "code/runs/kept.txt", "data/small.jsonl", "big/.rayignore"}
    assert set(package.files) == expected
    assert package.files["code/a.py"] == 6

    archive = tmp_path / "sent.zip"
    excludes = [*ray_constants.get_runtime_env_default_excludes(), *package.excludes]
    create_package(str(root), archive, include_gitignore=True, excludes=excludes)
    with zipfile.ZipFile(archive) as packed:
        names = {name for name in packed.namelist() if not name.endswith("/")}
    assert names == expected
    assert package.upload == archive.stat().st_size


def test_rays_switch_for_gitignore_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "a.tmp")
    (tmp_path / ".gitignore").write_text("*.tmp\n")
    monkeypatch.setenv("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")
    assert "a.tmp" in survey(tmp_path).files


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--working-dir: .*/nowhere' is no folder"):
        survey(tmp_path / "nowhere")


def test_too_large_names_what_weighs_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"data/raw/train.bin": 90_000_000, "data/note": 10, "old/a": 8_000_000, "old/b": 8_000_000, "run.yaml": 300}
    package = Package(tmp_path, files, ())
    assert package.biggest() == ["data/raw/train.bin (90.0 MB)", "old/ (16.0 MB)", "run.yaml (0.3 kB)"]
    with pytest.raises(ConfigError) as refused:
        require_fit(package)
    assert "would send 5 files, 106.0 MB, and Ray takes 104.9 MB" in str(refused.value)
    assert "the biggest are data/raw/train.bin (90.0 MB), old/ (16.0 MB), run.yaml (0.3 kB)" in str(refused.value)
    require_fit(Package(tmp_path, {"run.yaml": 300}, ()))
    monkeypatch.setattr(packaging, "LIMIT", 300)
    with pytest.raises(ConfigError, match="would send 1 files"):  # the archive is larger than its content
        require_fit(Package(tmp_path, {"run.yaml": 299}, ()))


@pytest.mark.parametrize(("size", "text"), [(0, "0.0 kB"), (2_500_000, "2.5 MB"), (3_000_000_000, "3.0 GB")])
def test_sizes(size: int, text: str) -> None:
    assert readable_size(size) == text
