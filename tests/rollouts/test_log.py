"""The rollout log is whole, or an error; logs of earlier versions have no checksum."""

import struct
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather

from meds_openrlhf.columns import ROLLOUT_SCHEMA
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import UnusableFileError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.log import read_step, write_rollouts


def rollouts(n: int = 4, **columns: object) -> pa.Table:
    texts = {"prompt": ["p"] * n, "response": ["It is \\boxed{7}."] * n, "answer": ["7"] * n}
    numbers = dict.fromkeys(("reward", "shaped_reward", "penalty"), [0.0] * n)
    counts = {
        "step": [1] * n,
        "sample": list(range(n)),
        "answer_start": [13] * n,
        "cluster_size": [0] * n,
        "tokens": [5] * n,
    }
    prompts = {"prompt_text": ["What is 1+1?"] * n, "ground_truth": ["2"] * n}
    other = {"correct": [False] * n, "truncated": [False] * n, "label": pa.array([None] * n, pa.int32())}
    return pa.Table.from_pydict({**texts, **numbers, **counts, **prompts, **other, **columns}, ROLLOUT_SCHEMA)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def test_what_is_written_is_read_whole_or_by_columns(run: RunPaths) -> None:
    write_rollouts(run, rollouts())
    assert read_step(run, 1).equals(rollouts())
    assert read_step(run, 1, ["sample", "answer"]).equals(rollouts().select(["sample", "answer"]))
    assert read_step(run, 2) is None


def test_a_byte_that_differs_is_an_error(run: RunPaths) -> None:
    write_rollouts(run, rollouts())
    whole = run.rollouts(1).read_bytes()
    for at in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[at] ^= 4
        run.rollouts(1).write_bytes(changed)
        try:
            found = read_step(run, 1, ["sample", "answer"])
        except (ConfigError, UnusableFileError):
            continue
        assert found.equals(rollouts().select(["sample", "answer"])), at  # the footer, which is not read


@pytest.mark.parametrize("compression", ["uncompressed", "zstd"])
def test_a_log_without_a_checksum_is_read_and_one_that_lies_is_not(run: RunPaths, compression: str) -> None:
    run.rollouts_folder.mkdir()
    feather.write_feather(rollouts(), str(run.rollouts(1)), compression=compression)
    assert read_step(run, 1).equals(rollouts())
    content = run.rollouts(1).read_bytes()
    size = len("It is \\boxed{7}.")
    real, lie = (
        struct.pack("<5i", *(size * n for n in range(5))),
        struct.pack("<5i", *(100 + 900 * n for n in range(5))),
    )
    if compression == "uncompressed":
        run.rollouts(1).write_bytes(content.replace(real, lie))
        with pytest.raises(ConfigError, match=r"000001\.arrow: cannot be read as Arrow"):
            read_step(run, 1)


@pytest.mark.parametrize(
    "table",
    [
        rollouts(step=[1, 1, 2, 1]),
        rollouts(step=[2] * 4),
        pa.Table.from_arrays(rollouts().columns, schema=pa.schema([f.with_nullable(True) for f in ROLLOUT_SCHEMA])),
        rollouts().set_column(1, "sample", pa.array(["0", "1", "2", "3"])),
        rollouts().drop_columns(["correct"]),
        rollouts().append_column("sample", pa.array([0, 1, 2, 3], pa.int32())),
    ],
)
def test_other_columns_steps_and_nulls_are_refused(run: RunPaths, table: pa.Table) -> None:
    run.rollouts_folder.mkdir()
    feather.write_feather(table, str(run.rollouts(1)))
    with pytest.raises(ConfigError, match=r"000001\.arrow: cannot be read as Arrow, or not by this version"):
        read_step(run, 1)


def test_a_number_that_promises_gigabytes_is_refused_before_they_are_allocated(run: RunPaths) -> None:
    """A compressed buffer begins with the bytes that it unpacks to."""
    write_rollouts(run, rollouts(response=["x" * 5_000] * 4))
    content, size = run.rollouts(1).read_bytes(), struct.pack("<q", 20_000)
    assert content.count(size) == 1
    run.rollouts(1).write_bytes(content.replace(size, struct.pack("<q", 2**40)))
    with pytest.raises(OSError, match="unpacked, it has 1,048,576 MiB; at most 257 MiB"):
        read_step(run, 1)
