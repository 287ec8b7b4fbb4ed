"""Packages that only some commands need, and what to install if they are missing."""

from __future__ import annotations

import importlib.util

from meds_openrlhf.config.errors import how_to_install

# The extra that each command needs; the other commands need only the base installation.
EXTRAS = {
    **dict.fromkeys(("train", "eval", "plan", "doctor", "demo", "data"), "gpu"),
    "track": "track",
    "atlas": "atlas",
    "report": "judge",
}
# Packages of trackers that not everyone uses, each the extra of its name.
TRACKERS = ("swanlab", "mlflow")


def require_installed(package: str) -> None:
    """Raise ModuleNotFoundError, as an import would, if the package is missing; nothing is imported."""
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def missing_extra(command: str, error: ModuleNotFoundError) -> str | None:
    """What to install so that ``command`` works; None if the error is not about an extra's package."""
    package = (error.name or "").partition(".")[0]
    if command not in EXTRAS or package in ("", "meds_openrlhf"):
        return None
    extra = package if package in TRACKERS else EXTRAS[command]
    return f"{command} needs {package}, which is not installed; {how_to_install(extra)}"
