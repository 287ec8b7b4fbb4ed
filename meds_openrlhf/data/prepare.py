"""Preparing sets: read, select, and write as JSON Lines that OpenRLHF trains and evaluates on.

The training sets of one call make one file, ``train.jsonl``; every benchmark makes one of its own. Beside each file,
NAME.counts.json says what became of every row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meds_openrlhf.data.selection import DUPLICATE, Counts, Problem, Selection
from meds_openrlhf.data.sources import Source, read_rows
from meds_openrlhf.paths import write_atomically

Report = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """One file: its name without ending, its problems, and the counts of each set in it."""

    name: str
    problems: list[Problem]
    counts: dict[str, Counts]

    def path(self, folder: Path) -> Path:
        """Where its problems are."""
        return folder / f"{self.name}.jsonl"

    def counts_path(self, folder: Path) -> Path:
        """Where its counts are."""
        return folder / f"{self.name}.counts.json"


def prepare(sources: Sequence[Source], out: Path, report: Report = lambda line: None) -> list[Prepared]:
    """Write the files of these sets into ``out``: training first, then the benchmarks in their order.

    Training questions that are in one of the benchmarks are left out. Everything is read before anything is written:
    where a set fails, ``out`` is as it was. ``report`` gets a line per set. Raises ConfigError for a set that cannot
    be read or leaves nothing, OSError where ``out`` cannot be written.
    """
    files = select(sources, report)
    origins = {source.dataset.name: str(source) for source in sources}
    for file in files:
        write_atomically(file.path(out), "".join(_line(asdict(problem)) for problem in file.problems))
        write_atomically(file.counts_path(out), _line(_summary(file, origins), indent=2))
    return files


def select(sources: Sequence[Source], report: Report = lambda line: None) -> list[Prepared]:
    """What `prepare` writes, and in the same order."""
    training = [source for source in sources if source.dataset.kind == "training"]
    tested = [_take_in([source], (), report) for source in sources if source.dataset.kind == "benchmark"]
    held_out = frozenset[str]().union(*(selection.questions for selection in tested))
    trained = [_take_in(training, held_out, report)] if training else []
    return [_finish(selection, sources) for selection in (*trained, *tested)]


def _take_in(sources: Sequence[Source], held_out: Collection[str], report: Report) -> Selection:
    """The rows of the sets that make one file."""
    selection = Selection(held_out)
    for source in sources:
        report(f"reading {source.dataset.name} from {source}")
        counts = selection.add(source.dataset, read_rows(source))
        # A duplicate is a problem, if only of an earlier set.
        if counts.dropped.total() == counts.read and not counts.dropped[DUPLICATE]:
            raise source.error(f"leaves no problem of its {counts.read:,} rows{_because(counts)}")
    return selection


def _finish(selection: Selection, sources: Sequence[Source]) -> Prepared:
    problems = selection.finish()
    source = next(source for source in sources if source.dataset.name in selection.counts)
    if not problems:
        why = _because(selection.counts[source.dataset.name])
        raise source.error(f"leaves no problem for {source.dataset.file}.jsonl{why}")
    return Prepared(source.dataset.file, problems, selection.counts)


def _because(counts: Counts) -> str:
    reasons = ", ".join(f"{reason} {rows:,}" for reason, rows in counts.reasons().items())
    return f": {reasons}" if reasons else ""


def _summary(file: Prepared, origins: dict[str, str]) -> dict[str, object]:
    sets = {
        name: {"source": origins[name], "read": counts.read, "kept": counts.kept, "dropped": counts.reasons()}
        for name, counts in file.counts.items()
    }
    return {"file": f"{file.name}.jsonl", "problems": len(file.problems), "sets": sets}


def _line(content: dict[str, object], indent: int | None = None) -> str:
    return json.dumps(content, indent=indent) + "\n"
