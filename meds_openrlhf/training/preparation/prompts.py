"""Checks the training set as OpenRLHF loads it: its columns, its prompts' lengths and ids, and its number of steps."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from meds_openrlhf.config import ConfigError
from meds_openrlhf.training.openrlhf_source import module_alone
from meds_openrlhf.training.prompt_ids import PromptIds, text_hash
from meds_openrlhf.training.prompt_length import is_too_long, longest_prompt

ROWS_AT_ONCE = 1000


def load_prompts(args: SimpleNamespace, prompt_id_key: str | None) -> Any:
    """Load the rows that are trained on, as OpenRLHF does. Raises ConfigError for a missing data set or column."""
    data = _load_dataset(
        "data.prompt_dataset", args.data.prompt_dataset, args.data.prompt_split, args, args.data.prompt_probs
    )
    wanted = {"data.input_key": args.data.input_key, "data.label_key": args.data.label_key}
    wanted["meds.memory.prompt_id_key"] = prompt_id_key
    _require_columns(data, wanted)
    if args.eval.dataset:
        evaluation = _load_dataset("eval.dataset", args.eval.dataset, args.eval.split, args)
        _require_columns(evaluation, {"data.input_key": args.data.input_key, "data.label_key": args.data.label_key})
    return data.select(range(min(args.data.max_samples, len(data))))


def count_too_long(data: Any, args: SimpleNamespace, tokenizer: Any) -> int:
    """Count the prompts that `RolloutGenerator` leaves out. Raises ConfigError if that is all of them."""
    most, text_of = longest_prompt(args), _as_sent(args, tokenizer)
    texts = data.select_columns([args.data.input_key])
    count = sum(
        is_too_long(text_of({args.data.input_key: value}), most, tokenizer)
        for start in range(0, len(texts), ROWS_AT_ONCE)
        for value in texts[start : start + ROWS_AT_ONCE][args.data.input_key]
    )
    if count == len(data):
        hint = f"leaves {most} tokens to a prompt, and every prompt has more; raise it, or lower rollout.max_new_tokens"
        raise ConfigError("data.max_len", args.data.max_len, hint)
    return count


def steps_of_an_epoch(args: SimpleNamespace, prompts: int) -> int:
    """Return the number of training steps in an epoch over ``prompts``; the last has at least one mini-batch.

    Raises ConfigError if the prompts do not fill a mini-batch.
    """
    samples = args.rollout.n_samples_per_prompt
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


def prompt_ids(data: Any, args: SimpleNamespace, tokenizer: Any, column: str) -> PromptIds:
    """Return each prompt's id in the data set's ``column``, by its text as the engines get it.

    Raises ConfigError for a row without an id, a text with two ids, or an id with two texts, because the memory would
    then mix prompts or split one.
    """
    setting, text_of = "meds.memory.prompt_id_key", _as_sent(args, tokenizer)
    hashes, ids = np.empty(len(data), np.uint64), []
    columns = data.select_columns(list(dict.fromkeys([args.data.input_key, column])))
    for start in range(0, len(columns), ROWS_AT_ONCE):
        batch = columns[start : start + ROWS_AT_ONCE]
        for number, values in enumerate(zip(*batch.values()), start):
            row = dict(zip(batch, values))
            if row[column] is None:
                raise ConfigError(setting, column, f"is empty for the prompt {text_of(row)[-80:]!r}")
            hashes[number] = text_hash(text_of(row))
        ids.append(pa.array(map(str, batch[column]), pa.string()))
    names = pa.concat_arrays(ids) if ids else pa.array([], pa.string())
    codes = names.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.lexsort((codes, hashes))
    first, second = order[:-1], order[1:]
    is_repeated = hashes[first] == hashes[second]
    split = np.flatnonzero(is_repeated & (codes[first] != codes[second]))
    if len(split):
        one, other = names[int(first[split[0]])], names[int(second[split[0]])]
        raise ConfigError(setting, column, f"gives one prompt two ids, {one} and {other}")
    kept = order[~np.append(False, is_repeated)[: len(order)]]
    texts_of_id = np.bincount(codes[kept])
    if texts_of_id.max(initial=0) > 1:
        mixed = names[int(np.flatnonzero(codes == texts_of_id.argmax())[0])]
        raise ConfigError(setting, column, f"gives two prompts the id {mixed}")
    return PromptIds(hashes[kept], names.take(pa.array(kept)))


def _as_sent(args: SimpleNamespace, tokenizer: Any) -> Callable[[dict[str, Any]], str]:
    """Return the function from a row to its prompt as the engines get it, with its template."""
    preprocess_data = module_alone("openrlhf.datasets.prompts_dataset").preprocess_data
    chat_template = tokenizer.apply_chat_template if args.data.apply_chat_template else None

    def text_of(row: dict[str, Any]) -> str:
        text: str = preprocess_data(row, args.data.input_template, args.data.input_key, None, chat_template)[0]
        return text

    return text_of
