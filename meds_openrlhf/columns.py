"""Every column of a rollout on disk: its name, type and meaning, declared once.

The memory's log, the rollout log and what readers ask for are selections of these columns. Every file has all columns
of its selection; a value may be null only where the column says when.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

_KEYED = pa.dictionary(pa.int32(), pa.string())  # texts that repeat within a step


def _never_null(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_COLUMNS = {
    column.name: column
    for column in (
        _never_null("step", pa.int32()),
        _never_null("sample", pa.int32()),  # the rollout's index in its step
        _never_null("prompt", pa.string()),  # the prompt's key
        _never_null("prompt_text", _KEYED),  # as sent to the engines
        pa.field("ground_truth", _KEYED),  # null if the data set has none
        pa.field("response", pa.string()),  # null if only samples of the texts are kept
        pa.field("answer", pa.string()),  # the policy's; null if the response has none
        pa.field("answer_start", pa.int32()),  # characters of the response before the answer; null as the answer
        _never_null("correct", pa.bool_()),
        _never_null("reward", pa.float32()),  # without the memory
        _never_null("shaped_reward", pa.float32()),  # with it
        _never_null("penalty", pa.float32()),  # reward - shaped_reward
        pa.field("label", pa.int32()),  # of the cluster; -1: noise; null if the memory did not assign it
        _never_null("cluster_size", pa.int32()),  # of the rows stored before; 0 without a cluster
        _never_null("tokens", pa.int32()),  # of the response
        _never_null("truncated", pa.bool_()),
    )
}
IDENTITY = ("step", "sample", "prompt", "correct")  # what every file of rollouts has
ROLLOUT_SCHEMA = pa.schema(list(_COLUMNS.values()))  # of the rollout log: all but the row


def selected(names: Sequence[str], values: int) -> pa.Schema:
    """Return the schema of the columns with these names; ``layer_logits``, the memory's row, has ``values`` numbers."""
    row = _never_null("layer_logits", pa.list_(_never_null("item", pa.float32()), values))
    return pa.schema([{**_COLUMNS, "layer_logits": row}[name] for name in names])
