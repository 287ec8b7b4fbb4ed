"""Read a run's configuration: YAML, variants, overrides, then types. ``meds.*`` is ours, the rest is OpenRLHF's."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meds_openrlhf.config.credentials import HIDDEN, credentials_in
from meds_openrlhf.config.errors import ConfigError, WithoutEffect, suggestion
from meds_openrlhf.config.removed import without_removed
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.config.section import build
from meds_openrlhf.files import read_file

logger = logging.getLogger(__name__)

# Settings of a reward, each with one that would be used in its place.
REPLACED_REWARDS = (
    *((name, "train.agent_func_path") for name in ("meds.reward", "reward.remote_url", "reward.model_name_or_path")),
    ("meds.reward", "reward.remote_url"),
)


@dataclass(frozen=True)
class RunConfig:
    """One run: our typed settings, and OpenRLHF's flags by their dotted names (not yet validated by its parser)."""

    meds: MedsSettings
    openrlhf: dict[str, Any]
    variants: tuple[str, ...] = ()  # names of the applied variants, for display

    def as_yaml(self) -> str:
        """The configuration as a YAML text that loads back to the same configuration."""
        import yaml  # not for `meds --help`

        head = f"# with the variants {', '.join(self.variants)}\n" if self.variants else ""
        settings = {"meds": asdict(self.meds), **_nested(self.openrlhf)}
        return head + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def load_config(
    path: str | Path, overrides: Sequence[str] | Mapping[str, Any] = (), *, named_by_user: bool = False
) -> RunConfig:
    """Read ``path`` and apply ``overrides``, as typed (``--a.b value``) or by name; each ``--variant FILE:NAME`` first.

    A file that is ``named_by_user`` may be a pipe, unlike the one in a run's folder. A setting that has no effect
    because of one that a later source sets (a variant, what is typed) is left out, with a warning.

    Raises ConfigError if the file is missing or not a mapping, or if a ``meds.`` key or its value is wrong.
    """
    flat = flatten(read_mapping(Path(path), "CONFIG", named_by_user=named_by_user))
    typed = dict(overrides) if isinstance(overrides, Mapping) else parse_overrides(overrides)
    references = typed.pop("variant", [])
    variants = [read_variant(reference) for reference in (references if isinstance(references, list) else [references])]
    sources = [flat, *(settings for _, settings in variants), typed]
    place = {key: number for number, source in enumerate(sources) for key in source}
    for name, settings in variants:
        if "meds.run_dir" in flat:
            flat["meds.run_dir"] = f"{flat['meds.run_dir']}-{name}"
        flat.update(settings)
    flat.update(typed)
    for name in credentials_in(flat):
        hint = "credentials are read from the environment, because logs, reports and Ray's dashboard show settings. "
        raise ConfigError(name, HIDDEN, f"{hint}Set WANDB_API_KEY or HF_TOKEN, or read it in a reward file of yours.")
    for name, other in REPLACED_REWARDS:
        if flat.get(name) and flat.get(other) and place[name] < place[other]:
            logger.warning("%s=%s has no effect: it is replaced by %s", name, flat[name], other)
            del flat[name]
    ours = {key: value for key, value in flat.items() if key.startswith("meds.")}
    theirs = {key: value for key, value in flat.items() if key not in ours}
    return RunConfig(_composed(ours, place), theirs, tuple(name for name, _ in variants))


def _composed(flat: dict[str, Any], place: Mapping[str, int]) -> MedsSettings:
    """Our settings, without those that a setting from a later source makes ineffective."""
    try:
        return settings_of(flat)
    except WithoutEffect as unused:
        if unused.field not in flat or place[unused.field] >= place.get(unused.because, 0):
            raise
        logger.warning("%s=%s has no effect: it %s", unused.field, unused.value, unused.reason)
        return _composed({key: value for key, value in flat.items() if key != unused.field}, place)


def settings_of(flat: Mapping[str, Any]) -> MedsSettings:
    """Our settings, given by full name such as ``meds.penalty.alpha``. Raises ConfigError if they are wrong."""
    return build(MedsSettings, _nested(without_removed(flat)).get("meds", {}), "meds")


def read_variant(reference: object) -> tuple[str, dict[str, Any]]:
    """The variant ``FILE:NAME``: its name, and its settings by dotted key. Raises ConfigError if it does not exist."""
    path, _, name = str(reference).rpartition(":")
    if not path:
        raise ConfigError("--variant", reference, "must be FILE:NAME, e.g. configs/ablations.yaml:14-diff.")
    variants = read_mapping(Path(path), "--variant")
    if name not in variants:
        raise ConfigError("--variant", reference, f"unknown variant. {suggestion(name, variants)}")
    flat = flatten(variants[name]) if isinstance(variants[name], dict) else {"": None}
    if "/" in name or not all("." in key for key in flat):
        hint = "is not a variant. It needs a name without / and values by dotted key, e.g. meds.penalty.alpha."
        raise ConfigError("--variant", reference, hint)
    return name, flat


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Turn ``["--a.b", "1", "--c"]`` into ``{"a.b": 1, "c": True}``; several values in a row make a list."""
    overrides: dict[str, Any] = {}
    values: list[Any] = []
    for word in words:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            values = overrides[key] if key == "variant" and key in overrides else []  # only --variant accumulates
            values += [value_of(value)] if equals else []
            overrides[key] = values
        elif not overrides:
            raise ConfigError("argument", word, "is not an override. Write --section.key VALUE.")
        else:
            values.append(value_of(word))
    return {key: True if not got else got[0] if len(got) == 1 else got for key, got in overrides.items()}


def value_of(word: str) -> Any:
    """A typed word as YAML reads it, but `#### ` stays a text, not a comment, and `Answer: (.*)`, not a mapping."""
    from meds_openrlhf.yaml_text import parse_yaml

    try:
        value = parse_yaml(word)
    except ValueError:
        return word
    is_null = value is None and word.strip() in ("", "~", "null", "Null", "NULL")
    is_text = value is None or (isinstance(value, str) and word[:1] not in ("'", '"'))
    is_text = is_text or (isinstance(value, dict) and word[:1] != "{")
    return word if is_text and not is_null else value


def read_mapping(path: Path, name: str, *, named_by_user: bool = False) -> dict[str, Any]:
    """Read the mapping in a YAML file. Raises ConfigError about the argument ``name`` if the file does not hold one."""
    from meds_openrlhf.yaml_text import parse_yaml

    try:
        content = parse_yaml(read_file(path, named_by_user=named_by_user).decode())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigError(name, path, f"is not a readable YAML file ({reason}).") from error
    if not isinstance(content, dict):
        raise ConfigError(name, path, "must be a mapping that begins with a key such as `meds:`.")
    return content


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Turn ``{"a": {"b": 1}}`` into ``{"a.b": 1}``; keys may themselves be dotted. Raises ConfigError for two alike."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        found = flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
        for setting, content in found.items():
            if setting in flat:
                raise ConfigError(setting, content, "is set twice. Remove a line.")
            if content is not None or "." in setting:  # skip an empty top-level section
                flat[setting] = content
    return flat


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn ``{"a.b": 1}`` into ``{"a": {"b": 1}}``."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, leaf = key.split(".")
        node = tree
        for depth, parent in enumerate(parents, start=1):
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(".".join(parents[:depth]), node, "must be a section: set the keys below it.")
        node[leaf] = value
    return tree
