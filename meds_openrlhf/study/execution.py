"""Makes what is missing of a study, one run after another: `meds train`, `meds eval`, and the run's result.

Every stage goes on with what is there, so a study can be stopped at any moment. A run that fails is recorded with its
last line, and the others go on. All runs share one Ray session, and what the preparation of a seed makes.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from meds_openrlhf.config import ConfigError
from meds_openrlhf.files import write_atomically
from meds_openrlhf.locks import try_lock
from meds_openrlhf.processes import end_children_with_this_process
from meds_openrlhf.study.plan import StudyRun, Words
from meds_openrlhf.study.results import RunResult, collect, read_result, runs_csv, write_result
from meds_openrlhf.study.status import finished_results, hours_left, is_trained, status_of, steps_done
from meds_openrlhf.study.study_file import Study
from meds_openrlhf.training.driver.interruption import interruptible

Say = Callable[[str], None]
POLL_SECONDS = 0.5
NEWS_SECONDS = 60.0  # from one line about a run to the next
PROGRAMS = {"meds": [sys.executable, "-m", "meds_openrlhf.cli.main"], "python": [sys.executable]}


class RunFailed(Exception):
    """A command of a run failed; the message is its last line."""


def run_study(chosen: Sequence[StudyRun], runs: Sequence[StudyRun], say: Say) -> int:
    """Make what is missing of the ``chosen`` among the study's ``runs``; returns the exit code, 1 if a run failed.

    Raises ConfigError, with nothing started, if another process runs the study or a run's folder does not fit.
    """
    study = runs[0].study
    with sole_process_of(study):
        missing = [run for run in chosen if needs_run(run)]
        for run in missing:
            _require_same_settings(run)
        say(f"{study.name}: {len(chosen) - len(missing)} of {len(chosen)} runs are done")
        if not missing:
            return 0
        end_children_with_this_process()
        failed = _make_all(missing, runs, say)
    for name in failed:
        say(f"{name}: failed; {study.runs / name}.log has all of it, and the same command tries it again")
    return 1 if failed else 0


def _make_all(missing: Sequence[StudyRun], runs: Sequence[StudyRun], say: Say) -> list[str]:
    """Make the runs; returns the names of those that failed. After a failure, the next has a new Ray session."""
    left, failed = deque(missing), list[str]()
    prepared: set[str] = set()
    while left:
        with _ray_session(left), interruptible(watchdog_minutes=None):
            while left:
                run = left.popleft()
                if not _Attempt(run, runs, prepared, say).succeeds():
                    failed.append(run.name)
                    break
    return failed


def needs_run(run: StudyRun) -> bool:
    """Whether the run has no result, or failed the last time."""
    result = read_result(run)
    return result is None or result.failed is not None


@contextmanager
def sole_process_of(study: Study) -> Iterator[None]:
    """Keep other processes from running the same study. Raises ConfigError if one does."""
    study.runs.mkdir(parents=True, exist_ok=True)
    with (study.runs / ".lock").open("w") as lock:
        if not try_lock(lock.fileno(), optional=True):
            raise ConfigError("FILE", str(study.path), f"is being run by another process, into {study.runs}")
        yield


def _require_same_settings(run: StudyRun) -> None:
    """Raise ConfigError if the run was begun with other settings, which going on would mix."""
    if run.paths.config.exists() and run.digest_file.is_file() and run.digest_file.read_text() != run.digest:
        hint = f"was begun with other settings than {run.study.path} has now; remove the folder, or rename the study"
        raise ConfigError("run", str(run.paths.root), hint)


@contextmanager
def _ray_session(runs: Iterable[StudyRun]) -> Iterator[None]:
    """One Ray session for all commands, unless RAY_ADDRESS names a cluster: starting one takes seconds every time."""
    if os.environ.get("RAY_ADDRESS"):
        yield
        return
    from meds_openrlhf.training import cpu
    from meds_openrlhf.training.driver.ray_connection import ray_connection

    allowed = all(run.load().meds.allow_cpu for run in runs)
    refusal = "but this machine has no GPU; set RAY_ADDRESS to a cluster, or allow the CPU in every run"
    on_cpu = cpu.runs_on_cpu(allowed, "meds.allow_cpu", refusal)
    with ray_connection(on_cpu=on_cpu, verbose=False):
        import ray

        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        try:
            yield
        finally:
            del os.environ["RAY_ADDRESS"]


class _Attempt:
    """One run, from what is there of it to its result; ``prepared`` are the commands that need not run again."""

    def __init__(self, run: StudyRun, runs: Sequence[StudyRun], prepared: set[str], say: Say) -> None:
        self._run, self._runs, self._prepared = run, runs, prepared
        place = f"[{runs.index(run) + 1}/{len(runs)}] {run.name}"
        self._say: Say = lambda text: say(f"{place}: {text}")
        self._started, self._fresh = time.monotonic(), not run.paths.config.exists()

    def succeeds(self) -> bool:
        """Make the run; whether it could be made. Its result is written in either case."""
        run = self._run
        try:
            result = self._make()
        except (RunFailed, ConfigError) as error:
            line = " ".join(str(error).split())
            result = RunResult(run.task, run.method, run.seed, run.digest, failed=line)
        write_result(run.study, run.name, result)
        write_atomically(run.study.results / "runs.csv", runs_csv(run.study, finished_results(self._runs)))
        if result.failed is None and not run.study.evaluation.keep_checkpoints:
            _remove_checkpoints(run)
        self._say(f"failed: {result.failed}" if result.failed is not None else f"done{self._left()}")
        return result.failed is None

    def _make(self) -> RunResult:
        run = self._run
        for words in run.preparation():
            if shlex.join(words) not in self._prepared:
                self._command("preparing", words)
                self._prepared.add(shlex.join(words))
        if not is_trained(run):
            write_atomically(run.digest_file, run.digest)
            self._command("training", run.training())
        if not is_trained(run):
            raise RunFailed(
                f"training ended after step {steps_done(run)} of {run.study.steps}; more train.num_episodes"
            )
        self._command("evaluating", run.evaluation())
        agreement = run.agreement()
        if agreement is not None:
            run.agreement_file.parent.mkdir(parents=True, exist_ok=True)
            run.agreement_file.unlink(missing_ok=True)
            self._command("comparing clusters with mistakes", agreement, may_refuse=True)
        return collect(run, (time.monotonic() - self._started) / 3600 if self._fresh else None)

    def _command(self, stage: str, words: Words, may_refuse: bool = False) -> None:
        """Run a command of the run into its log; raises RunFailed. With ``may_refuse``, exit code 2 is no failure."""
        run = self._run
        write_atomically(run.study.runs / "now.json", json.dumps({"run": run.name, "stage": stage}) + "\n")
        self._say(f"{stage}{self._left()}")
        with run.log.open("ab") as log:
            begin = log.tell()
            log.write(f"$ {shlex.join(words)}\n".encode())
            log.flush()
            command = [*PROGRAMS.get(words[0], [words[0]]), *words[1:]]
            try:
                # A session of its own: Ctrl-C in a terminal would reach it twice, which stops it without a checkpoint.
                process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            except OSError as error:
                raise RunFailed(f"{words[0]}: {error.strerror}") from error
            code = self._wait(process)
        if code and not (may_refuse and code == 2):
            raise RunFailed(_last_line(run.log, begin) or f"{words[0]} {words[1]}: exit code {code}")

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for a command, with lines on its progress; if interrupted, let it save what it has first."""
        told, before = time.monotonic(), steps_done(self._run)
        try:
            while (code := process.poll()) is None:
                time.sleep(POLL_SECONDS)
                if time.monotonic() - told > NEWS_SECONDS:
                    steps, told = steps_done(self._run), time.monotonic()
                    if steps != before:
                        self._say(f"step {steps} of {self._run.study.steps}{self._left()}")
                    before = steps
            return code
        except KeyboardInterrupt:
            self._say("stopping, with what the run has so far; once more to stop at once")
            _end(process)
            raise

    def _left(self) -> str:
        """The time left for the whole study."""
        left = hours_left([status_of(run) for run in self._runs])
        return "" if left is None else f"; {timedelta(seconds=round(left * 3600))} left in all"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command: politely, if the user is impatient at once, then by force."""
    for signum in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        process.send_signal(signum)
        try:
            process.wait()
            return
        except KeyboardInterrupt:
            continue
    process.wait()


def _remove_checkpoints(run: StudyRun) -> None:
    """Remove a run's checkpoints, and the weights that its evaluation made of them."""
    shutil.rmtree(run.paths.checkpoints, ignore_errors=True)
    for step in run.study.evaluated_steps:
        for weights in (run.evaluations / run.label(step)).glob("model-*"):
            shutil.rmtree(weights)


def _last_line(log: Path, begin: int) -> str | None:
    """The line with which a command says what is wrong, or the last one that it printed after byte ``begin``."""
    lines = [line.strip() for line in log.read_bytes()[begin:].decode(errors="replace").splitlines()[1:]]
    ours = [line for line in lines if line.startswith(("meds: ", "error: "))]
    return next((line for line in reversed(ours or lines) if line), None)
