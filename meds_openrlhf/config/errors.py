"""The error for what a user can correct: it names the field, the value and what to do."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting, path or machine that does not fit the run. The command line prints it on one line and exits with 2.

    ``field`` is the dotted name that the user typed (or would type), ``value`` is its current value, None if it has
    none, and ``hint`` says what is wrong with it and what to do: ``ds.lora.dropout=1.5: must be below 1.``
    """

    def __init__(self, field: str, value: object, hint: str) -> None:
        self.field = field
        self.value = value
        self.hint = hint
        super().__init__(f"{field}: {hint}" if value is None else f"{field}={value}: {hint}")

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        # Pickle rebuilds an exception from its args; this one needs its three arguments, not the message.
        return ConfigError, (self.field, self.value, self.hint)
