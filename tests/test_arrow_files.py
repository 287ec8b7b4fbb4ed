"""Arrow files of others are bounded before they are decompressed, and refused with one error of ours."""

import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meds_openrlhf.arrow_files import DamagedArrowError, decoded_bytes, read_arrow, require_no_nulls, rows_of_parquet
from meds_openrlhf.files import UnusableFileError

PATH = Path("some.arrow")


def written(table: pa.Table, form: str = "stream", **options: object) -> bytes:
    sink, make = pa.BufferOutputStream(), pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with make(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


TABLE = pa.table(
    {
        "text": ["x" * 9_000] * 4,
        "number": [1.5, 2.5, None, 4.5],
        "key": pa.array(["a", "b", "a", "b"]).dictionary_encode(),
    }
)


@pytest.mark.parametrize("form", ["stream", "file"])
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_what_is_genuine_is_read_whole_or_by_columns(form: str, compression: str | None) -> None:
    content = written(TABLE, form, compression=compression)
    assert read_arrow(PATH, content).equals(TABLE)
    assert read_arrow(PATH, content, ["key", "text"]).equals(TABLE.select(["key", "text"]))
    assert read_arrow(PATH, written(TABLE.slice(0, 0), form)).equals(TABLE.slice(0, 0))


@pytest.mark.parametrize("number", [2**40, -(2**40), -2])
def test_numbers_of_decompressed_bytes_are_not_believed(number: int) -> None:
    content = written(TABLE, compression="zstd")
    real = struct.pack("<q", 36_000)
    assert content.count(real) == 1
    with pytest.raises((UnusableFileError, DamagedArrowError), match="unpack"):
        read_arrow(PATH, content.replace(real, struct.pack("<q", number)))


def test_other_versions_of_the_metadata_are_refused() -> None:
    """Before Arrow 1.0, buffers were compressed in a way that is not counted here."""
    content = written(TABLE, metadata_version=pa.ipc.MetadataVersion.V4)
    with pytest.raises(DamagedArrowError, match="metadata of another version"):
        read_arrow(PATH, content)


@pytest.mark.parametrize("content", [b"", b"ARROW1", b"ARROW1\0\0" + b"\xff" * 40, b"\xff" * 99, b"ARROW1\0\0ARROW1"])
def test_what_is_no_arrow_is_one_error(content: bytes) -> None:
    with pytest.raises(DamagedArrowError):
        read_arrow(PATH, content)


def test_a_file_that_ends_too_early_is_refused() -> None:
    content = written(TABLE, "file")
    with pytest.raises(DamagedArrowError, match="ends too early"):
        read_arrow(PATH, content[:-20])


def test_names_of_columns_are_texts() -> None:
    with pytest.raises(DamagedArrowError, match="utf-8"):
        read_arrow(PATH, written(pa.table({"names": [1]})).replace(b"names", b"na\xd4es"))


def test_nulls_are_found_in_values_and_in_dictionaries() -> None:
    strict = pa.schema([pa.field("key", pa.dictionary(pa.int32(), pa.string()), nullable=False)])
    for array in (
        pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int32()), ["a"]),
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a", None])),
    ):
        with pytest.raises(DamagedArrowError, match="the column key has nulls"):
            require_no_nulls(pa.Table.from_arrays([array], schema=strict))


def test_a_value_that_stands_in_many_rows_counts_for_each() -> None:
    one = pa.DictionaryArray.from_arrays(pa.array([0] * 500, pa.int32()), ["x" * 1_000])
    nested = pa.ListArray.from_arrays(list(range(501)), one)
    for array in (one, nested, pa.StructArray.from_arrays([one], ["text"])):
        assert decoded_bytes(pa.table({"text": array})) > 500_000
    with pytest.raises(DamagedArrowError, match="string_view"):
        decoded_bytes(pa.table({"text": pa.array(["a"], pa.string_view())}))


def test_a_file_whose_value_stands_in_too_many_rows_is_refused() -> None:
    one = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), ["x" * 100_000])
    content = written(pa.table({"text": one}), compression="zstd")
    with pytest.raises(UnusableFileError, match="unpacked, it has 1,908 MiB"):
        read_arrow(PATH, content)


def test_parquet_is_read_in_portions_and_bounded(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "whole.parquet")
    with (tmp_path / "whole.parquet").open("rb") as file:
        assert list(rows_of_parquet(PATH, file)) == TABLE.to_pylist()
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), ["x" * 100_000])
    pq.write_table(pa.table({"text": repeated}), tmp_path / "bomb.parquet", compression="zstd")
    with (tmp_path / "bomb.parquet").open("rb") as file, pytest.raises(UnusableFileError, match="unpacked, it has"):
        list(rows_of_parquet(PATH, file))
    (tmp_path / "none.parquet").write_bytes(b"PAR1" + b"\0" * 40 + b"PAR1")
    with (tmp_path / "none.parquet").open("rb") as file, pytest.raises(DamagedArrowError):
        list(rows_of_parquet(PATH, file))
