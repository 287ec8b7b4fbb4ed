"""The error for what a user can correct: it names the field, the value and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from meds_openrlhf.config.credentials import hidden


class ConfigError(ValueError):
    """The name that the user types, its value (None: without), and a hint: what is wrong, and what to do.

    As text, it is without what `hidden` recognizes as a credential.
    """

    def __init__(self, field: str, value: object, hint: str) -> None:
        super().__init__(field, value, hint)  # the arguments from which pickle rebuilds it
        self.field, self.value, self.hint = field, value, hint

    def __str__(self) -> str:
        return hidden(f"{self.field}: {self.hint}" if self.value is None else f"{self.field}={self.value}: {self.hint}")


class WithoutEffect(ConfigError):
    """A setting that would not be used, because of the setting ``because``, by its full name."""

    def __init__(self, field: str, value: object, hint: str, because: str) -> None:
        super().__init__(field, value, f"{hint} Leave it out.")
        self.args = (field, value, hint, because)
        self.reason, self.because = hint, because


def suggestion(name: str, known: Iterable[object], prefix: str = "") -> str:
    """Say which of the ``known`` names may be meant by ``name``, with ``prefix``, or what they are."""
    close = difflib.get_close_matches(name, names := [*map(str, known)], n=1)
    return f"Did you mean {prefix}{close[0]}?" if close else f"Choose one of {', '.join(names)}."


def how_to_install(extra: str) -> str:
    """How to install what an extra needs. The project's name on the package index is not this project's."""
    if extra == "gpu":  # flash-attn needs torch to be there before it
        return "in a clone of the project: `make setup-gpu`, or without a GPU `make setup`"
    wheel = f"`pip install 'PATH/TO/meds_openrlhf-X.whl[{extra}]'`"
    return f"in a clone of the project: `pip install '.[{extra}]'`, from a wheel: {wheel}"
