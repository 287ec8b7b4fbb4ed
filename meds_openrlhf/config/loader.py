"""Read a run's configuration: YAML, dotted overrides, then types. ``meds.*`` is ours, the rest is OpenRLHF's."""

from __future__ import annotations

import difflib
import json
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union

import yaml

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.removed import REMOVED, is_as_before
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.config.variants import read_variant
from meds_openrlhf.config.yaml_file import flatten, read_mapping

T = TypeVar("T")

# YAML 1.1 reads 1e-6 (no dot) as a string; for a float setting it is a number.
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")


@dataclass(frozen=True)
class RunConfig:
    """One run: our typed settings, and OpenRLHF's flags by their dotted names (not yet validated by its parser)."""

    meds: MedsSettings
    openrlhf: dict[str, Any]
    variants: tuple[str, ...] = ()  # names of the applied variants, for display

    def as_yaml(self) -> str:
        """The configuration as a YAML text that loads back to the same configuration."""
        nested: dict[str, Any] = {"meds": asdict(self.meds)}
        nested["meds"]["features"]["answer_openings"] = list(self.meds.features.answer_openings)
        for key, value in self.openrlhf.items():
            node = nested
            *parents, leaf = key.split(".")
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = value
        head = f"# with the variants {', '.join(self.variants)}\n" if self.variants else ""
        return head + yaml.safe_dump(nested, sort_keys=False, allow_unicode=True)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read ``path`` and apply ``overrides`` (``--a.b value`` words as typed), every ``--variant FILE:NAME`` first.

    Raises ConfigError if the file is missing or not a mapping, a ``meds.`` key is unknown or a value has a wrong type.
    """
    flat = flatten(read_mapping(Path(path), "CONFIG"))
    typed = parse_overrides(overrides)
    variants: list[str] = []
    for reference in _listed(typed.pop("variant", [])):
        name, settings = read_variant(reference)
        variants.append(name)
        if "meds.run_dir" in flat:
            flat["meds.run_dir"] = f"{flat['meds.run_dir']}-{name}"
        flat.update(settings)
    flat.update(typed)
    ours = {key.removeprefix("meds."): value for key, value in flat.items() if key.startswith("meds.")}
    theirs = {key: value for key, value in flat.items() if not key.startswith("meds.")}
    if theirs.get("logger.wandb.key") is not None:
        raise ConfigError("logger.wandb.key", "***", "belongs in the environment: set WANDB_API_KEY instead")
    return RunConfig(build(MedsSettings, unflatten(ours), "meds"), theirs, tuple(variants))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn ``{"a.b": 1}`` into ``{"a": {"b": 1}}``."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, leaf = key.split(".")
        node = tree
        for depth, parent in enumerate(parents):
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                section = "meds." + ".".join(parents[: depth + 1])
                raise ConfigError(section, node, "is a section, not a value; set the keys below it")
        node[leaf] = value
    return tree


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Turn ``["--a.b", "1", "--c"]`` into ``{"a.b": 1, "c": True}``; several values in a row make a list."""
    overrides: dict[str, Any] = {}
    values: list[Any] = []
    for word in words:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            values = overrides[key] if key == "variant" and key in overrides else []  # only variants add up
            values += [value_of(value)] if equals else []
            overrides[key] = values
        elif not overrides:
            raise ConfigError("argument", word, "is no override; write it as --section.key value")
        else:
            values.append(value_of(word))
    return {key: True if not got else got[0] if len(got) == 1 else got for key, got in overrides.items()}


def value_of(word: str) -> Any:
    """A typed word as YAML reads it, except that strings stay as they are: `#### ` is an answer opening, no comment.

    `Answer: (.*)` is a text as well, not a mapping; that has braces.
    """
    try:
        value = yaml.safe_load(word)
    except yaml.YAMLError:
        return word
    is_null = value is None and word.strip() in ("", "~", "null", "Null", "NULL")
    is_text = value is None or (isinstance(value, str) and word[:1] not in ("'", '"'))
    is_text = is_text or (isinstance(value, dict) and word[:1] != "{")
    return word if is_text and not is_null else value


def as_word(value: Any) -> str:
    """The inverse of `parse_overrides` for one value: ``--key=WORD`` reads ``value`` back."""
    if isinstance(value, str):
        return value if value_of(value) == value else json.dumps(value)
    return str(yaml.safe_dump(value, default_flow_style=True, width=math.inf).splitlines()[0])


def build(cls: type[T], values: Mapping[str, Any], name: str) -> T:
    """Build the dataclass ``cls`` from a nested mapping and check every key and type; ``name`` is its dotted name."""
    hints = typing.get_type_hints(cls)
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in known and not is_as_before(f"{name}.{key}", value):
            raise ConfigError(f"{name}.{key}", value, _unknown_key(f"{name}.{key}", list(known)))
    for key, item in known.items():
        if key not in values and item.default is MISSING and item.default_factory is MISSING:
            raise ConfigError(f"{name}.{key}", None, "is missing; this setting has no default")
    return cls(**{key: _convert(hints[key], value, f"{name}.{key}") for key, value in values.items() if key in known})


def _unknown_key(full_name: str, known: list[str]) -> str:
    key = full_name.rpartition(".")[2]
    if full_name in REMOVED:
        return f"was removed: {REMOVED[full_name][1]}"
    close = difflib.get_close_matches(key, known, n=1)
    return f"is no setting; did you mean {close[0]}?" if close else f"is no setting; known here: {', '.join(known)}"


def _convert(hint: Any, value: Any, name: str) -> Any:
    """Convert ``value`` to the type ``hint``, only without loss (1 to 1.0, "1e-6" to 1e-6, list to tuple)."""
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(name, value, "is a section, not a value; set the keys below it")
        return build(hint, value, name)  # type: ignore[arg-type]
    options = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    if float in options and isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)
    if any(type(value) is option for option in options):
        return value
    for option in options:
        if option is type(None) and value is None:
            return None
        if typing.get_origin(option) is tuple and isinstance(value, (list, tuple, str)):
            items = [value] if isinstance(value, str) else list(value)
            if all(isinstance(item, str) for item in items):
                return tuple(items)
        if option is float and not isinstance(value, bool):
            try:
                return float(value)
            except (TypeError, ValueError):
                continue
    wanted = " or ".join("nothing (null)" if o is type(None) else getattr(o, "__name__", str(o)) for o in options)
    raise ConfigError(name, value, f"has the wrong type; it should be {wanted}")
