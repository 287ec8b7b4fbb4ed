"""The files of the working folder that Ray will pack for a job, determined before anything is sent.

Ray copies the folder to every node and runs the job there. Ray's own code selects the files, here as in the upload, so
that the report matches the upload. It applies the user's .gitignore and .rayignore, and `EXCLUDES`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ray._private import ray_constants
from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

from meds_openrlhf.config import ConfigError

# Runs, caches and keys, which no job reads from its copy. Patterns as in .gitignore.
EXCLUDES = (
    *("/runs", "/wandb", "/checkpoints", "/ckpt", "global_step*"),
    *("*.env", ".env.*", ".netrc", "credentials*", "*.pem", "*.key", "id_rsa*", "id_ed25519*"),
    *("*.egg-info", "*.pyc", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".ipynb_checkpoints"),
    *("node_modules", ".tox", ".nox"),
)
# Maximum size of a request body that a head's dashboard accepts.
LIMIT = ray_constants.DASHBOARD_CLIENT_MAX_SIZE
_ZIP_ENTRY, _ZIP_END = 30 + 46, 22  # bytes in addition to each file's content and name (stored twice)
_SILENT = logging.Logger("silent", logging.CRITICAL)


@dataclass(frozen=True)
class Package:
    """The files of ``root`` that are sent."""

    root: Path
    files: dict[str, int]  # path below root, with slashes -> bytes
    excludes: tuple[str, ...]  # patterns to hand to Ray, so that it packs the same

    @property
    def content(self) -> int:
        """Total size of the files in bytes."""
        return sum(self.files.values())

    @property
    def upload(self) -> int:
        """Size of the archive in bytes; Ray does not compress it."""
        return _ZIP_END + sum(size + _ZIP_ENTRY + 2 * len(name.encode()) for name, size in self.files.items())

    def missing(self, path: str) -> str | None:
        """A file at or below ``path`` that is not sent, or None if all files are sent."""
        entry = self.root / path
        files = (file for file in entry.rglob("*") if file.is_file()) if entry.is_dir() else iter([entry])
        names = (file.relative_to(self.root).as_posix() for file in files)
        return next((name for name in names if name not in self.files), None)

    def biggest(self, count: int = 3) -> list[str]:
        """The largest entries of the folder, e.g. ``data/raw/ (1.2 GB)``, the largest first."""
        entries = sorted(self._entries(""), key=self._weight, reverse=True)
        return [f"{entry} ({readable_size(self._weight(entry))})" for entry in map(self._heart, entries[:count])]

    def _heart(self, entry: str) -> str:
        """The deepest entry below ``entry`` with nearly all of its bytes, the best candidate for .rayignore."""
        while entry.endswith("/"):
            heaviest = max(self._entries(entry), key=self._weight)
            if self._weight(heaviest) < 0.9 * self._weight(entry):
                break
            entry = heaviest
        return entry

    def _entries(self, folder: str) -> set[str]:
        below = (name[len(folder) :].partition("/") for name in self.files if name.startswith(folder))
        return {folder + first + slash for first, slash, _ in below}

    def _weight(self, entry: str) -> int:
        return sum(size for name, size in self.files.items() if name == entry or _is_below(name, entry))


def _is_below(name: str, entry: str) -> bool:
    return entry.endswith("/") and name.startswith(entry)


def survey(root: Path) -> Package:
    """Find the files of ``root`` that Ray will pack. Raises ConfigError if ``root`` is not a folder."""
    if not root.is_dir():
        raise ConfigError("--working-dir", str(root), "is no folder; name the one that holds CONFIG and your code")
    root = root.absolute()
    excludes = (*EXCLUDES, *_virtual_environments(root))
    files: dict[str, int] = {}

    def note(path: Path) -> None:
        if path.is_file():
            files[path.relative_to(root).as_posix()] = path.stat().st_size

    everywhere = _get_excludes(root, [*ray_constants.get_runtime_env_default_excludes(), *excludes])
    obey_gitignore = os.environ.get(ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1"
    _dir_travel(root, [everywhere], note, include_gitignore=obey_gitignore, logger=_SILENT)
    return Package(root, files, excludes)


def _virtual_environments(root: Path) -> Iterator[str]:
    """Patterns of virtual environments, which can have any name but always contain this file."""
    for entry in sorted(root.iterdir()):
        if (entry / "pyvenv.cfg").is_file():
            yield f"/{entry.name}"


def require_fit(package: Package) -> None:
    """Raise ConfigError, naming the largest entries, if the package exceeds `LIMIT`."""
    if package.upload >= LIMIT:
        raise ConfigError(
            "--working-dir",
            str(package.root),
            f"would send {len(package.files)} files, {readable_size(package.content)}, and Ray takes "
            f"{readable_size(LIMIT)}; the biggest are {', '.join(package.biggest())}: list in .rayignore what the job "
            "does not need, and keep data and models on storage that every node sees, named from the root",
        )


def readable_size(size: int) -> str:
    """Format a number of bytes in kB, MB or GB, e.g. ``2_500_000`` as ``"2.5 MB"``."""
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6)):
        if size >= bytes_:
            return f"{size / bytes_:.1f} {unit}"
    return f"{size / 1e3:.1f} kB"
