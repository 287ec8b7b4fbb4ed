"""Trials in forked workers with limits: a reading is the same, other, refused by an error of ours, or a fault."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import re
import resource
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import UnusableFileError
from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError
from tests.fuzz.kinds import Kind

SECONDS, MOST_BYTES = 10, 2 * 2**30
OURS = (ConfigError, UnusableFileError, MemoryCorruptionError, MemoryBusyError)
LENGTHS = (0, 1, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**64 - 1)
DIGITS = (b"-1", b"0", b"1e400", b"NaN", b"null", b"[]", b"{}", b'"x"', b"9" * 50, b"99999999999", b"true")
WORDS = (
    *(
        b'"\\ud800"',
        b"[" * 5_000,
        b'"../../../etc/hostname"',
        b'"' + b"x" * 100_000 + b'"',
        b'"\\u001b]52;c;eA==\\u0007"',
    ),
    *(b'{"a":' * 300 + b"1" + b"}" * 300, b"&a [*a]", b"*a", b".inf", b"1:1:1:1", b"2026-02-30", b"!!python/none"),
    *(b"0x" + b"f" * 99, b"1e308", b"-0.0", b"~", b"|", b"'", b"\x00"),
)
VALUE = re.compile(rb":\s*([^\s,}\]][^,}\]\n]*)")
SAME, OTHER, REFUSED = "same", "other", "refused"


@dataclass(frozen=True)
class Result:
    """What came of an input: `SAME`, `OTHER`, `REFUSED`, or the fault in words, and whether it ended the worker."""

    name: str
    what: str
    ended: bool = False

    @property
    def is_fault(self) -> bool:
        return self.what not in (SAME, OTHER, REFUSED)


def damaged(content: bytes, random: random.Random) -> bytes:
    """The content with a bit flipped, a length or number replaced, or a part cut, repeated, or blanked."""
    at, changed = random.randrange(max(len(content), 1)), bytearray(content)
    way = random.randrange(9)
    if way < 3 and content:
        changed[at] ^= 1 << random.randrange(8)
    elif way == 3:
        size, number = random.choice(((4, "<I"), (8, "<Q"))), random.choice(LENGTHS)
        at -= at % 4
        changed[at : at + size[0]] = struct.pack(size[1], number % 2 ** (8 * size[0]))
    elif way == 4:
        digits = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
        place = random.choice(digits) if digits else at
        changed[place : place + random.choice((1, 1, 3))] = random.choice(DIGITS)
    elif way == 5:
        del changed[at:]
    elif way == 6:
        part = changed[at : at + random.choice((1, 40, 4000))]
        changed[at:at] = part * random.choice((1, 2, 50))
    elif way == 7:
        del changed[at : at + random.choice((1, 8, 400))]
    elif values := [found.span(1) for found in VALUE.finditer(content)]:  # of JSON or YAML
        begin, end = random.choice(values)
        changed[begin:end] = random.choice(DIGITS + WORDS)
    return bytes(changed)


def read_with_limits(reads: Sequence[tuple[str, Callable[[], str]]]) -> Iterator[Result]:
    """Try each of ``reads``, by name, in a forked worker; another goes on behind one that ends a worker."""
    left = list(reads)
    while left:
        done = 0
        for result in _worker(left):
            done += 1
            yield result
        left = left[done:]


def _worker(reads: Sequence[tuple[str, Callable[[], str]]]) -> Iterator[Result]:
    """The results of the reads until one ends the worker, which is the last one's fault."""
    source, sink = os.pipe()
    process = os.fork()
    if not process:
        os.close(source)
        faulthandler.disable()  # a crash is a result here
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, now + MOST_BYTES))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends it: no test's own handler
        for _, read in reads:
            signal.alarm(SECONDS)
            os.write(sink, json.dumps(_what(read)).encode() + b"\n")
        os._exit(0)
    os.close(sink)
    count = 0
    with os.fdopen(source) as lines:
        for line in lines:
            yield Result(reads[count][0], json.loads(line))
            count += 1
    _, status = os.waitpid(process, 0)
    if count < len(reads):
        word = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        word = f"longer than {SECONDS} s" if os.WTERMSIG(status) == signal.SIGALRM else word
        yield Result(reads[count][0], word, ended=True)


def _what(read: Callable[[], str]) -> str:
    try:
        return read()
    except OURS:
        return REFUSED
    except BaseException as error:  # what a user would see as a traceback
        frames = []
        trace = error.__traceback__
        while trace:
            frames.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
            trace = trace.tb_next
        return f"{type(error).__name__}: {str(error)[:200]} at {' '.join(frames[-4:])}"


def fuzz(kinds: Sequence[Kind], inputs: int, seed: int) -> Iterator[Result]:
    """Damage a file of the kinds in turn, ``inputs`` times, and read it; each file is then as before."""
    truth = {kind.name: kind.read() for kind in kinds}
    generator = random.Random(seed)

    def trial(kind: Kind, path: Path, content: bytes) -> Callable[[], str]:
        def read() -> str:
            original = path.read_bytes()
            path.write_bytes(content)
            try:
                found = kind.read()
            finally:
                path.write_bytes(original)
            if found == truth[kind.name]:
                return SAME
            return "other content, in silence" if kind.checked and "damaged" not in found else OTHER

        return read

    originals = {path: path.read_bytes() for kind in kinds for path in kind.files}
    for start in range(0, inputs, 200):
        reads = []
        for number in range(start, min(start + 200, inputs)):
            kind = kinds[number % len(kinds)]
            path = generator.choice(kind.files)
            content = damaged(originals[path], generator)
            reads.append((f"{kind.name}, input {number}", trial(kind, path, content)))
        for result in read_with_limits(reads):
            if result.ended:  # before it restored its file; a worker that goes on must not lose the next one
                for path, content in originals.items():
                    path.write_bytes(content)
            yield result
