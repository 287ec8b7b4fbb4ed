"""Prepare data sets: read, select, and write them as JSON Lines for training and evaluation.

All training sets of a call go into the same file, ``train.jsonl``; every benchmark gets its own file. Beside each file,
NAME.counts.json counts the rows that were kept and dropped.
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
from meds_openrlhf.json_text import parse_json

Report = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """An output file: its name without suffix, its problems, and the counts of each set in it."""

    name: str
    problems: list[Problem]
    counts: dict[str, Counts]

    def path(self, folder: Path) -> Path:
        """The path of the problems."""
        return folder / f"{self.name}.jsonl"

    def counts_path(self, folder: Path) -> Path:
        """The path of the counts."""
        return folder / f"{self.name}.counts.json"


def prepare(sources: Sequence[Source], out: Path, report: Report = lambda line: None) -> list[Prepared]:
    """Write the files of these sets into ``out``: training first, then the benchmarks in their order.

    Training questions that are in one of the benchmarks are left out. All sets are read before anything is written: if
    a set fails, ``out`` is unchanged. ``report`` gets a line per set, and notes about an earlier training file. Raises
    ConfigError if a set cannot be read or leaves no problems, or if ``out`` cannot be written.
    """
    check_writable(out)
    check_hub(sources)
    files = select(sources, report)
    write(files, out, {source.dataset.name: str(source) for source in sources}, report)
    return files


def write(files: Sequence[Prepared], out: Path, origins: dict[str, str], report: Report) -> None:
    """Write files and their counts; ``origins`` says where each set is from. Reports notes about an earlier one."""
    for note in notes_on_earlier(files, out):
        report(f"note: {note}")
    try:
        for file in files:
            write_atomically(file.path(out), "".join(_line(asdict(problem)) for problem in file.problems))
            write_atomically(file.counts_path(out), _line(_summary(file, origins), indent=2))
    except OSError as error:
        raise _not_writable(out, error) from error


def check_writable(out: Path) -> None:
    """Raise ConfigError if the folder cannot be created or written to. Leaves no files behind."""
    try:
        folder = next(each for each in (out, *out.parents) if each.exists() or each.is_symlink())
        if not folder.is_dir():
            raise ConfigError("--out", str(out), f"cannot be created: {folder} is not a folder. Name another.")
        tempfile.TemporaryDirectory(prefix=".trial-", dir=folder).cleanup()
    except OSError as error:
        raise _not_writable(out, error) from error


def _not_writable(out: Path, error: OSError) -> ConfigError:
    return ConfigError("--out", str(out), f"is not writable ({error.strerror}). Name another folder.")


def notes_on_earlier(files: Sequence[Prepared], out: Path) -> list[str]:
    """Notes about a training file that is already in ``out``; call before ``files`` are written."""
    train = next((file for file in files if file.name == TRAINING_FILE), None)
    path = out / f"{TRAINING_FILE}.jsonl"
    if not path.exists():
        return []
    if train is None:
        benchmarks = ", ".join(file.name for file in files)
        return [f"{path} was not compared with {benchmarks}. Prepare both in one call."]
    earlier = _earlier_kept(train.counts_path(out))
    if earlier == {name: counts.kept for name, counts in train.counts.items()}:
        return []
    replaced = " and ".join(f"{kept:,} of {name}" for name, kept in earlier.items()) if earlier else "of unknown sets"
    return [f"{path} is replaced. It contained another selection of problems: {replaced}"]


def _earlier_kept(counts_path: Path) -> dict[str, int] | None:
    """The number of problems of each set in an earlier file; None if its counts cannot be read."""
    try:
        sets = parse_json(counts_path.read_text())["sets"]
        return {str(name): int(counts["kept"]) for name, counts in sets.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def select(sources: Sequence[Source], report: Report = lambda line: None) -> list[Prepared]:
    """The files that `prepare` writes, in the same order."""
    training = [source for source in sources if source.dataset.kind == "training"]
    tested = [_take_in([source], (), report) for source in sources if source.dataset.kind == "benchmark"]
    held_out = frozenset[str]().union(*(selection.questions for selection in tested))
    trained = [_take_in(training, held_out, report)] if training else []
    return [_finish(selection, sources) for selection in (*trained, *tested)]


def _take_in(sources: Sequence[Source], held_out: Collection[str], report: Report) -> Selection:
    """Read the rows of the sets that share a file."""
    selection = Selection(held_out)
    for source in sources:
        report(f"reading {source.dataset.name} from {source}")
        counts = selection.add(source.dataset, read_rows(source))
        # Duplicates are valid problems, only from an earlier set.
        if counts.dropped.total() == counts.read and not counts.dropped[DUPLICATE]:
            raise source.error(f"none of its {counts.read:,} rows can be used{_because(counts)}")
    return selection


def _finish(selection: Selection, sources: Sequence[Source]) -> Prepared:
    problems = selection.finish()
    source = next(source for source in sources if source.dataset.name in selection.counts)
    if not problems:
        why = _because(selection.counts[source.dataset.name])
        raise source.error(f"has no usable problem for {source.dataset.file}.jsonl{why}")
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
