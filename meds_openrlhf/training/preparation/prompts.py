"""Checks the training set as OpenRLHF loads it: its columns, its prompts' lengths and ids, and its number of steps."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.config import ConfigError
from meds_openrlhf.training.openrlhf_source import module_alone
from meds_openrlhf.training.prompt_ids import PromptIds, text_hash
from meds_openrlhf.training.prompt_length import is_too_long, longest_prompt

ROWS_AT_ONCE = 1000
ID_SETTING = "meds.memory.prompt_id_key"


def load_prompts(args: SimpleNamespace, prompt_id_key: str | None) -> Any:
    """Load the rows that are trained on, as OpenRLHF does. Raises ConfigError for a missing data set or column."""
    data = _load_dataset(
        "data.prompt_dataset", args.data.prompt_dataset, args.data.prompt_split, args, args.data.prompt_probs
    )
    wanted = {"data.input_key": args.data.input_key, "data.label_key": args.data.label_key}
    wanted[ID_SETTING] = prompt_id_key
    _require_columns(data, wanted)
    if args.eval.dataset:
        evaluation = _load_dataset("eval.dataset", args.eval.dataset, args.eval.split, args)
        _require_columns(evaluation, {"data.input_key": args.data.input_key, "data.label_key": args.data.label_key})
    return data.select(range(min(args.data.max_samples, len(data))))


def examine_prompts(
    data: Any, args: SimpleNamespace, tokenizer: Any, id_column: str | None
) -> tuple[int, PromptIds | None]:
    """Count the prompts that `RolloutGenerator` leaves out, and return the prompts' ids, if a column has them.

    Raises ConfigError if all prompts are left out, and for ids that do not tell prompts apart (see `_ids_of`).
    """
    most, text_of, too_long = longest_prompt(args), _as_sent(args, tokenizer), 0
    hashes, ids = np.empty(len(data), np.uint64), []
    columns = data.select_columns(list(dict.fromkeys(filter(None, [args.data.input_key, id_column]))))
    for start in range(0, len(columns), ROWS_AT_ONCE):
        batch = columns[start : start + ROWS_AT_ONCE]
        for number, values in enumerate(zip(*batch.values()), start):
            row = dict(zip(batch, values))
            text = text_of(row)
            too_long += is_too_long(text, most, tokenizer)
            hashes[number] = text_hash(text)
            if id_column is not None and row[id_column] is None:
                raise ConfigError(ID_SETTING, id_column, f"is empty for the prompt {text[-80:]!r}")
        if id_column is not None:
            ids.append(pa.array(map(str, batch[id_column]), pa.string()))
    if too_long == len(data):
        hint = f"leaves {most} tokens to a prompt, and every prompt has more; raise it, or lower rollout.max_new_tokens"
        raise ConfigError("data.max_len", args.data.max_len, hint)
    return too_long, None if id_column is None else _ids_of(hashes, pa.concat_arrays(ids), id_column)


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


def _ids_of(hashes: NDArray[np.uint64], names: pa.Array, column: str) -> PromptIds:
    """Return each prompt's id (n,), ``names``, by the hash (n,) of its text as the engines get it.

    Raises ConfigError for a text with two ids, or an id with two texts, because the memory would then mix prompts or
    split one.
    """
    codes = names.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.lexsort((codes, hashes))
    first, second = order[:-1], order[1:]
    is_repeated = hashes[first] == hashes[second]
    split = np.flatnonzero(is_repeated & (codes[first] != codes[second]))
    if len(split):
        one, other = names[int(first[split[0]])], names[int(second[split[0]])]
        raise ConfigError(ID_SETTING, column, f"gives one prompt two ids, {one} and {other}")
    kept = order[~np.append(False, is_repeated)[: len(order)]]
    texts_of_id = np.bincount(codes[kept])
    if texts_of_id.max(initial=0) > 1:
        mixed = names[int(np.flatnonzero(codes == texts_of_id.argmax())[0])]
        raise ConfigError(ID_SETTING, column, f"gives two prompts the id {mixed}")
    return PromptIds(hashes[kept], names.take(pa.array(kept)))


def _as_sent(args: SimpleNamespace, tokenizer: Any) -> Callable[[dict[str, Any]], str]:
    """Return the function from a row to its prompt as the engines get it, with its template."""
    preprocess_data = module_alone("openrlhf.datasets.prompts_dataset").preprocess_data
    chat_template = tokenizer.apply_chat_template if args.data.apply_chat_template else None

    def text_of(row: dict[str, Any]) -> str:
        text: str = preprocess_data(row, args.data.input_template, args.data.input_key, None, chat_template)[0]
        return text

    return text_of
