"""Resolve a model's name on the command line: a run's trained policy or checkpoint, a folder, or a name on the hub.

This module imports nothing heavy and loads nothing, so that a wrong name fails immediately.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meds_openrlhf.adapters import PEFT_CONFIG
from meds_openrlhf.checkpoints import whole_checkpoints
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.paths import RunPaths

if TYPE_CHECKING:
    from meds_openrlhf.config import RunConfig

# Labels name folders and table rows.
LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,99}")
HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")
_LABELLED = re.compile(r"([^/=]+)=(.+)")
_AT_STEP = re.compile(r"(.+)@(\d+)")
_HF_OF_A_STEP = re.compile(r"global_step(\d+)_hf")
# The last file that OpenRLHF writes into a model's folder, after the weights.
_LAST_WRITTEN = "tokenizer_config.json"
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


def find_models(words: Sequence[str], step: int | None = None) -> list[Model]:
    """Resolve each of ``words``, ``[LABEL=]MODEL[@STEP]``. ``step`` applies to the run folders without ``@STEP``.

    Raises ConfigError if a model does not exist or a label occurs twice.
    """
    models = [_find(word, step) for word in words]
    if step is not None and not any(_is_run(_folder_of(word)) for word in words):
        raise ConfigError("--step", step, "names the checkpoint of a run, but no MODEL is the folder of a run.")
    for label in (model.label for model in models):
        if [model.label for model in models].count(label) > 1:
            raise ConfigError("MODEL", label, "is the label of two models. Choose other labels with LABEL=MODEL.")
    return models


def length_of_training(words: Sequence[str]) -> int | None:
    """Return the most tokens of a response in the runs among ``words``; None if there is no run.

    Raises ConfigError if the runs differ.
    """
    flags = {path: config.openrlhf for path, config in _configurations(words).items()}
    lengths = {path: given.get("rollout.max_new_tokens") or given.get("data.max_len") for path, given in flags.items()}
    if len(set(lengths.values())) > 1:
        each = ", ".join(f"{path}: {length}" for path, length in lengths.items())
        raise ConfigError("--max-tokens", None, f"must be given: the runs trained with different lengths ({each}).")
    return next(iter(lengths.values()), None)


def answer_pattern_of_training(words: Sequence[str]) -> str | None:
    """Return ``meds.features.answer_pattern`` of the runs among ``words``; None without runs, or if they have none.

    Raises ConfigError if the runs differ.
    """
    patterns = {path: config.meds.features.answer_pattern for path, config in _configurations(words).items()}
    if len(set(patterns.values())) > 1:
        each = ", ".join(f"{path}: {pattern!r}" for path, pattern in patterns.items())
        raise ConfigError("--answer-pattern", None, f"must be given: the runs mark answers differently ({each}).")
    return next(iter(patterns.values()), None)


def _configurations(words: Sequence[str]) -> dict[Path, RunConfig]:
    """The configurations of the runs among ``words``, by folder."""
    from meds_openrlhf.config import load_config

    folders = [path for path in map(_folder_of, words) if _is_run(path)]
    return {path: load_config(RunPaths(path).config) for path in folders}


def agents_of_training(words: Sequence[str]) -> dict[Path, str]:
    """Return the agent's file of each run among ``words`` that was trained with one."""
    agents = {path: config.openrlhf.get("train.agent_func_path") for path, config in _configurations(words).items()}
    return {path: agent for path, agent in agents.items() if agent}


