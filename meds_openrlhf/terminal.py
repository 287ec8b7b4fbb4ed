"""What commands print: tables, the lines of a run, and texts of others without control characters.

Control characters could move the cursor or write the clipboard.
"""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from itertools import pairwise
from typing import Any, TextIO

# C0 and C1 but tab and newline, marks that reorder text, and lone surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with control characters as escapes, such as ``\\x1b``."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class PrintableStream:
    """A stream to which everything is written as `printable`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text with control characters as escapes."""
        return self._stream.write(printable(text))

    def writelines(self, lines: Iterable[str]) -> None:
        """Write the lines, each as `write` does."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prepare_streams() -> None:
    """Let standard output and error take any text, and be there: a shell can close both."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (until the process ends)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def printable_output(wanted: bool) -> Iterator[None]:
    """Print everything as `printable` in the block, if ``wanted``."""
    with redirect_stdout(PrintableStream(sys.stdout) if wanted else sys.stdout):  # type: ignore[type-var]
        yield


def aligned(rows: Sequence[Sequence[object]], sides: str = "") -> str:
    """The rows as lines with aligned columns; ``sides`` has ``<`` or ``>`` for each column, left by default."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    sides = sides or "<" * len(widths)
    lines = ["  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def counted(number: float, noun: str) -> str:
    """A count with its noun: ``1 prompt``, ``2,000 prompts``, ``0.5 GPUs``."""
    return f"{number if number % 1 else int(number):,} {noun}{'' if number == 1 else 's'}"


def cut(text: str, most: int) -> str:
    """The text, or its beginning with an ellipsis, ``most`` characters in all."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def in_a_line(text: str, most: int) -> str:
    """`cut`, with every white space as a blank."""
    return cut(" ".join(text.split()), most)


class RunConsole:
    """Writes lines to ``stream``; ``clock`` gives seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._total = self._last = 0
        self._ended: list[float] = []  # when the steps did

    def say(self, line: str) -> None:
        """Write a line."""
        print(line, file=self._stream, flush=True)

    def start(self, job: Any, report: Any, trained: int) -> None:
        """Report that the run has its resources and starts to load models; it was ``trained`` up to a step before."""
        self._total, first, folder = job.total_steps, job.first_step, job.config.meds.run_dir
        where = "on the CPU, with made-up GPUs" if job.on_cpu else "on GPUs"
        self.say(f"{folder}: {report.plan} ({where})")
        for line in report.overfull:
            self.say(f"{folder}: warning: too full by estimate: {line}. `meds plan` shows more.")
        begins = f"resuming after step {first}" if first else "starting"
        if job.resume and not first:
            begins = "no complete checkpoint, starting from step 1"
        self.say(f"{folder}: {begins}, up to step {self._total}; loading models, this takes a while")
        if first < trained:
            self.say(f"{folder}: what was trained after step {first}, up to step {trained}, is in no checkpoint")
        if job.too_long:
            left_out = f"{job.too_long} of {job.prompts + job.too_long} prompts"
            self.say(f"{folder}: {left_out} have more than {job.longest_prompt} tokens and are left out")

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Report a finished training step."""
        self._last = step
        self._ended.append(self._clock())
        self.say(f"{step_line(step, self._total, metrics)}{self._left(step)}")

    def done(self, folder: str) -> None:
        """Report that the run has ended by itself."""
        if 0 < self._last < self._total:  # dynamic filtering drops some
            self.say(f"{folder}: the prompts were used up before step {self._total}; raise train.num_episodes for more")
        self.say(f"{folder}: done; the trained policy is in {folder}/model")

    def _left(self, step: int) -> str:
        """The estimated time left, by the clock: a step's own seconds leave out what is between steps.

        Empty for the first steps, which include startup time.
        """
        if len(self._ended) < 3:
            return ""
        from statistics import median

        seconds = median(after - before for before, after in pairwise(self._ended[-20:])) * (self._total - step)
        return f", {timedelta(seconds=round(seconds))} left"


def step_line(step: int, total: int, metrics: dict[str, float]) -> str:
    """``step  7/40 | 45% right | reward 0.41 shaped 0.35 | ... | 2.9 s``, depending on the run's metrics."""
    parts = [f"step {step:>{len(str(total))}}/{total}"]
    if "meds/reward_raw" in metrics:
        parts.append(f"{metrics['meds/accuracy']:4.0%} right")
        parts.append(f"reward {metrics['meds/reward_raw']:.3f} shaped {metrics['meds/reward_shaped']:.3f}")
        parts.append(
            f"penalized {metrics['meds/penalized_share']:4.0%} | {metrics['meds/rows']:.0f} rows "
            f"{metrics['meds/clusters']:.0f} clusters {metrics['meds/noise_share']:.0%} noise"
        )
        ratio = metrics.get("meds/eigen_ratio_step")
        parts.append(f"eigen ratio {ratio:.2f}" if ratio is not None else "eigen ratio --")
    else:
        parts.append(f"reward {metrics.get('rollout/reward_mean', float('nan')):.3f}")
    parts.append(f"{metrics.get('timing/step_total', float('nan')):.1f} s")
    return " | ".join(parts)


def silence_if_closed(stream: TextIO) -> bool:
    """Return whether the reader of the pipe of ``stream`` has closed it; if so, discard further output.

    Buffered output then goes to the null device, so that the interpreter's flush at exit raises no error.
    """
    try:
        descriptor = stream.fileno()
    except OSError:  # not a file: a caller of ours reads what is printed
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    is_closed = any(event & select.POLLERR for _, event in poll.poll(0))
    if is_closed:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    return is_closed
