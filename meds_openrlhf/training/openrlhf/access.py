"""Access to OpenRLHF: modules without their packages, classes without Ray, replaced names, and its arguments.

Importing OpenRLHF's packages imports DeepSpeed and vLLM, which takes many seconds.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, NoReturn

from meds_openrlhf.config import ConfigError


@cache
def module_alone(name: str) -> ModuleType:
    """Import the OpenRLHF module ``name`` without its packages; it must not import other parts of OpenRLHF."""
    spec = importlib.util.spec_from_file_location(name, _file_of(name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain_class(actor_class: Any) -> Any:
    """Return the class that ``@ray.remote`` decorated; Ray does not allow subclassing the decorated class."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__


def bound(actor: Any, **arguments: Any) -> SimpleNamespace:
    """Return what OpenRLHF takes for the Ray actor class ``actor``; ``arguments`` extend or replace OpenRLHF's."""
    return SimpleNamespace(
        options=lambda **options: bound(actor.options(**options), **arguments),
        remote=lambda *given, **named: actor.remote(*given, **{**named, **arguments}),
    )


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Temporarily set attributes of ``owner`` to ``values``.

    OpenRLHF looks up the classes that it creates by name, so a replaced name makes it use a class of this package.
    """
    originals = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)


def _file_of(name: str) -> Path:
    package, *rest = name.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(spec.submodule_search_locations[0], *rest).with_suffix(".py")


ENTRY_POINT = "openrlhf.cli.train_ppo_ray"
# How OpenRLHF's error begins if a step has fewer micro-batches than the policy has ranks.
TOO_FEW_BATCHES = "The number of sample batches"


def parse_openrlhf_arguments(
    flags: Mapping[str, Any], counts: Callable[[SimpleNamespace], Mapping[str, int]] | None = None
) -> SimpleNamespace:
    """Return OpenRLHF's nested arguments (such as ``args.actor.num_nodes``) for flags by dotted name.

    ``counts`` returns the flags that follow from the others and from the cluster. It is asked when all values have
    their types and defaults, and before OpenRLHF checks them together. Raises ConfigError for an unknown flag, or for a
    value or combination that OpenRLHF rejects.
    """
    nested = module_alone("openrlhf.utils.config").hierarchize

    class Parser(argparse.ArgumentParser):
        """An argparse parser with the run's flags as its command line and one-line errors."""

        def parse_args(self) -> argparse.Namespace:  # type: ignore[override]
            types = self._option_string_actions["--ds.param_dtype"]
            types.choices = [*(types.choices or ()), "fp32"]  # on CPUs: see `openrlhf.cpu`
            args = super().parse_args(_command_line(self, flags))
            if counts is not None:
                try:
                    vars(args).update(counts(nested(args)))
                except Exception as error:
                    own.append(error)
                    raise
            return args

        def error(self, message: str) -> NoReturn:
            raise _refusal(flags, message)

    parsed: list[SimpleNamespace] = []
    own: list[Exception] = []  # what ``counts`` raised, which says nothing of OpenRLHF's checks
    names = {
        "argparse": SimpleNamespace(ArgumentParser=Parser),
        "datetime": datetime,
        "hierarchize": nested,
        "train": parsed.append,
    }
    try:
        exec(_parsing(), names)
    except (AssertionError, AttributeError, TypeError) as error:
        if own:
            raise
        # OpenRLHF's checks are assertions, or fail with other errors on missing values.
        remedy = " Lower rollout.micro_batch_size." if str(error).startswith(TOO_FEW_BATCHES) else ""
        raise ConfigError("OpenRLHF refuses these settings", None, f"{error}{remedy}") from error
    (args,) = parsed
    return args


@cache
def _parsing() -> CodeType:
    """Return the ``__main__`` block of OpenRLHF's script without its imports: it parses, checks and calls ``train``."""
    script = ast.parse(_file_of(ENTRY_POINT).read_text(encoding="utf-8"))
    (block,) = [node for node in script.body if isinstance(node, ast.If)]
    steps = [node for node in block.body if not isinstance(node, ast.ImportFrom)]
    return compile(ast.Module(steps, type_ignores=[]), ENTRY_POINT, "exec")


def _command_line(parser: argparse.ArgumentParser, flags: Mapping[str, Any]) -> list[str]:
    """Return the command line that sets ``flags`` in ``parser``; a value of None keeps the default."""
    words: list[str] = []
    for key, value in flags.items():
        action = parser._option_string_actions.get(f"--{key}")
        if action is None:
            raise ConfigError(key, value, _unknown_flag(parser, key))
        if value is not None:
            words += _words_of(parser, action, key, value)
    return words


def _words_of(parser: argparse.ArgumentParser, action: argparse.Action, key: str, value: Any) -> list[str]:
    if action.nargs == 0:  # a switch
        if not isinstance(value, bool):
            raise ConfigError(key, value, "must be true or false.")
        opposite = next((a for a in parser._actions if a.dest == action.dest and a.const is value), None)
        return [opposite.option_strings[0]] if opposite else []
    if isinstance(value, (list, tuple)):
        return [f"--{key}", *map(str, value)]
    if action.nargs is not None:
        return [f"--{key}", str(value)]
    return [f"--{key}={value}"]


def _unknown_flag(parser: argparse.ArgumentParser, key: str) -> str:
    known = [option.removeprefix("--") for option in parser._option_string_actions]
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"Did you mean {close[0]}?" if close else "`python -m openrlhf.cli.train_ppo_ray --help` lists OpenRLHF's."
    return f"unknown setting. {hint}"


def _refusal(flags: Mapping[str, Any], message: str) -> ConfigError:
    """Convert argparse's error message into a ConfigError that names the flag and its value."""
    found = re.fullmatch(r"argument --([\w.]+): (.*)", message, re.DOTALL)
    if not found:
        return ConfigError("OpenRLHF refuses these settings", None, message)
    detail = re.sub(r"(invalid \w+( value)?): '.*?'", r"\1", found[2])
    return ConfigError(found[1], flags[found[1]], detail)


def longest_prompt(args: SimpleNamespace) -> int:
    """Return the most tokens that a prompt may have, by ``data.max_len`` and ``rollout.max_new_tokens``."""
    most: int = args.data.max_len - (args.rollout.max_new_tokens or 1)
    return most


def is_too_long(text: str, most: int, tokenizer: Any) -> bool:
    """Return whether the prompt, as the engines get it, has more than ``most`` tokens.

    A token has at least one byte, so only long texts are tokenized.
    """
    return len(text.encode()) > most and len(tokenizer(text=text, add_special_tokens=False)["input_ids"]) > most
