"""The data sets that `meds data prepare` knows: their location on the Hugging Face hub, and the rows to keep."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from meds_openrlhf.config.errors import ConfigError, suggestion

TRAINING_FILE = "train"  # of all training sets, without suffix; a benchmark's has its name


@dataclass(frozen=True)
class DataSet:
    """A set of problems with their answers."""

    name: str
    kind: Literal["training", "benchmark"]
    hub: str | None = None
    """Its name on the hub; None if it can only be read from a file."""
    hub_file: str | None = None
    """The file there, if the set is one of several without a name."""
    split: str = "train"
    columns: tuple[str, str] = ("question", "answer")
    """Its question and its answer; without these columns, the usual ones are looked for."""
    rows: int | None = None
    """Number of rows of the split on the hub, as of 2026; another number means that the set has changed."""
    paper: str | None = None
    """Number of problems that the paper's experiments have of it; these sets are prepared by default."""
    levels: tuple[str, ...] = ()
    """Values of the column `level` that are kept by default; empty: all rows."""


_SETS = (
    # About 17 thousand problems, a hundred times each.
    DataSet("dapo-math-17k", "training", "BytedTsinghua-SIA/DAPO-Math-17k", rows=1_791_700, paper="17k"),
    DataSet(
        "math-3to5",
        "training",
        "hkust-nlp/SimpleRL-Zoo-Data",  # as in R1-Zero-like training, which the paper cites
        "simplelr_qwen_level3to5/train.parquet",
        columns=("extra_info.question", "reward_model.ground_truth"),
        rows=8_523,
        paper="8,523",
    ),
    DataSet("math", "training", "DigitalLearningGmbH/MATH-lighteval", rows=7_500, levels=("3", "4", "5")),
    DataSet("aime24", "benchmark", "HuggingFaceH4/aime_2024", rows=30, paper="30"),
    DataSet("amc23", "benchmark", "math-ai/amc23", split="test", rows=40, paper="40"),
    DataSet("math500", "benchmark", "HuggingFaceH4/MATH-500", split="test", rows=500, paper="500"),
    DataSet("minerva", "benchmark", "math-ai/minervamath", split="test", rows=272, paper="272"),
    # As it was before one of its 675 problems was withdrawn and 15 were corrected.
    DataSet("olympiadbench", "benchmark", "knoveleng/OlympiadBench", rows=675, paper="675"),
)
CATALOG = {each.name: each for each in _SETS}


def find_sets(names: Collection[str], from_file: Collection[str]) -> list[DataSet]:
    """The sets with these names, in this order; without names, the paper's.

    A name that is in ``from_file`` but not in the catalog is the user's own training set. Raises ConfigError if a name
    is in neither, or if there is a file for a set that is not in ``names``.
    """
    chosen = list(dict.fromkeys(names)) or [name for name, dataset in CATALOG.items() if dataset.paper]
    for name in chosen:
        if name not in CATALOG and name not in from_file:
            hint = f"is not a known set. {suggestion(name, CATALOG)} Your own set needs a file: --from {name}=FILE"
            raise ConfigError("SET", name, hint)
    for name in from_file:
        if name not in chosen:
            hint = f"is not among the sets to prepare ({', '.join(chosen)}). Add it as a SET."
            raise ConfigError("--from", name, hint)
    return [CATALOG.get(name) or DataSet(name, "training") for name in chosen]
