"""Samples that slime saved with torch: a pickle of plain values, in which nothing is imported and nothing runs.

Whatever is none of these, such as an image or a tensor, becomes a value without content. torch is not needed.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, ClassVar
from zipfile import ZipFile, is_zipfile

import numpy as np

from meds_openrlhf.files import MOST_UNPACKED, require_size, require_unpacked

# What makes an object of a name without `find_class`, or of a number that the process has registered.
_REFUSED = (pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.INST, pickle.OBJ, pickle.NEXT_BUFFER)
_DEEPEST = 6  # a sample, its messages, their parts, and what calls of tools have
_MAPPING = 1_000  # bytes
_NUMBER = re.compile(r"[biuf][1248]")


def samples_of(path: Path, file: BinaryIO) -> Iterator[Any]:
    """Yield the samples of an open file, with its ``rollout_id``; none if it holds something else.

    Raises one of many errors if it is damaged, and UnusableFileError if it would take too much memory.
    """
    if not is_zipfile(file):
        raise ValueError("it is not in the format of torch.save since torch 1.6")
    with ZipFile(file) as archive:
        infos = archive.infolist()
        require_unpacked(path, os.fstat(file.fileno()).st_size, sum(info.file_size for info in infos))
        [info] = [info for info in infos if info.filename.rpartition("/")[2] == "data.pkl"]
        require_size(path, info.file_size, MOST_UNPACKED, "its pickle has")
        content = _Unpickler(BytesIO(archive.read(info))).load()
    if not isinstance(content, dict) or not isinstance(content.get("samples"), list):
        return
    # Of the file, not a sample's own: siblings of one rollout share that.
    of_file = {"rollout_id": content["rollout_id"]} if content.get("rollout_id") is not None else {}
    _require_bounded(path, os.fstat(file.fileno()).st_size, content["samples"])
    for sample in content["samples"]:
        yield {"rollout_id": None, **sample, **of_file} if isinstance(sample, dict) else None


def _require_bounded(path: Path, packed: int, samples: list[Any]) -> None:
    """Raise UnusableFileError as `require_unpacked` for the texts and messages of all samples, each for itself.

    A pickle can share them, and what is read does not.
    """
    reached, waiting = 0, [(sample, _DEEPEST) for sample in samples]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, str):
            reached += len(value)
        elif depth and isinstance(value, dict):
            reached += _MAPPING
            waiting += [(inside, depth - 1) for inside in value.values()]
        elif depth and isinstance(value, (list, tuple)) and all(isinstance(entry, dict) for entry in value):
            waiting += [(entry, depth - 1) for entry in value]
        require_unpacked(path, packed, reached)


class _Opaque:
    """A value of any other kind: it takes what the pickle gives it, and keeps nothing."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...

    def __setitem__(self, *_: Any) -> None: ...

    def _take(self, *_: Any) -> None: ...

    __call__ = append = extend = add = update = _take

    def __repr__(self) -> str:
        return "..."


class _Type(_Opaque):
    """NumPy's dtype of a number."""

    def __init__(self, name: Any = "", *_: Any) -> None:
        self.name, self.order = str(name), "<"

    def __setstate__(self, state: Any) -> None:
        self.order = ">" if isinstance(state, tuple) and len(state) > 1 and state[1] == ">" else "<"


def _scalar(kind: Any = None, content: Any = None, *_: Any) -> Any:
    """A number or a text of NumPy's."""
    if not isinstance(kind, _Type) or not isinstance(content, bytes):
        return _Opaque()
    if re.fullmatch(r"U\d+", kind.name):
        return content.decode("utf-32-be" if kind.order == ">" else "utf-32-le", errors="replace").rstrip("\0")
    if not _NUMBER.fullmatch(kind.name):
        return _Opaque()
    return np.frombuffer(content, kind.order + kind.name, 1)[0].item()


def _encoded(text: Any = "", *_: Any) -> Any:
    """Bytes, as old protocols write them."""
    return text.encode("latin-1") if isinstance(text, str) else _Opaque()


def _mapping(*_: Any) -> dict[Any, Any]:
    return {}


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): _encoded,
    ("collections", "OrderedDict"): _mapping,
    ("collections", "defaultdict"): _mapping,
}


class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined,misc]
    """Python's own unpickler in Python: the one in C reserves memory for whatever number a file gives."""

    dispatch: ClassVar = {  # by the number of each instruction
        code: load
        for code, load in pickle._Unpickler.dispatch.items()  # type: ignore[attr-defined]
        if bytes([code]) not in _REFUSED
    }

    def load_bytearray8(self) -> None:
        """Read bytes, where Python's own reserves as much memory as the file says."""
        length = int.from_bytes(self.read(8), "little")  # type: ignore[attr-defined]
        self.append(self.read(min(length, MOST_UNPACKED)))  # type: ignore[attr-defined]

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8  # type: ignore[assignment]

    def find_class(self, module: str, name: str) -> Any:
        """A stand-in for what the pickle wants to import."""
        return _KNOWN.get((module, name), _Opaque)

    def persistent_load(self, pid: Any) -> Any:
        """A tensor's storage."""
        return _Opaque()
