"""Parses OpenRLHF's flags with OpenRLHF's own parser, including its names, defaults and validation.

The parser is in the `__main__` block of `openrlhf.cli.train_ppo_ray`. This module runs that block with the run's flags
as its command line, up to the call that starts training. It skips the module's imports, which take ten seconds.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NoReturn

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.training.openrlhf_source import module_alone, run_main_block

ENTRY_POINT = "openrlhf.cli.train_ppo_ray"
# The beginning of OpenRLHF's refusal of a step that has fewer micro-batches than the policy has ranks.
TOO_FEW_BATCHES = "The number of sample batches"


def parse_openrlhf_arguments(flags: Mapping[str, Any]) -> SimpleNamespace:
    """Return OpenRLHF's nested arguments (such as ``args.actor.num_nodes``) for flags by dotted name.

    Raises ConfigError for an unknown flag, or for a value or combination that OpenRLHF rejects.
    """

    class Parser(argparse.ArgumentParser):
        """An argparse parser with the run's flags as its command line and one-line errors."""

        def parse_args(self) -> argparse.Namespace:  # type: ignore[override]
            return super().parse_args(_command_line(self, flags))

        def error(self, message: str) -> NoReturn:
            raise _refusal(flags, message)

    parsed: list[SimpleNamespace] = []
    provided = {
        "argparse": SimpleNamespace(ArgumentParser=Parser),
        "hierarchize": module_alone("openrlhf.utils.config").hierarchize,
        "train": parsed.append,
    }
    try:
        run_main_block(ENTRY_POINT, provided)
    except (AssertionError, AttributeError, TypeError) as error:
        # OpenRLHF's checks are assertions, or fail with other errors on missing values.
        remedy = " Lower rollout.micro_batch_size." if str(error).startswith(TOO_FEW_BATCHES) else ""
        raise ConfigError("OpenRLHF's settings", "this combination", f"is refused: {error}{remedy}") from error
    (args,) = parsed
    return args


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
            raise ConfigError(key, value, "has the wrong type; it should be true or false")
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
    hint = f"did you mean {close[0]}?" if close else "see `python -m openrlhf.cli.train_ppo_ray --help` for its flags"
    return f"is neither a setting of meds nor a flag of OpenRLHF; {hint}"


def _refusal(flags: Mapping[str, Any], message: str) -> ConfigError:
    """Convert argparse's error message into a ConfigError that names the flag and its value."""
    found = re.fullmatch(r"argument --([\w.]+): (.*)", message, re.DOTALL)
    if not found:
        return ConfigError("OpenRLHF's settings", "the command line", f"is refused: {message}")
    detail = re.sub(r"(invalid \w+( value)?): '.*?'", r"\1", found[2])
    return ConfigError(found[1], flags[found[1]], f"is refused by OpenRLHF: {detail}")
