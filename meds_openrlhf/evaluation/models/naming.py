"""Resolve a model's name on the command line: a run's trained policy or checkpoint, a folder, or a name on the hub.

This module imports nothing heavy and loads nothing, so that a wrong name fails immediately.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from meds_openrlhf.adapters import PEFT_CONFIG
from meds_openrlhf.checkpoints import whole_checkpoints
from meds_openrlhf.config import ConfigError, RunConfig, load_config
from meds_openrlhf.files import open_file
from meds_openrlhf.paths import MODEL_WRITTEN, RunPaths

T = TypeVar("T")

# Labels name folders and table rows.
LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,99}")
HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")
_LABELLED = re.compile(r"([^/=]+)=(.+)")
_AT_STEP = re.compile(r"(.+)@(\d{1,9})")
_HF_OF_A_STEP = re.compile(r"global_step(\d{1,9})_hf")
_EDGE_BYTES = 1 << 20


@dataclass(frozen=True)
class Model:
    """A model to sample from, named ``label`` in tables. Exactly one of ``folder``, ``shards`` and ``hub`` locates it.

    ``folder`` is in Hugging Face format; ``shards`` is a DeepSpeed checkpoint, which must first be converted to the
    shape of ``base``, the model that its run started from, with LoRA adapters of ``lora_alpha`` merged if it has some.
    """

    label: str
    folder: Path | None = None
    shards: Path | None = None
    base: str | None = None
    lora_alpha: float | None = None
    hub: str | None = None

    @property
    def source(self) -> str:
        """The model's location, for display."""
        return str(self.folder or self.shards or self.hub)


@dataclass(frozen=True)
class _Word:
    """``[LABEL=]NAME``, where NAME may be ``PATH@STEP``."""

    label: str | None
    name: str
    path: Path
    step: int | None

    @classmethod
    def parse(cls, word: str) -> _Word:
        labelled = _LABELLED.fullmatch(word)
        label, name = labelled.groups() if labelled else (None, word)
        if label is not None and not LABEL.fullmatch(label):
            raise ConfigError("MODEL", word, f"has the invalid label {label!r}. Use letters, digits and . _ @ + -")
        at_step = None if Path(name).is_dir() else _AT_STEP.fullmatch(name)
        path, step = (Path(at_step[1]), int(at_step[2])) if at_step else (Path(name), None)
        return cls(label, name, path, step)

    @property
    def is_run(self) -> bool:
        return RunPaths(self.path).config.is_file()

    @property
    def plain_label(self) -> str:
        """The folder's name as a label."""
        return re.sub(r"[^A-Za-z0-9_.@+-]", "-", self.path.absolute().name).lstrip(".-@+") or "model"


def find_models(words: Sequence[str]) -> list[Model]:
    """Resolve each of ``words``, ``[LABEL=]MODEL[@STEP]``.

    Raises ConfigError if a model does not exist or a label occurs twice.
    """
    models = [_find(_Word.parse(word)) for word in words]
    labels = [model.label for model in models]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError("MODEL", label, "is the label of two models. Choose other labels with LABEL=MODEL.")
    return models


def runs_among(words: Sequence[str]) -> dict[Path, RunConfig]:
    """The configurations of the runs among ``words``, by folder."""
    return {word.path: load_config(RunPaths(word.path).config) for word in map(_Word.parse, words) if word.is_run}


def agreed(runs: Mapping[Path, RunConfig], flag: str, setting: Callable[[RunConfig], T]) -> T | None:
    """What all runs were trained with; None without runs. Raises ConfigError about ``flag`` if they differ."""
    values = {path: setting(config) for path, config in runs.items()}
    if len(set(values.values())) > 1:
        each = ", ".join(f"{path}: {value!r}" for path, value in values.items())
        raise ConfigError(flag, None, f"must be given: the runs differ ({each}).")
    return next(iter(values.values()), None)


def response_length(config: RunConfig) -> int | None:
    """The most tokens of a response in training."""
    return config.openrlhf.get("rollout.max_new_tokens") or config.openrlhf.get("data.max_len")


def fingerprint_of(folder: Path) -> str:
    """A hash that identifies a model: of all files' names, sizes, and first and last MiB."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
        with open_file(path) as file:
            digest.update(file.read(_EDGE_BYTES))
            file.seek(max(file.tell(), path.stat().st_size - _EDGE_BYTES))
            digest.update(file.read())
    return digest.hexdigest()


def _find(word: _Word) -> Model:
    path = word.path
    if not path.is_dir():
        if word.name.startswith((".", "/", "~")) or not HUB_NAME.fullmatch(word.name):
            hint = f"does not exist (looked in {Path.cwd()}). Name a run, the folder of a model, or a model of the hub."
            raise ConfigError("MODEL", word.name, hint)
        return Model(word.label or word.name.rpartition("/")[2], hub=word.name)
    if not word.is_run:
        if word.step is not None:
            raise ConfigError("MODEL", word.name, f"names a step, but {path} is not a run: it has no config.yaml.")
        return _in_folder(word.label or word.plain_label, path)
    if word.step is None and RunPaths(path).model_complete.is_file():
        return _in_folder(word.label or word.plain_label, RunPaths(path).model)
    return _checkpoint_of(word)


def _in_folder(label: str, folder: Path) -> Model:
    if (folder / PEFT_CONFIG).is_file():
        hint = "contains only LoRA adapters. Merge them with PEFT's merge_and_unload."
        raise ConfigError("MODEL", str(folder), hint)
    if not (folder / "config.json").is_file():
        raise ConfigError("MODEL", str(folder), "is neither a run (config.yaml) nor a model (config.json).")
    return Model(label, folder=folder.absolute())


def _checkpoint_of(word: _Word) -> Model:
    """The checkpoint of its step, or the newest; OpenRLHF's Hugging Face folder (``ckpt.save_hf``) if there is one."""
    paths = RunPaths(word.path.absolute())
    folders = {
        int(match[1]): entry
        for entry in (sorted(paths.checkpoints.iterdir()) if paths.checkpoints.is_dir() else [])
        if (match := _HF_OF_A_STEP.fullmatch(entry.name)) and (entry / MODEL_WRITTEN).is_file()
    }
    # A regular checkpoint comes after the best checkpoint of the same step and so replaces it.
    shards = {whole.step: paths.policy_checkpoints / whole.tag for whole in whole_checkpoints(paths)}
    steps = sorted({*folders, *shards})
    wanted = steps[-1] if word.step is None and steps else word.step
    if wanted not in steps:
        hint = f"has no complete checkpoint of step {wanted}. Choose from {', '.join(map(str, steps))}."
        none = "has neither a trained model nor a complete checkpoint yet. Wait for its first checkpoint."
        raise ConfigError("MODEL", str(paths.root), hint if steps else none)
    name = word.label or f"{word.plain_label}@{wanted}"
    if wanted in folders:
        return _in_folder(name, folders[wanted])
    flags = load_config(paths.config).openrlhf
    lora_alpha = flags.get("ds.lora.alpha", 16) if flags.get("ds.lora.rank") else None  # OpenRLHF's default
    return Model(name, shards=shards[wanted], base=str(flags["actor.model_name_or_path"]), lora_alpha=lora_alpha)