def fingerprint_of(folder: Path) -> str:
    """A hash that identifies a model: of all files' names, sizes, and first and last MiB."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(_EDGE_BYTES))
            file.seek(max(file.tell(), path.stat().st_size - _EDGE_BYTES))
            digest.update(file.read())
    return digest.hexdigest()


def _find(word: str, step: int | None) -> Model:
    label, name = _label_and_name(word)
    path, own_step = _path_and_step(name)
    if not path.is_dir():
        return _on_the_hub(label, name)
    plain = _plain_label(path)
    if not _is_run(path):
        if own_step is not None:
            raise ConfigError("MODEL", name, f"names a step, but {path} is not a run: it has no config.yaml.")
        return _in_folder(label or plain, path)
    wanted = step if own_step is None else own_step
    if wanted is None and _is_whole(RunPaths(path).model):
        return _in_folder(label or plain, RunPaths(path).model)
    return _checkpoint_of(RunPaths(path.absolute()), label, wanted)


def _label_and_name(word: str) -> tuple[str | None, str]:
    labelled = _LABELLED.fullmatch(word)
    if labelled is None:
        return None, word
    if not LABEL.fullmatch(labelled[1]):
        raise ConfigError("MODEL", word, f"has the label {labelled[1]!r}. Use letters, digits and . _ @ + -")
    return labelled[1], labelled[2]


def _path_and_step(name: str) -> tuple[Path, int | None]:
    at_step = _AT_STEP.fullmatch(name)
    if at_step is None or Path(name).is_dir():
        return Path(name), None
    return Path(at_step[1]), int(at_step[2])


def _folder_of(word: str) -> Path:
    return _path_and_step(_label_and_name(word)[1])[0]


def _plain_label(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_.@+-]", "-", path.absolute().name).lstrip(".-@+") or "model"


def _is_run(path: Path) -> bool:
    return RunPaths(path).config.is_file()


def _on_the_hub(label: str | None, name: str) -> Model:
    looks_local = name.startswith((".", "/", "~")) or not HUB_NAME.fullmatch(name)
    if looks_local:
        hint = f"does not exist (looked in {Path.cwd()}). Name a run, the folder of a model, or a model of the hub."
        raise ConfigError("MODEL", name, hint)
    return Model(label or name.rpartition("/")[2], hub=name)


def _is_whole(folder: Path) -> bool:
    """Whether OpenRLHF has written a whole model there."""
    return (folder / _LAST_WRITTEN).is_file()


def _in_folder(label: str, folder: Path) -> Model:
    if (folder / PEFT_CONFIG).is_file():
        hint = "contains only LoRA adapters. Merge them with PEFT's merge_and_unload."
        raise ConfigError("MODEL", str(folder), hint)
    if not (folder / "config.json").is_file():
        raise ConfigError("MODEL", str(folder), "is neither a run (config.yaml) nor a model (config.json).")
    return Model(label, folder=folder.absolute())


def _checkpoint_of(paths: RunPaths, label: str | None, step: int | None) -> Model:
    """The checkpoint of a step, or the newest; prefers OpenRLHF's Hugging Face folder (``ckpt.save_hf``) if present."""
    folders = {
        int(match[1]): entry
        for entry in (sorted(paths.checkpoints.iterdir()) if paths.checkpoints.is_dir() else [])
        if (match := _HF_OF_A_STEP.fullmatch(entry.name)) and _is_whole(entry)
    }
    # A regular checkpoint comes after the best checkpoint of the same step and so replaces it.
    shards = {whole.step: paths.policy_checkpoints / whole.tag for whole in whole_checkpoints(paths)}
    wanted = max([*folders, *shards], default=None) if step is None else step
    if wanted is None or wanted not in {*folders, *shards}:
        raise ConfigError("MODEL", str(paths.root), _what_there_is({*folders, *shards}, step))
    name = label or f"{_plain_label(paths.root)}@{wanted}"
    if wanted in folders:
        return _in_folder(name, folders[wanted])
    base, lora_alpha = _base_of(paths)
    return Model(name, shards=shards[wanted], base=base, lora_alpha=lora_alpha)


def _what_there_is(steps: Iterable[int], wanted: int | None) -> str:
    saved = ", ".join(str(step) for step in sorted(steps))
    if not saved:
        return "has neither a trained model nor a complete checkpoint yet. Wait for its first checkpoint."
    return f"has no complete checkpoint of step {wanted}. Choose from {saved}."


def _base_of(paths: RunPaths) -> tuple[str, float | None]:
    """The model that the run started from, whose shape and tokenizer the checkpoint has, and the alpha of its LoRA."""
    from meds_openrlhf.config import load_config

    flags = load_config(paths.config).openrlhf
    alpha = flags.get("ds.lora.alpha", 16) if flags.get("ds.lora.rank") else None  # OpenRLHF's default
    return str(flags["actor.model_name_or_path"]), alpha
