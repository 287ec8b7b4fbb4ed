"""What can be known to be wrong before anything expensive starts: model, data, memory, run folder."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.snapshot import MemoryFormat, read_format
from meds_openrlhf.paths import RunPaths

_DATA_FILES = {".json", ".jsonl", ".csv", ".parquet", ".arrow"}


def require_local_paths(config: RunConfig) -> None:
    """Refuse paths that plainly are not there; names on a hub (``owner/name``) are left to their loaders."""
    for key in ("actor.model_name_or_path", "data.prompt_dataset"):
        value = config.openrlhf.get(key)
        if not value:
            raise ConfigError(key, value, "is not set; every run needs it")
        for part in str(value).split(","):
            path = part.split("@")[0].strip()
            looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1 or Path(path).suffix in _DATA_FILES
            if looks_local and not Path(path).exists():
                raise ConfigError(
                    key, value, f"does not exist (looked in {os.getcwd()}); name a folder, file or hub name"
                )


def model_config(name: str) -> Any:
    """The Hugging Face configuration of the policy. Raises ConfigError where there is none."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError("actor.model_name_or_path", name, f"holds no model that can be loaded: {reason}") from error


def memory_format(config: RunConfig, policy: Any) -> MemoryFormat:
    """The format of the rows that this policy makes."""
    features = config.meds.features
    text = policy.get_text_config()  # a vision-language model's decoder has its own
    return MemoryFormat(
        shards=config.meds.memory.shards,
        layers=text.num_hidden_layers,
        model={
            "architecture": (policy.architectures or [type(policy).__name__])[0],
            "layers": text.num_hidden_layers,
            "hidden": text.hidden_size,
            "vocabulary": text.vocab_size,
        },
        features={**asdict(features), "answer_openings": list(features.answer_openings)},
    )


def require_features(config: RunConfig, policy: Any) -> FeatureTransform:
    """The feature transform of the run. Raises ConfigError where it does not fit the policy."""
    features = config.meds.features
    transform = FeatureTransform(features.layers, features.difference, features.normalize)
    layers = policy.get_text_config().num_hidden_layers
    try:
        transform.select(np.zeros((1, layers)))
    except ValueError as error:
        mend = f"does not fit the {layers} layers of this {policy.model_type} model"
        raise ConfigError("meds.features.layers", features.layers, mend) from error
    return transform


def require_supported(args: SimpleNamespace) -> None:
    """Refuse the ways to run a policy in which layer logits cannot be recorded (docs/recorder.md says why)."""
    reasons = {"ds.deepcompile": "compiled code runs no hooks", "data.disable_fast_tokenizer": "it hides tokens' bytes"}
    for key, on in (
        ("ds.deepcompile", args.ds.deepcompile),
        ("data.disable_fast_tokenizer", args.data.disable_fast_tokenizer),
    ):
        if on:
            raise ConfigError(key, True, f"does not go with a memory ({reasons[key]}); set it or meds.enabled to false")


def require_memory_of(paths: RunPaths, wanted: MemoryFormat) -> None:
    """Refuse a run folder whose memory is another model's or has another number of shards."""
    held = read_format(paths.memory)
    if held is not None:
        held.require_match(wanted, paths.memory.root)


def load_prompts(args: SimpleNamespace, strategy: Any, prompt_id_key: str | None) -> Any:
    """The training set as OpenRLHF will load it. Raises ConfigError for a set or a column that is not there."""
    data = _load_dataset("data.prompt_dataset", args.data.prompt_dataset, args.data.prompt_split, args, strategy)
    wanted = {"data.input_key": args.data.input_key, "data.label_key": args.data.label_key}
    wanted["meds.memory.prompt_id_key"] = prompt_id_key
    _require_columns(data, wanted)
    if args.eval.dataset:
        evaluation = _load_dataset("eval.dataset", args.eval.dataset, args.eval.split, args, strategy)
        _require_columns(evaluation, {"data.input_key": args.data.input_key, "data.label_key": args.data.label_key})
    return data


def _load_dataset(key: str, name: str, split: str, args: SimpleNamespace, strategy: Any) -> Any:
    from datasets import disable_progress_bars
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
    from openrlhf.datasets.utils import blending_datasets

    disable_progress_bars()
    try:
        with redirect_stdout(io.StringIO()):  # it prints what it loads; the trainer will do so again
            return blending_datasets(name, None, strategy, args.train.seed, args.data.max_samples, dataset_split=split)
    except (DatasetNotFoundError, DatasetGenerationError, FileNotFoundError, ValueError, AttributeError) as error:
        raise ConfigError(key, name, f"cannot be loaded (split {split!r}): {str(error).splitlines()[0]}") from error


def _require_columns(data: Any, wanted: dict[str, str | None]) -> None:
    for key, column in wanted.items():
        if column is not None and column not in data.column_names:
            raise ConfigError(key, column, f"is no column of the data set; it has {', '.join(data.column_names)}")


def prompt_ids(data: Any, args: SimpleNamespace, tokenizer: Any, column: str) -> dict[str, str]:
    """Each prompt's text, as the engines get it, to its id in the data set's ``column``.

    Raises ConfigError where one text has two ids: rollouts could not be told apart.
    """
    from openrlhf.datasets.prompts_dataset import preprocess_data

    chat_template = tokenizer.apply_chat_template if args.data.apply_chat_template else None
    ids: dict[str, str] = {}
    for row in data:
        text, _ = preprocess_data(
            row, args.data.input_template, args.data.input_key, args.data.label_key, chat_template
        )
        if ids.setdefault(text, str(row[column])) != str(row[column]):
            raise ConfigError(
                "meds.memory.prompt_id_key", column, f"gives one prompt two ids, {ids[text]} and {row[column]}"
            )
    return ids
