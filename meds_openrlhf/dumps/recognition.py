"""Which format a file has: the one whose columns its first lines hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.dumps.formats import FORMATS, Format, columns_of
from meds_openrlhf.dumps.values import ODD, LeftOut, Row, as_number

LOOK = 256  # lines of a file by which its format is recognized: in the first, a value may be null


@dataclass
class Look:
    """What the first rows of a file hold in a format: its columns, which of them are numbers, and its evaluations."""

    name: str
    form: Format
    columns: dict[str, None] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)  # with a value in some row
    numbers: set[str] = field(default_factory=set)
    rows: int = 0
    left_out: int = 0
    evaluations: int = 0

    def add(self, line: Row) -> None:
        """Look at one more line."""
        for row in self.form.split(line):
            self.rows += 1
            self.evaluations += self.form.is_evaluation(row)
            try:
                columns = columns_of(self.form, row)
            except (LeftOut, *ODD):
                self.left_out += 1
                continue
            self.columns |= dict.fromkeys(columns)
            self.present |= {name for name, value in columns.items() if value is not None}
            named = self.form.reward
            self.numbers |= {
                name
                for name, value in columns.items()
                # A text counts as a number where the column is known to be the reward.
                if as_number(value) is not None and (name in named or not isinstance(value, str))
            }

    @property
    def fits(self) -> bool:
        """Whether these rows have a prompt, a response and, as far as they are rollouts, a reward."""
        if self.form.marks and self.rows and self.left_out == self.rows:
            return True
        return self.has_texts and bool(self.rewards)

    @property
    def is_sure(self) -> bool:
        """Whether more rows would change nothing."""
        is_decided = self.form.reward[:1] == self.rewards[:1] and (not self.form.step or self.has("step"))
        return self.fits and is_decided and not self.may_hold_training

    @property
    def may_hold_training(self) -> bool:
        """Whether there were evaluations alone, and rollouts of the training may follow."""
        return self.form.evaluates is not None and 0 < self.rows == self.evaluations

    @property
    def rewards(self) -> tuple[str, ...]:
        """The columns that may be the reward, the preferred one first."""
        numbers = [name for name in self.columns if name in self.numbers]
        if not self.form.reward:
            roles = ("prompt", "response", "truth", "answer", "step", "marks")
            taken = {name for role in roles for name in getattr(self.form, role)}
            return tuple(name for name in numbers if name not in taken)
        named = tuple(name for name in self.form.reward if name in self.numbers)
        return named or tuple(name for name in numbers if name.rpartition(".")[0] in self.form.reward)

    @property
    def has_texts(self) -> bool:
        """Whether these rows have a prompt and a response."""
        return self.has("prompt") and self.has("response")

    def has(self, role: str) -> bool:
        """Whether these rows have a value in this role."""
        return any(name in self.present for name in getattr(self.form, role))


def recognized(lines: Iterable[Row], wanted: str, columns: Mapping[str, str]) -> Look | None:
    """The first format that the lines fit, of all or the ``wanted`` one alone; else one that is known, but not read.

    Returns None if there is neither. ``columns`` replaces names of columns.
    """
    named = {role: (column,) for role, column in columns.items()}
    looks: dict[str, Look] = {}
    for seen, line in enumerate(lines):
        first = next((look for look in _in_order(looks) if look.has_texts), None)
        is_sure = first is not None and first.is_sure and first.columns.keys() >= set(columns.values())
        if is_sure or (seen >= LOOK and not (first and first.may_hold_training)):
            break
        for name, form in FORMATS.items():
            if wanted == name or (wanted == "auto" and _may_be(name, form, line, named)):
                looks.setdefault(name, Look(name, replace(form, **named))).add(line)  # type: ignore[arg-type]
    fitting = [look for look in _in_order(looks) if look.fits and not look.form.unread]
    return next(iter(fitting or [look for look in _in_order(looks) if look.form.unread]), None)


def _may_be(name: str, form: Format, line: Row, named: Mapping[str, object]) -> bool:
    """Whether a line may be of a format. Columns that the user names are no trainer's, but for its own marks."""
    if form.marks:
        return any(mark in line for mark in form.marks)
    return name == "plain" or not {"prompt", "response"} & named.keys()


def chosen(looks: Sequence[Look], source: str) -> Format:
    """The format of all files of a program, with the column of the reward that all have.

    Raises ConfigError if that is not a single one.
    """
    form, found = looks[0].form, [look.rewards for look in looks if look.rewards]
    of_any = tuple(dict.fromkeys(name for names in found for name in names))
    of_all = tuple(name for name in of_any if all(name in names for names in found))
    if form.reward and of_any and of_any[0] in form.reward:
        return replace(form, reward=(of_all or of_any)[:1])
    if len(of_any) > 1:
        hint = f"has several columns of numbers ({listed(of_any)}). Choose one with --columns reward=NAME."
        raise ConfigError("FILES", source, hint)
    return replace(form, reward=of_any or form.reward or ("reward",))


def columns_found(lines: Iterable[Row]) -> str:
    """The columns of some lines, for a message; of a trainer's known wrapping, those inside."""
    found: dict[str, None] = {}
    for line in lines:
        for form in FORMATS.values():
            if form.marks and any(mark in line for mark in form.marks):
                look = Look("", form)
                look.add(line)
                found |= look.columns
        found |= dict.fromkeys(map(str, line))
    return listed(found)


def listed(names: Iterable[str]) -> str:
    """Names of columns in a line of a message, which is bounded: a file may have any."""
    return ", ".join(" ".join(name.split())[:60] for name in list(names)[:30])


def _in_order(looks: Mapping[str, Look]) -> list[Look]:
    return [looks[name] for name in FORMATS if name in looks]
