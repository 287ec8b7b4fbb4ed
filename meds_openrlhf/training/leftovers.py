"""Saves rollouts that were generated ahead of training, as tensors, texts and numbers only, for the next start."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from PIL.Image import Image

from meds_openrlhf.files import write_atomically


def save_leftovers(path: Path, experiences: list[Experience]) -> None:
    """Atomically write ``experiences`` to ``path``. Raises TypeError for a field that cannot be read back safely."""
    content = io.BytesIO()
    torch.save([{f.name: _plain(getattr(sample, f.name)) for f in fields(sample)} for sample in experiences], content)
    write_atomically(path, content.getvalue())


def load_leftovers(path: Path) -> list[Experience]:
    """Read a file that `save_leftovers` wrote, without executing code from it."""
    return [Experience(**values) for values in torch.load(path, map_location="cpu", weights_only=True)]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, bytes, torch.Tensor)):
        return value
    if isinstance(value, Image):
        encoded = io.BytesIO()
        value.save(encoded, "PNG")
        return encoded.getvalue()  # OpenRLHF also accepts images in this form
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise TypeError(f"a rollout holds a {type(value).__name__}, which no checkpoint can keep")
