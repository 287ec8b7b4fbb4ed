"""Damaged and hostile files: only errors of ours, in bounded time and memory; whole files of ours are never misread."""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from multiprocessing import get_context
from pathlib import Path

from meds_openrlhf.cli.main import main
from meds_openrlhf.paths import RunPaths
from tests.fuzz.kinds import Kind, make_kinds, unpack_killed_run
from tests.fuzz.trial import REFUSED, SAME, Result, fuzz, read_with_limits

ATTACKS = Path(__file__).with_name("attacks")
INPUTS = 300


def elsewhere(trials: Callable[[Path], list[Result]], folder: Path) -> list[Result]:
    """``trials(folder)`` in a new interpreter.

    The trials fork workers. By then this process may hold whatever other tests imported and connected to, and a fork
    stops their threads wherever they are: a worker once crashed of that, in the allocator, at its first input.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(trials, folder).result()


def damaged_files(folder: Path) -> list[Result]:
    return list(fuzz(make_kinds(folder), INPUTS, seed=20))


def test_genuine_files_are_read_and_damaged_ones_are_refused_or_read_validly(tmp_path: Path) -> None:
    results = elsewhere(damaged_files, tmp_path)
    assert len(results) == INPUTS
    assert [result for result in results if result.is_fault] == []
    assert {SAME, REFUSED} < {result.what for result in results}


def planted_faults(folder: Path) -> list[Result]:
    path = folder / "file"
    path.write_bytes(b"0" * 64)

    def kind(name: str, read: Callable[[], str]) -> Kind:
        return Kind(name, [path], lambda: "whole" if path.read_bytes() == b"0" * 64 else read(), checked=True)

    faults = {
        "traceback": lambda: str(1 // 0),
        "silence": lambda: "other",
        "crash": lambda: str(os.abort()),
        "memory": lambda: str(len(bytearray(3 * 2**30))),
    }
    return list(fuzz([kind(name, read) for name, read in faults.items()], 4, seed=3))


def test_a_fault_is_found(tmp_path: Path) -> None:
    """The test of the test: a traceback, a wrong reading, a crash and a loop end neither it nor the inputs behind."""
    results = elsewhere(planted_faults, tmp_path)
    words = ("ZeroDivisionError", "other content, in silence", "signal 6", "MemoryError")
    assert [word in result.what for word, result in zip(words, results)] == [True] * 4


def command(*words: object) -> tuple[str, Callable[[], str]]:
    """A command in this process, which ends with 0 or 2."""

    def run() -> str:
        errors = StringIO()
        with redirect_stdout(StringIO()), redirect_stderr(errors):
            code = main([str(word) for word in words])
        clean = "\x1b" not in errors.getvalue()
        return {0: SAME, 1: SAME, 2: REFUSED}[code] if clean else "an escape sequence"

    return " ".join(map(str, words)), run


def commands_on_hostile_files(folder: Path) -> list[tuple[str, Callable[[], str]]]:
    """The files of `attacks/`, and what no file of a repository can be: pipes, links, gigabytes."""
    commands = [
        *(command("plan", path, "--cluster", "1x1") for path in sorted(ATTACKS.glob("*.yaml"))),
        *(command("atlas", path, "--out", folder / path.name) for path in sorted(ATTACKS.glob("*.[jpe]*l*"))),
        *(command("memory", "replay", path, "--out", folder / "out.arrow") for path in ATTACKS.glob("*.arrow")),
        *(
            command(*words, attack)
            for attack in sorted(path for path in ATTACKS.iterdir() if path.is_dir())
            for words in (("memory", "verify"), ("memory", "inspect"), ("report", "--output", folder / "r.html"))
        ),
    ]
    whole = unpack_killed_run(folder / "whole")
    for number, spoil in enumerate(SPOILED):
        paths = unpack_killed_run(folder / str(number))
        spoil(paths)
        for words in (("memory", "verify"), ("memory", "inspect"), ("report",), ("track", "--once")):
            commands.append(command(*words, paths.root))
        commands.append(command("memory", "replay", paths.root, "--out", folder / "rows.arrow"))
        commands.append(command("train", whole.config, "--resume", f"--meds.run_dir={paths.root}", "--no.such=1"))
    return commands


def hostile_files(folder: Path) -> list[Result]:
    commands = commands_on_hostile_files(folder)
    results = list(read_with_limits(commands))
    assert len(results) == len(commands)
    return results


def test_hostile_files_end_every_command_in_order(tmp_path: Path) -> None:
    results = elsewhere(hostile_files, tmp_path)
    assert [result for result in results if result.is_fault] == []


def replaced(path: Path, by: Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    by(path)


def sparse(path: Path) -> None:
    """Gigabytes of zeros on no disk."""
    with path.open("wb") as file:
        file.truncate(3 * 2**30)


ZERO: Callable[[Path], object] = lambda path: path.symlink_to("/dev/zero")  # noqa: E731
LATE = 400_000_000_000  # seconds since 1970: beyond the year 9999
SPOILED: tuple[Callable[[RunPaths], object], ...] = (
    *(lambda run, name=name: replaced(run.root / name, os.mkfifo) for name in ("metrics.jsonl", "config.yaml")),
    *(lambda run, name=name: replaced(run.root / name, ZERO) for name in ("metrics.jsonl", "rollouts/000009.arrow")),
    lambda run: replaced(run.rollouts(9), os.mkfifo),
    lambda run: replaced(run.memory.format, os.mkfifo),
    lambda run: replaced(run.memory.shard(0) / "000009.arrow", os.mkfifo),
    lambda run: replaced(run.memory.shard(0) / "000009.arrow", lambda path: path.symlink_to("nowhere")),
    lambda run: replaced(run.complete / "global_step9", os.mkfifo),
    lambda run: replaced(run.metrics, sparse),
    lambda run: os.utime(run.metrics, (LATE, LATE)),
    lambda run: run.metrics.write_text('{"step": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}\n"),
    lambda run: run.metrics.write_text('{"step": 1, "timing/step_total": NaN, "eval_x_pass' + "9" * 900 + '": 1}\n'),
    lambda run: run.metrics.write_text('{"step": 5}\n{"step": 3}\n'),
    lambda run: run.config.write_text(
        "meds: {run_dir: r}\nactor: {x: \x1b]52;c;eA==\x07}\n".replace("\x1b", '"\\e').replace("\x07", '"')
    ),
    lambda run: run.config.write_text("meds: {run_dir: r}\nx: {a: '" + "?key" * 30_000 + "'}\n"),
    lambda run: run.config.write_text("meds: {run_dir: r}\nmeds: {allow_cpu: true}\n"),
    lambda run: run.memory.format.write_text('{"shards": 1, "layers": 2147483647, "model": {}}'),
    lambda run: (run.complete / "global_step9").write_text("[]"),
    lambda run: (run.complete / "global_step9").write_bytes(b"\xff"),
    lambda run: run.tracking.write_text('["id"]'),
    lambda run: Path(run.root.parent / "assets" / "arithmetic" / "train.jsonl").write_text('{"prompt": "\\ud800"}\n'),
)
