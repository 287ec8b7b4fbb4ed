"""Prepare data sets: read, select, and write them as JSON Lines for training and evaluation.

All training sets of a call go into the same file, ``train.jsonl``; every benchmark gets its own file. Beside each file,
NAME.counts.json counts the rows that were kept and dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.data.catalog import TRAINING_FILE
from meds_openrlhf.data.selection import DUPLICATE, Counts, Problem, Selection
from meds_openrlhf.data.sources import Source, read_rows
from meds_openrlhf.files import write_atomically
from meds_openrlhf.rewards.labels import MOST_UNMATCHED, unmatched

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


def prepare(sources: Sequence[Source], out: Path, report: Report = lambda line: None) -> list[Prepared]:
    """Write the files of these sets into ``out``: training first, then the benchmarks in their order.

    Training questions that are in one of the benchmarks are left out. All sets are read before anything is written: if
    a set fails, ``out`` is unchanged. ``report`` gets a line per set. Raises ConfigError if a set cannot be read or
    leaves no problems, or if ``out`` cannot be written.
    """
    check_writable(out)
    training = [source for source in sources if source.dataset.kind == "training"]
    tested = {source.dataset.name: [source] for source in sources if source.dataset.kind == "benchmark"}
    files, held_out = [], set[str]()
    for name, together in {**tested, **({TRAINING_FILE: training} if training else {})}.items():
        selection = Selection(held_out if name == TRAINING_FILE else ())
        for source in together:
            report(f"reading {source.dataset.name} from {source}")
            selection.add(source.dataset, read_rows(source))
        files.append(_finish(name, selection, together))
        _check_labels(files[-1], together, report)
        held_out.update(selection.questions)
    files.sort(key=lambda file: file.name != TRAINING_FILE)
    if not training and (out / f"{TRAINING_FILE}.jsonl").exists():
        report(f"note: {out}/train.jsonl was not compared with {', '.join(tested)}. Prepare both in one call.")
    write(files, out, {source.dataset.name: str(source) for source in sources})
    return files


def _finish(name: str, selection: Selection, sources: Collection[Source]) -> Prepared:
    problems = selection.finish()
    for source in sources:
        counts = selection.counts[source.dataset.name]
        # Duplicates are valid problems, only from an earlier set.
        if not counts.kept and not (problems and counts.dropped[DUPLICATE]):
            hint = f"none of its {counts.read:,} rows can be used: {counts.as_text()}. docs/data.md explains them"
            raise source.error(f"{hint}; --columns question=COLUMN answer=COLUMN names other columns.")
    return Prepared(name, problems, selection.counts)


def _check_labels(file: Prepared, sources: Collection[Source], report: Report) -> None:
    """Report the labels of each set that only a copy of them can match.

    Raises ConfigError if a training set has more than `MOST_UNMATCHED` of them.
    """
    try:
        places = unmatched([problem.answer for problem in file.problems])
    except ModuleNotFoundError as error:
        report(f"note: without {error.name}, labels are not checked")
        return
    for source in sources:
        name = source.dataset.name
        wrong = [problem for place in places if (problem := file.problems[place]).datasource == name]
        if not wrong:
            continue
        kept = file.counts[name].kept
        fault = f"{len(wrong):,} of {kept:,} answers cannot be compared, e.g. {wrong[0].answer!r:.80} of {wrong[0].id}"
        if len(wrong) > MOST_UNMATCHED * kept and source.dataset.kind == "training":
            raise source.error(f"{fault}. Correct them, or name another column: --columns answer=COLUMN")
        report(f"note: {name}: {fault}; only a copy of them is right")


def write(files: Sequence[Prepared], out: Path, origins: dict[str, str]) -> None:
    """Write files and their counts; ``origins`` says where each set is from."""
    try:
        for file in files:
            lines = [json.dumps(asdict(problem)) + "\n" for problem in file.problems]
            write_atomically(file.path(out), "".join(lines))
            sets = {name: {"source": origins[name], **vars(counts)} for name, counts in file.counts.items()}
            summary = {"file": f"{file.name}.jsonl", "problems": len(file.problems), "sets": sets}
            write_atomically(out / f"{file.name}.counts.json", json.dumps(summary, indent=2) + "\n")
    except OSError as error:
        raise ConfigError("--out", str(out), f"is not writable ({error.strerror}). Name another folder.") from error


def check_writable(out: Path) -> None:
    """Raise ConfigError, before anything is read, if the folder cannot be created or written to."""
    folder = next(each for each in (out, *out.parents) if each.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise ConfigError("--out", str(out), f"is not writable, because {folder} is not. Name another folder.")
