"""Read dumps line by line, count what is left out and why, and yield the rollouts step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.dumps.files import UNREADABLE, DumpFile, find_files, second_copies, why
from meds_openrlhf.dumps.formats import Format, Rollout
from meds_openrlhf.dumps.recognition import LOOK, Look, chosen, columns_found, listed, recognized
from meds_openrlhf.dumps.values import ODD, LeftOut
from meds_openrlhf.files import MIB, SIZE_FACTOR, most_of

PORTION = 4_096  # lines that count as a step where a dump does not say its steps
MOST_SORTED = 512 * MIB  # of all files, unpacked: above, they are read as they are, in the order of their paths
_MODEL = ("model", "model_name", "model_name_or_path")


@dataclass
class Counts:
    """What was read, and what was left out by reason, lines and files; ``examples`` has the first of each."""

    files: int = 0
    rollouts: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    files_left_out: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def leave_out(self, reason: str, place: str, lines: int = 1) -> None:
        """Count lines that are not rollouts."""
        self.left_out[reason] += lines
        self.examples.setdefault(reason, place)

    def leave_out_file(self, reason: str, file: DumpFile, detail: str = "") -> None:
        """Count a file that is not read, or not to its end."""
        self.files_left_out[reason] += 1
        self.examples.setdefault(reason, f"{file.path}{detail}")


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file, as a ``kind`` and in words; of several, that of the lowest ``rank`` is named first."""

    rank: int
    file: DumpFile
    kind: str
    hint: str
    detail: str = ""


