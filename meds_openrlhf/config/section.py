"""Sections of settings: frozen dataclasses whose types say which values they take."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from meds_openrlhf.config.errors import ConfigError, WithoutEffect, suggestion

T = TypeVar("T")

_kinds = partial(get_type_hints, include_extras=True)
MOST = 10**8  # of any setting's number: a timer holds as many minutes
_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a text", type(None): "null"}
_WORDS |= {list: "a list", dict: "a mapping"}


class That(NamedTuple):
    """A condition on a type: ``Annotated[int, That("is at least 1", lambda count: count >= 1)]``."""

    words: str
    holds: Callable[[Any], bool]


class Section:
    """Base class of the settings below a dotted name. Raises ConfigError for a value that does not fit its field."""

    section = ""

    def __init_subclass__(cls, name: str) -> None:
        cls.section = name

    def __post_init__(self) -> None:
        for key, kind in _kinds(type(self)).items():
            object.__setattr__(self, key, fit(getattr(self, key), kind, f"{self.section}.{key}"))

    def require(self, holds: bool, key: str, hint: str) -> None:
        """Raise ConfigError about the setting ``key`` unless a rule that involves several settings ``holds``."""
        if not holds:
            raise ConfigError(f"{self.section}.{key}", getattr(self, key), hint)

    def require_default(self, keys: Iterable[str], hint: str, because: str) -> None:
        """Raise WithoutEffect, a ConfigError, if one of ``keys`` is set although ``because`` makes it ineffective."""
        for key in keys:
            if (value := getattr(self, key)) != getattr(type(self), key):
                raise WithoutEffect(f"{self.section}.{key}", value, hint, because)


def build(cls: type[T], values: Mapping[str, Any], name: str) -> T:
    """Build the dataclass ``cls`` from a nested mapping and check every key and value; ``name`` is its dotted name."""
    kinds = _kinds(cls)
    for key, value in values.items():
        if key not in kinds:
            raise ConfigError(f"{name}.{key}", value, f"unknown setting. {suggestion(key, kinds, f'{name}.')}")
    for item in fields(cls):  # type: ignore[arg-type]
        if item.name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise ConfigError(f"{name}.{item.name}", None, "this setting is required; it has no default.")
    return cls(**{key: fit(values[key], kind, f"{name}.{key}") for key, kind in kinds.items() if key in values})


def fit(value: Any, kind: Any, name: str) -> Any:
    """Return ``value`` as the type ``kind``, converted only without loss. Raises ConfigError about ``name`` if not."""
    if is_dataclass(kind) and isinstance(value, Mapping):
        return build(kind, value, name)  # type: ignore[arg-type]
    words, fitted = _read(value, kind)
    if fitted is MISSING:
        raise ConfigError(name, value, f"must be {words}.")
    return fitted


def _read(value: Any, kind: Any) -> tuple[str, Any]:
    """Return what the type ``kind`` allows, in words, and ``value`` as this type, MISSING if it does not fit."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        options = [_read(value, option) for option in arguments]
        return ", or ".join(words for words, _ in options), next((v for _, v in options if v is not MISSING), MISSING)
    if origin is Literal:
        choices = ", ".join(f'"{choice}"' for choice in arguments)
        return " or ".join(choices.rsplit(", ", 1)), value if value in arguments else MISSING
    if origin is Annotated:
        (words, fitted), condition = _read(value, arguments[0]), arguments[1]
        fits = fitted is not MISSING and condition.holds(fitted)
        return f"{words} that {condition.words}", fitted if fits else MISSING
    if origin is tuple:
        items = [value] if isinstance(value, str) else value
        fits = isinstance(items, (list, tuple)) and all(isinstance(item, str) for item in items)
        return "a list of texts", tuple(items) if fits else MISSING
    if kind is float and type(value) in (int, str):  # YAML 1.1 reads 1e-6, which has no dot, as a string
        with suppress(ValueError):
            value = float(value)
    if kind in (int, float) and type(value) is kind and not abs(value) <= MOST:
        return _WORDS[kind] if value != value else f"{_WORDS[kind]} of at most 10^8", MISSING
    return _WORDS.get(kind, "a section: set the keys below it"), value if type(value) is kind else MISSING
