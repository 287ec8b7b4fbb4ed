"""Checks the training set as OpenRLHF loads it: its columns and its prompts' lengths."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config import ConfigError
from meds_openrlhf.training.host.openrlhf import is_too_long, longest_prompt, module_alone


def load_prompts(args: SimpleNamespace) -> Any:
    """Load the rows to train on, as OpenRLHF does. Raises ConfigError for a missing data set or column."""
    data = _load_dataset(
        "data.prompt_dataset", args.data.prompt_dataset, args.data.prompt_split, args, args.data.prompt_probs
    )
    wanted = {"data.input_key": args.data.input_key, "data.label_key": args.data.label_key}
    _require_columns(data, wanted)
    if args.eval.dataset:
        evaluation = _load_dataset("eval.dataset", args.eval.dataset, args.eval.split, args)
        _require_columns(evaluation, wanted)
    return data.select(range(min(args.data.max_samples, len(data))))


def count_too_long(data: Any, args: SimpleNamespace, tokenizer: Any) -> int:
    """Count the prompts that `RolloutGenerator` skips as too long. Raises ConfigError if it would skip all of them."""
    most, key, template = longest_prompt(args), args.data.input_key, args.data.input_template
    preprocess_data = module_alone("openrlhf.datasets.prompts_dataset").preprocess_data
    chat_template = tokenizer.apply_chat_template if args.data.apply_chat_template else None

    def skips(prompt: Any) -> bool:
        return is_too_long(preprocess_data({key: prompt}, template, key, None, chat_template)[0], most, tokenizer)

    batches = data.select_columns([key]).iter(batch_size=1000)  # many times faster than row by row
    too_long = sum(skips(prompt) for batch in batches for prompt in batch[key])
    if too_long == len(data):
        hint = f"leaves {most} tokens for a prompt, but all are longer. Raise it or lower rollout.max_new_tokens."
        raise ConfigError("data.max_len", args.data.max_len, hint)
    return too_long


def _load_dataset(key: str, name: str, split: str, args: SimpleNamespace, probabilities: str | None = None) -> Any:
    from datasets import disable_progress_bars
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

    disable_progress_bars()
    strategy = SimpleNamespace(args=args, print=print, is_rank_0=lambda: True)  # the parts that OpenRLHF uses here
    try:
        with redirect_stdout(io.StringIO()):  # OpenRLHF prints what it loads, and prints it again in the trainer
            return module_alone("openrlhf.datasets.utils").blending_datasets(
                name, probabilities, strategy, args.train.seed, args.data.max_samples, dataset_split=split
            )
    except (DatasetNotFoundError, DatasetGenerationError, FileNotFoundError, ValueError, AttributeError) as error:
        raise ConfigError(key, name, f"cannot be loaded (split {split!r}): {str(error).splitlines()[0]}") from error


def _require_columns(data: Any, wanted: dict[str, str | None]) -> None:
    for key, column in wanted.items():
        if column is not None and column not in data.column_names:
            raise ConfigError(key, column, f"the data set has no such column; it has {', '.join(data.column_names)}.")