class Dump:
    """The dumps of a run: ``files``, and every dump in them that are folders; ``-`` is standard input.

    What a file holds says of which format it is; what holds no rollouts, or cannot be read, is left out and counted,
    and so are evaluations beside rollouts of a training. ``columns`` replaces names of columns by their role; its
    ``filter`` is the filter of lm-eval whose lines count, by default each file's first. A folder ``without`` inside the
    given ones, such as an earlier atlas, is not read.

    Iterating yields (step, rollouts), steps in ascending order; `counts` and `format_name` are complete after it. If
    steps are counted from 0 they are numbered from 1. Raises ConfigError if nothing can be read, and for what would
    have to be guessed: two formats, two runs, several rewards.
    """

    def __init__(
        self,
        files: Sequence[Path],
        format_name: str = "auto",
        columns: Mapping[str, str] | None = None,
        without: Path | None = None,
    ):
        self.named = files
        self._files = find_files(files, without and without.resolve())
        self._wanted = format_name
        self._columns = dict(columns or {})
        self._wanted_filter = self._columns.pop("filter", None)
        self._filter: str | None = None
        self._model: str | None = None
        self.format_name = format_name
        self.counts = Counts()

    def __iter__(self) -> Iterator[tuple[int, list[Rollout]]]:
        last, where, shift = 0, "", None
        before: list[tuple[str, str, float]] = []
        for (step, folder), placed in groupby(self._in_order(), key=lambda place: place[:2]):
            shift = int(step == 0) if shift is None else shift
            number = step + shift
            if number <= last:
                hint = f"has step {step} after step {last - shift} of {where}. Sort the lines by step, or raise "
                hint += f"{SIZE_FACTOR}, up to which they are sorted in memory."
                if number == last:
                    hint = f"has step {step}, which {where} also has. If these are two runs, make an atlas of each, "
                    hint += "and `meds report` of both."
                raise ConfigError("FILES", folder, hint)
            last, where = number, folder
            rollouts = [rollout for *_, rollout in placed]
            content = [(rollout.prompt, rollout.response, rollout.reward) for rollout in rollouts]
            # TRL logs a generation at every update that uses it; what is mostly alike may be another generation.
            if self.format_name == "trl" and content == before and 2 * len({*content}) > len(content):
                self.counts.rollouts -= len(rollouts)
                self.counts.leave_out("of a repeated step", f"{folder}, step {step}", len(rollouts))
                continue
            before = content
            yield number, rollouts

    def _in_order(self) -> Iterator[tuple[int, str, Rollout]]:
        """Every rollout with its step and its file's series, by step where the files are not too large for that."""
        files = self._of_one_format()
        placed = self._placed(files)
        is_small = sum(file.size for file, _ in files) <= most_of(MOST_SORTED)
        yield from sorted(placed, key=lambda place: place[0]) if is_small else placed

    def _placed(self, files: Sequence[tuple[DumpFile, Look]]) -> Iterator[tuple[int, str, Rollout]]:
        looks = [look for _, look in files]
        self._require_named(looks)
        form = chosen(looks, str(files[0][0].path))
        of_training = not _is_evaluation(*files[0])
        has_steps = any(look.has("step") for look in looks)
        portion = 0
        for file, _ in files:
            self.counts.files += 1
            of_file, series = file.step(form.step_names), file.series
            for line, rollout in enumerate(self._rollouts(file, form, of_training)):
                step = rollout.step if rollout.step is not None else of_file
                if step is None and has_steps:
                    self.counts.rollouts -= 1
                    self.counts.leave_out("without a step", str(file.path))
                    continue
                if step is None:
                    portion += line % PORTION == 0
                    step = portion
                yield step, series, rollout

    def _of_one_format(self) -> list[tuple[DumpFile, Look]]:
        """The files that hold rollouts, of the training if there are such. Raises ConfigError for several formats."""
        found = self._with_rollouts()
        training = [(file, look) for file, look in found if not _is_evaluation(file, look)]
        if training:
            for file, look in found:
                if _is_evaluation(file, look):
                    self.counts.leave_out_file("of an evaluation", file)
        names = {look.name: file for file, look in reversed(training or found)}
        if len(names) > 1:
            each = " and ".join(f"{name} ({file.path})" for name, file in sorted(names.items()))
            hint = f"have rollouts of {each}. Name the files of one, or choose with --format."
            raise ConfigError("FILES", None, hint)
        [self.format_name] = names
        return training or found

    def _with_rollouts(self) -> list[tuple[DumpFile, Look]]:
        """The files whose lines fit a format. If none does, raises ConfigError for the one that most likely should."""
        copies = second_copies(self._files)
        found: list[tuple[DumpFile, Look]] = []
        problems: list[Problem] = []
        for file in self._files:
            if file in copies:
                self.counts.leave_out_file("of rollouts that another file has as well", file)
                continue
            try:
                look = recognized((row for _, row in file.rows() if isinstance(row, dict)), self._wanted, self._columns)
                if look is not None and not look.form.unread:
                    found.append((file, look))
                    continue
                problem = _not_read(file, look.form) if look else self._without_rollouts(file)
            except UNREADABLE as error:
                hint = f"cannot be read ({why(error)}). Leave it out."
                problem = Problem(1, file, "that cannot be read", hint, f": {why(error)}")
            problems.append(problem)
            self.counts.leave_out_file(problem.kind, file, problem.detail)
        if problems and not any(look.rewards for _, look in found):
            first = min(problems, key=lambda problem: problem.rank)
            raise ConfigError("FILES", str(first.file.path), first.hint)
        return found

    def _without_rollouts(self, file: DumpFile) -> Problem:
        """What is wrong with a file that fits no format. Raises one of `UNREADABLE`."""
        rows = [row for _, (_, row) in zip(range(LOOK), file.rows())]
        lines = [row for row in rows if isinstance(row, dict)]
        if not lines:
            skipped = f"{len(rows)} without a JSON object" if rows else "none"
            return Problem(3, file, "without rollouts", f"contains no rollouts. Skipped lines: {skipped}.")
        wanted = "of a known trainer" if self._wanted == "auto" else f"of {self._wanted}"
        named = " and those of --columns" if self._columns else ""
        hint = f"does not have the columns {wanted}{named}; it has {columns_found(lines[:3])}. Name those of prompts, "
        hint += "responses and rewards, which are numbers, with --columns prompt=A response=B reward=C."
        return Problem(2, file, "without rollouts", hint)

    def _require_named(self, looks: Sequence[Look]) -> None:
        """Raise ConfigError for a column that the user names and no line has."""
        found = dict.fromkeys(name for look in looks for name in look.columns)
        for role, column in self._columns.items():
            if column not in found:
                hint = f"no line has this column; there are {listed(found)}."
                raise ConfigError("--columns", f"{role}={column}", hint)

    def _rollouts(self, file: DumpFile, form: Format, of_training: bool) -> Iterator[Rollout]:
        self._filter = self._wanted_filter
        try:
            for place, line in file.rows():
                try:
                    rows = self._rows(line, form)
                except LeftOut as reason:
                    self.counts.leave_out(str(reason), place)
                    continue
                for row in rows:
                    try:
                        if of_training and form.is_evaluation(row):
                            raise LeftOut("of an evaluation")
                        rollout = form.rollout(row)
                    except LeftOut as reason:
                        self.counts.leave_out(str(reason), place)
                        continue
                    except ODD as error:
                        self.counts.leave_out(f"that cannot be read ({type(error).__name__})", place)
                        continue
                    self.counts.rollouts += 1
                    yield rollout
        except UNREADABLE as error:
            self.counts.leave_out_file(f"not read to their end ({why(error)})", file)

    def _rows(self, line: Any, form: Format) -> list[Mapping[str, Any]]:
        """The rows of a line. Raises LeftOut."""
        if not isinstance(line, dict):
            raise LeftOut("without a JSON object")
        if "filtered_resps" in line:  # lm-eval repeats a sample for each filter
            self._filter = self._filter or line.get("filter")
            if line.get("filter") != self._filter:
                raise LeftOut(f"of the filter {line.get('filter')}, not of {self._filter}")
        model = next((line[name] for name in _MODEL if isinstance(line.get(name), str)), None)
        self._model = self._model or model
        if model not in (None, self._model):
            raise LeftOut(f"of the model {model}, not of {self._model}")
        return list(form.split(line))


def _not_read(file: DumpFile, form: Format) -> Problem:
    hint = f"has {form.unread}. Write a line for each rollout with prompt, response and reward."
    return Problem(0, file, f"with {form.unread}", hint)


def _is_evaluation(file: DumpFile, look: Look) -> bool:
    return file.is_evaluation or (look.rows > 0 and look.evaluations == look.rows)
