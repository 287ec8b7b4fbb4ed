"""The models of an evaluation: what a name on the command line means, and what engines need of a model.

A name is that of a run (its trained policy or a checkpoint), of a folder, or of the hub. Resolving names loads nothing,
so that a wrong name fails immediately. DeepSpeed's checkpoints are pickles: only its own converter opens them, as in a
resumed run, and only for the user's own run.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from meds_openrlhf.adapters import PEFT_CONFIG, merged, name_in_model
from meds_openrlhf.checkpoints import whole_checkpoints
from meds_openrlhf.config import ConfigError, RunConfig, load_config
from meds_openrlhf.evaluation.request import LABEL, Problem
from meds_openrlhf.files import open_file
from meds_openrlhf.paths import MODEL_WRITTEN, RunPaths
from meds_openrlhf.placement.model_shape import shape_of
from meds_openrlhf.runtime.hub import loading

T = TypeVar("T")

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
        labeled = _LABELLED.fullmatch(word)
        label, name = labeled.groups() if labeled else (None, word)
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


# The weights of ZeRO-1 and 2; under ZeRO-3 each rank has a file of another name.
_WHOLE_STATES = "mp_rank_00_model_states.pt"


@dataclass(frozen=True)
class KnownModel:
    """A model with its configuration and tokenizer. ``context`` is in tokens, None if the configuration has none."""

    model: Model
    fingerprint: str
    revision: str | None
    context: int | None
    tokenizer: Any

    def tokens(self, benchmark: str, problems: Sequence[Problem]) -> dict[str, tuple[int, ...]]:
        """Each problem's prompt as token ids, without added special tokens: the template contains them.

        Raises ConfigError if a prompt leaves no room for a response.
        """
        found = {
            problem.id: tuple(self.tokenizer.encode(problem.prompt, add_special_tokens=False)) for problem in problems
        }
        for problem, tokens in found.items():
            if self.context is not None and len(tokens) >= self.context:
                hint = f"has {len(tokens)} tokens, but {self.model.label} reads {self.context}, response included."
                raise ConfigError(benchmark, problem, hint)
        return found

    def longest(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> int:
        """The number of tokens for the longest prompt with its response, at most the context length."""
        wanted = max(map(len, prompts)) + max_tokens
        return wanted if self.context is None else min(wanted, self.context)


def know(model: Model, tensor_parallel: int, trusted: bool) -> KnownModel:
    """Read a model's configuration and tokenizer, from a folder or the hub, but not its weights.

    Raises ConfigError if they cannot be read, if the model has code of its own and is not ``trusted``, or if it cannot
    be split evenly over ``tensor_parallel`` GPUs.
    """
    from transformers import AutoConfig, AutoTokenizer

    name = str(model.folder or model.base or model.hub)
    with loading(name, "MODEL", trusted) as options:
        config = AutoConfig.from_pretrained(name, **options)
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    shape = shape_of(config)
    if shape is not None and not shape.splits_over(tensor_parallel):
        hint = f"is not a size over which {name} can be split. Choose another number of GPUs."
        raise ConfigError("--tensor-parallel", tensor_parallel, hint)
    on_disk = model.folder or model.shards
    revision = None if on_disk else getattr(config, "_commit_hash", None)
    return KnownModel(
        model=model,
        fingerprint=fingerprint_of(on_disk) if on_disk else f"{name}@{revision}",
        revision=revision,
        context=getattr(config.get_text_config(), "max_position_embeddings", None),
        tokenizer=tokenizer,
    )


def converted(model: Model, fingerprint: str, folder: Path, trusted: bool = False) -> Path:
    """The checkpoint's model in Hugging Face format below ``folder``, converted once per ``fingerprint``.

    Raises ConfigError if the checkpoint does not hold a complete model of the base model's shape.
    """
    assert model.shards is not None
    target = folder / f"model-{fingerprint[:12]}"
    if target.is_dir():
        return target
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        _save(model, _weights(model.shards), temporary, trusted)
        os.rename(temporary, target)  # atomic: the folder is never incomplete
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _weights(shards: Path) -> dict[str, Any]:
    """All parameters by name, float32; each is assembled from the ranks' shards on first access."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed would probe for an accelerator at import
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    try:
        with _silence():
            return dict(get_fp32_state_dict_from_zero_checkpoint(str(shards.parent), shards.name, lazy_mode=True))
    except (ValueError, KeyError, OSError, RuntimeError) as error:
        hint = f"cannot be assembled by DeepSpeed ({error}). Runs with --ckpt.save_hf need no conversion."
        raise ConfigError("MODEL", str(shards), hint) from error


def _save(source: Model, weights: dict[str, Any], folder: Path, trusted: bool) -> None:
    """Save in bfloat16, as OpenRLHF saves a trained policy, with the configuration and tokenizer of the base model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    base = str(source.base)
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(base, trust_remote_code=trusted)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=trusted)
    wanted, tied = set(dict(model.named_parameters())), set(dict(model.named_parameters(remove_duplicate=False)))
    names = {plain: name for name in weights if (plain := name_in_model(name)) is not None}
    missing, strange = sorted(wanted - set(names)), sorted(set(names) - tied - set(dict(model.named_buffers())))
    if missing or strange:
        what = f"lacks {missing[0]}" if missing else f"contains {strange[0]}, which {base} does not have"
        raise ConfigError("MODEL", str(source.shards), f"is not a checkpoint of {base}: it {what}.")
    state = {plain: _weight(source, weights, name) for plain, name in names.items()}
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    with _silence():
        model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base, trust_remote_code=trusted).save_pretrained(folder)


def _weight(source: Model, weights: dict[str, Any], name: str) -> Any:
    """Return the weight ``name`` in bfloat16, with the adapter of its layer if it has one."""
    import torch

    weight: torch.Tensor = weights[name].contiguous().to(torch.bfloat16)
    if source.lora_alpha is None or not name.endswith(".base_layer.weight"):
        return weight
    low, high = (weights[name.replace(".base_layer.", f".lora_{matrix}.default.")].contiguous() for matrix in "AB")
    assert source.shards is not None
    if (source.shards / _WHOLE_STATES).exists():
        low, high = low.to(torch.bfloat16), high.to(torch.bfloat16)  # as the policy has them; under ZeRO-3, float32
    return merged(weight, low, high, source.lora_alpha / len(low)).to(torch.bfloat16)


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress the libraries' messages and progress bars."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield
