"""Packages that only some commands need: what to install where they are missing."""

from __future__ import annotations

import importlib.util

# By command; the base installation has what the others need.
EXTRAS = {**dict.fromkeys(("train", "eval", "plan", "demo", "data"), "gpu"), "submit": "submit", "track": "track"}


def require_installed(package: str) -> None:
    """Raise ModuleNotFoundError, as its import would, where the package is missing; nothing is imported."""
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def missing_extra(command: str, error: ModuleNotFoundError) -> str | None:
    """What to install so that ``command`` works; None where the error is not about an extra's package."""
    package = (error.name or "").partition(".")[0]
    if command not in EXTRAS or package in ("", "meds_openrlhf"):
        return None
    extra = EXTRAS[command]
    otherwise = "; without a GPU: `make setup` in a clone of the project" if extra == "gpu" else ""
    return f"{command} needs {package}, which is not installed; pip install 'meds-openrlhf[{extra}]'{otherwise}"
