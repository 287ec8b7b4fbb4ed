"""Preparing sets: read, select, and write as JSON Lines that OpenRLHF trains and evaluates on.

The training sets of one call make one file, ``train.jsonl``; every benchmark makes one of its own. Beside each file,
NAME.counts.json says what became of every row.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.data.catalog import TRAINING_FILE
from meds_openrlhf.data.selection import DUPLICATE, Counts, Problem, Selection
from meds_openrlhf.data.sources import Source, check_hub, read_rows
from meds_openrlhf.files import write_atomically

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
    where a set fails, ``out`` is as it was. ``report`` gets a line per set, and what to know of an earlier training
    file. Raises ConfigError for a set that cannot be read or leaves nothing, and where ``out`` cannot be written.
    """
    check_writable(out)
    check_hub(sources)
    files = select(sources, report)
    for note in notes_on_earlier(files, out):
        report(f"note: {note}")
    origins = {source.dataset.name: str(source) for source in sources}
    try:
        for file in files:
            write_atomically(file.path(out), "".join(_line(asdict(problem)) for problem in file.problems))
            write_atomically(file.counts_path(out), _line(_summary(file, origins), indent=2))
    except OSError as error:
        raise _not_writable(out, error) from error
    return files


def check_writable(out: Path) -> None:
    """Raise ConfigError where the folder can be neither made nor written to. Nothing is left of the trial."""
    try:
        folder = next(each for each in (out, *out.parents) if each.exists() or each.is_symlink())
        if not folder.is_dir():
            raise ConfigError("--out", str(out), f"cannot be made: {folder} is no folder; name another")
        tempfile.TemporaryDirectory(prefix=".trial-", dir=folder).cleanup()
    except OSError as error:
        raise _not_writable(out, error) from error


def _not_writable(out: Path, error: OSError) -> ConfigError:
    return ConfigError("--out", str(out), f"cannot be written to ({error.strerror}); name another folder")


def notes_on_earlier(files: Sequence[Prepared], out: Path) -> list[str]:
    """What to know of a training file that is in ``out`` already, before these are written."""
    train = next((file for file in files if file.name == TRAINING_FILE), None)
    path = out / f"{TRAINING_FILE}.jsonl"
    if not path.exists():
        return []
    if train is None:
        benchmarks = ", ".join(file.name for file in files)
        return [f"{path} was not compared with {benchmarks}; prepare both in one call"]
    earlier = _earlier_kept(train.counts_path(out))
    if earlier == {name: counts.kept for name, counts in train.counts.items()}:
        return []
    held = " and ".join(f"{kept:,} of {name}" for name, kept in earlier.items()) if earlier else "of unknown sets"
    return [f"{path} is replaced; it held problems of another selection: {held}"]


def _earlier_kept(counts_path: Path) -> dict[str, int] | None:
    """How many problems an earlier file has from each set; None where its counts are not to be read."""
    try:
        sets = json.loads(counts_path.read_text())["sets"]
        return {str(name): int(counts["kept"]) for name, counts in sets.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


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
