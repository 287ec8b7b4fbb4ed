"""Checks the training set as OpenRLHF loads it: its columns, its prompts' ids, and its number of steps."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config import ConfigError
from meds_openrlhf.training.openrlhf_source import module_alone


def load_prompts(args: SimpleNamespace, prompt_id_key: str | None) -> Any:
    """Load the training set as OpenRLHF does. Raises ConfigError for a missing data set or column."""
    data = _load_dataset(
        "data.prompt_dataset", args.data.prompt_dataset, args.data.prompt_split, args, args.data.prompt_probs
    )
    wanted = {"data.input_key": args.data.input_key, "data.label_key": args.data.label_key}
    wanted["meds.memory.prompt_id_key"] = prompt_id_key
    _require_columns(data, wanted)
    if args.eval.dataset:
        evaluation = _load_dataset("eval.dataset", args.eval.dataset, args.eval.split, args)
        _require_columns(evaluation, {"data.input_key": args.data.input_key, "data.label_key": args.data.label_key})
    return data


def steps_of_an_epoch(args: SimpleNamespace, rows: int) -> int:
    """Return the number of training steps in an epoch over ``rows`` prompts; the last has at least one mini-batch.

    Raises ConfigError if the prompts do not fill a mini-batch.
    """
    prompts, samples = min(rows, args.data.max_samples), args.rollout.n_samples_per_prompt
    whole, left = divmod(prompts, args.rollout.batch_size)
    steps: int = whole + (left * samples >= args.train.batch_size)
    if not steps:
        hint = f"is more than the {prompts} prompts with {samples} responses each make; lower it, or give more prompts"
        raise ConfigError("train.batch_size", args.train.batch_size, hint)
    return steps


def _load_dataset(key: str, name: str, split: str, args: SimpleNamespace, probabilities: str | None = None) -> Any:
    from datasets import disable_progress_bars
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

    disable_progress_bars()
    strategy = SimpleNamespace(args=args, print=print, is_rank_0=lambda: True)  # the parts that OpenRLHF uses here
    try:
        with redirect_stdout(io.StringIO()):  # it prints what it loads, and the trainer prints it again
            return module_alone("openrlhf.datasets.utils").blending_datasets(
                name, probabilities, strategy, args.train.seed, args.data.max_samples, dataset_split=split
            )
    except (DatasetNotFoundError, DatasetGenerationError, FileNotFoundError, ValueError, AttributeError) as error:
        raise ConfigError(key, name, f"cannot be loaded (split {split!r}): {str(error).splitlines()[0]}") from error


def _require_columns(data: Any, wanted: dict[str, str | None]) -> None:
    for key, column in wanted.items():
        if column is not None and column not in data.column_names:
            raise ConfigError(key, column, f"is no column of the data set; it has {', '.join(data.column_names)}")


def prompt_ids(data: Any, args: SimpleNamespace, tokenizer: Any, column: str) -> dict[str, str]:
    """Map each prompt's text, as the engines get it, to its id in the data set's ``column``.

    Raises ConfigError for a row without an id, a text with two ids, or an id with two texts, because the memory would
    then mix prompts or split one.
    """
    preprocess_data = module_alone("openrlhf.datasets.prompts_dataset").preprocess_data
    chat_template = tokenizer.apply_chat_template if args.data.apply_chat_template else None
    ids: dict[str, str] = {}
    texts: dict[str, str] = {}
    for row in data:
        text, _ = preprocess_data(
            row, args.data.input_template, args.data.input_key, args.data.label_key, chat_template
        )
        if row[column] is None:
            raise ConfigError("meds.memory.prompt_id_key", column, f"is empty for the prompt {text[-80:]!r}")
        key = str(row[column])
        if ids.setdefault(text, key) != key:
            raise ConfigError("meds.memory.prompt_id_key", column, f"gives one prompt two ids, {ids[text]} and {key}")
        if texts.setdefault(key, text) != text:
            raise ConfigError("meds.memory.prompt_id_key", column, f"gives two prompts the id {key}")
    return ids
