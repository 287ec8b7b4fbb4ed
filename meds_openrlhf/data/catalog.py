"""The data sets that `meds data prepare` knows: their location on the Hugging Face hub, and the rows to keep."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from meds_openrlhf.config.errors import ConfigError

Kind = Literal["training", "benchmark"]

_OWN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
TRAINING_FILE = "train"


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A set of problems with their answers."""

    name: str
    kind: Kind
    hub: str | None = None
    """Its name on the hub; None if it can only be read from a file."""
    hub_file: str | None = None
    """The file there, if the set is one of several without a name."""
    split: str = "train"
    columns: tuple[str, str] | None = None
    """Its question and its answer, if they are not in the first of the usual columns."""
    rows: int | None = None
    """Number of rows of the split on the hub, as of 2026; another number means that the set has changed."""
    paper: str | None = None
    """Number of problems that the paper's experiments have of it."""
    by_default: bool = True
    levels: tuple[str, ...] = ()
    """Values of the column `level` that are kept by default; empty: all rows."""

    @property
    def file(self) -> str:
        """The name, without suffix, of the set's output file; all training sets share a file."""
        return TRAINING_FILE if self.kind == "training" else self.name


CATALOG = {
    each.name: each
    for each in (
        DataSet(
            name="dapo-math-17k",
            kind="training",
            hub="BytedTsinghua-SIA/DAPO-Math-17k",
            rows=1_791_700,  # about 17 thousand problems, a hundred times each
            paper="17k",
        ),
        DataSet(
            name="math-3to5",
            kind="training",
            hub="hkust-nlp/SimpleRL-Zoo-Data",  # as in R1-Zero-like training, which the paper cites
            hub_file="simplelr_qwen_level3to5/train.parquet",
            columns=("extra_info.question", "reward_model.ground_truth"),
            rows=8_523,
            paper="8,523",
        ),
        DataSet(
            name="math",
            kind="training",
            hub="DigitalLearningGmbH/MATH-lighteval",
            rows=7_500,
            levels=("3", "4", "5"),
            by_default=False,
        ),
        DataSet(name="aime24", kind="benchmark", hub="HuggingFaceH4/aime_2024", rows=30, paper="30"),
        DataSet(name="amc23", kind="benchmark", hub="math-ai/amc23", split="test", rows=40, paper="40"),
        DataSet(name="math500", kind="benchmark", hub="HuggingFaceH4/MATH-500", split="test", rows=500, paper="500"),
        DataSet(name="minerva", kind="benchmark", hub="math-ai/minervamath", split="test", rows=272, paper="272"),
        DataSet(
            name="olympiadbench",
            kind="benchmark",
            hub="knoveleng/OlympiadBench",  # before one of its 675 problems was withdrawn and 15 were corrected
            rows=675,
            paper="675",
        ),
    )
}


DEFAULT = [each.name for each in CATALOG.values() if each.by_default]


def find_sets(names: Collection[str], from_file: Collection[str]) -> list[DataSet]:
    """The sets with these names, in this order; without names, the paper's.

    A name that is in ``from_file`` but not in the catalog is the user's own training set. Raises ConfigError if a name
    is in neither or given twice, or if there is a file for a set that is not in ``names``.
    """
    chosen = list(names or DEFAULT)
    sets = [CATALOG.get(name) or _own_set(name, from_file) for name in chosen]
    for name in chosen:
        if chosen.count(name) > 1:
            raise ConfigError("SET", name, "is named twice. Name it once.")
    for name in from_file:
        if name not in chosen:
            raise ConfigError("--from", name, f"is not a set to prepare ({', '.join(chosen)}). Name it as a SET.")
    return sets


def _own_set(name: str, from_file: Collection[str]) -> DataSet:
    if name not in from_file:
        close = difflib.get_close_matches(name, CATALOG, n=1)
        guess = f"Did you mean {close[0]}?" if close else f"Known sets are {', '.join(CATALOG)} and gym:TASK."
        raise ConfigError("SET", name, f"is not a known set. {guess} Your own set needs a file: --from {name}=FILE")
    if not _OWN_NAME.fullmatch(name):
        raise ConfigError("SET", name, "is not a name for a set. Use letters, digits, dashes and underscores.")
    return DataSet(name=name, kind="training")
