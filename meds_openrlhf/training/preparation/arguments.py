"""OpenRLHF's flags through OpenRLHF's own parser: names, defaults and validation are its own.

Its parser lives in the `__main__` block of `openrlhf.cli.train_ppo_ray`. That block is run here with our flags as its
command line, up to the moment when it would begin to train.
"""

from __future__ import annotations

import argparse
import difflib
import re
import runpy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.training.replaced import replaced

ENTRY_POINT = "openrlhf.cli.train_ppo_ray"


class _ArgumentsParsed(BaseException):
    """Carries the validated arguments out of OpenRLHF's main block; no handler in there may catch it."""

    def __init__(self, args: SimpleNamespace) -> None:
        self.arguments = args


def parse_openrlhf_arguments(flags: Mapping[str, Any]) -> SimpleNamespace:
    """OpenRLHF's nested arguments (``args.actor.num_nodes`` …) for flags by dotted name.

    Raises ConfigError for an unknown flag, a value that its parser refuses, or a combination that it refuses.
    """
    import openrlhf.utils
    import ray

    parse_args = argparse.ArgumentParser.parse_args

    def parse_ours(parser: argparse.ArgumentParser, *_args: object) -> argparse.Namespace:
        return parse_args(parser, _command_line(parser, flags))

    def stop(args: SimpleNamespace) -> None:
        raise _ArgumentsParsed(args)

    with ExitStack() as stack:
        stack.enter_context(replaced(argparse.ArgumentParser, parse_args=parse_ours, error=_refusal(flags)))
        stack.enter_context(replaced(openrlhf.utils, get_strategy=stop))
        # train() would start Ray before it reaches get_strategy.
        stack.enter_context(replaced(ray, is_initialized=lambda: True))
        try:
            runpy.run_module(ENTRY_POINT, run_name="__main__")
        except _ArgumentsParsed as parsed:
            return parsed.arguments
        except (AssertionError, AttributeError, TypeError) as error:
            # Its checks are assertions, or stumble over a value that is missing.
            raise ConfigError("OpenRLHF's settings", "this combination", f"is refused: {error}") from error
    raise RuntimeError(f"{ENTRY_POINT} ended without building its strategy; is openrlhf 0.11.2 installed?")


def _command_line(parser: argparse.ArgumentParser, flags: Mapping[str, Any]) -> list[str]:
    """The words that make ``parser`` see ``flags``; a value of None leaves the default."""
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
    mend = f"did you mean {close[0]}?" if close else "see `python -m openrlhf.cli.train_ppo_ray --help` for its flags"
    return f"is neither a setting of meds nor a flag of OpenRLHF; {mend}"


def _refusal(flags: Mapping[str, Any]) -> Callable[[argparse.ArgumentParser, str], None]:
    """What stands in for argparse's usage text and exit: an error that names the flag and its value."""

    def refuse(_parser: argparse.ArgumentParser, message: str) -> None:
        found = re.fullmatch(r"argument --([\w.]+): (.*)", message, re.DOTALL)
        if not found:
            raise ConfigError("OpenRLHF's settings", "the command line", f"is refused: {message}")
        detail = re.sub(r"(invalid \w+( value)?): '.*?'", r"\1", found[2])
        raise ConfigError(found[1], flags[found[1]], f"is refused by OpenRLHF: {detail}")

    return refuse
