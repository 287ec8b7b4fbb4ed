"""Makes what is missing of a study, one or a few runs at a time: `meds train`, `meds eval`, and the run's result.

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
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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


def run_study(chosen: Sequence[StudyRun], runs: Sequence[StudyRun], say: Say, parallel: int = 1) -> int:
    """Make what is missing of the ``chosen`` among the study's ``runs``; returns the exit code, 1 if a run failed.

    ``parallel`` is how many runs are made at a time.

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
        failed = _make_all(missing, chosen, runs, parallel, say)
    for name in failed:
        say(f"{name}: failed; {study.runs / name}.log has all of it, and the same command tries it again")
    return 1 if failed else 0


def _make_all(
    missing: Sequence[StudyRun], chosen: Sequence[StudyRun], runs: Sequence[StudyRun], parallel: int, say: Say
) -> list[str]:
    """Make the missing runs of the ``chosen``; returns the names of those that failed.

    After a failure, the next have a new Ray session.
    """
    left, failed = deque(missing), list[str]()
    prepared = set[str]()
    while left:
        with _ray_session(left), interruptible(watchdog_minutes=None):
            failed += _make_until_one_fails(left, lambda run: _Attempt(run, chosen, runs, prepared, say), parallel)
    return failed


def _make_until_one_fails(
    left: deque[StudyRun], attempt_at: Callable[[StudyRun], _Attempt], parallel: int
) -> list[str]:
    """Make runs of ``left``, and begin no other once one has failed. Returns the names of those that failed."""
    at_work, failed = list[_Attempt](), list[str]()
    try:
        while at_work or (left and not failed):
            while left and not failed and len(at_work) < parallel:
                at_work.append(attempt_at(left.popleft()))
            for attempt in at_work.copy():
                succeeds = attempt.goes_on([other for other in at_work if other is not attempt])
                if succeeds is not None:
                    at_work.remove(attempt)
                    failed += [] if succeeds else [attempt.run.name]
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        _end(at_work)
        raise
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


@dataclass(frozen=True)
class _Command:
    """A command of a run. ``shared``: its files are those of all runs of the task and seed, so not two at a time."""

    stage: str
    words: Words
    shared: bool = False
    once: bool = False  # for all runs
    may_refuse: bool = False  # exit code 2 is no failure


class _Attempt:
    """One run of the ``chosen`` among the study's ``runs``, from what is there of it to its result.

    ``prepared`` are the commands that need not run again.
    """

    def __init__(
        self, run: StudyRun, chosen: Sequence[StudyRun], runs: Sequence[StudyRun], prepared: set[str], say: Say
    ) -> None:
        self.run = run
        self.process: subprocess.Popen[bytes] | None = None
        self._chosen, self._runs, self._prepared = chosen, runs, prepared
        place = f"[{chosen.index(run) + 1}/{len(chosen)}] {run.name}"
        self.say: Say = lambda text: say(f"{place}: {text}")
        self._started, self._fresh = time.monotonic(), not run.paths.config.exists()
        self._commands = self._make()
        self.command: _Command | None = None
        self._log_begin = self._steps_told = 0
        self._told = 0.0
        self._at_a_time = 1

    def goes_on(self, others: Collection[_Attempt]) -> bool | None:
        """Begin the run's next command if it has none; whether it succeeded, when all is done.

        ``others`` are at work beside it. The result is written in either case.
        """
        self._at_a_time = 1 + len(others)
        try:
            if self.process is None:
                self.command = self.command or next(self._commands)
                self._begin(self.command, others)
            elif (code := self.process.poll()) is None:
                self._tell_steps()
            else:
                self._require_success(code)
                self.process = self.command = None
        except StopIteration as end:
            return self._ends_with(end.value)
        except (RunFailed, ConfigError) as error:
            line = " ".join(str(error).split())
            failure = RunResult(self.run.task, self.run.method, self.run.seed, self.run.digest, failed=line)
            return self._ends_with(failure)
        return None

    def _make(self) -> Generator[_Command, None, RunResult]:
        """The run's commands, each of which has ended well before the next is asked for; returns the result."""
        run = self.run
        for words in run.preparation():
            yield _Command("preparing", words, shared=True, once=True)
        if not is_trained(run):
            write_atomically(run.digest_file, run.digest)
            yield _Command("training", run.training())
        if not is_trained(run):
            raise RunFailed(
                f"training ended after step {steps_done(run)} of {run.study.steps}; more train.num_episodes"
            )
        yield _Command("evaluating", run.evaluation(), shared=True)
        agreement = run.agreement()
        if agreement is not None:
            run.agreement_file.parent.mkdir(parents=True, exist_ok=True)
            run.agreement_file.unlink(missing_ok=True)
            yield _Command("comparing clusters with mistakes", agreement, may_refuse=True)
        return collect(run, (time.monotonic() - self._started) / 3600 if self._fresh else None)

    def _ends_with(self, result: RunResult) -> bool:
        run = self.run
        write_result(run.study, run.name, result)
        write_atomically(run.study.results / "runs.csv", runs_csv(run.study, finished_results(self._runs)))
        if result.failed is None and not run.study.evaluation.keep_checkpoints:
            _remove_checkpoints(run)
        self.say(f"failed: {result.failed}" if result.failed is not None else f"done{self._left()}")
        return result.failed is None

    def _begin(self, command: _Command, others: Collection[_Attempt]) -> None:
        """Start a command, its output into the run's log, unless it has to wait or need not run."""
        run, text = self.run, shlex.join(command.words)
        if command.once and text in self._prepared:
            self.command = None
            return
        if command.shared and any(other.has_files_of(run) for other in others):
            return
        at_work = {each.run.name: each.command.stage for each in (self, *others) if each.command is not None}
        write_atomically(run.study.runs / "now.json", json.dumps(at_work) + "\n")
        self.say(f"{command.stage}{self._left()}")
        with run.log.open("ab") as log:
            self._log_begin = log.tell()
            log.write(f"$ {text}\n".encode())
            log.flush()
            words = [*PROGRAMS.get(command.words[0], [command.words[0]]), *command.words[1:]]
            try:
                # A session of its own: Ctrl-C in a terminal would reach it twice, which stops it without a checkpoint.
                self.process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
            except OSError as error:
                raise RunFailed(f"{command.words[0]}: {error.strerror}") from error
        self._told, self._steps_told = time.monotonic(), steps_done(run)

    def has_files_of(self, run: StudyRun) -> bool:
        """Whether the command at work uses files that are those of ``run`` too."""
        at_work = self.process is not None and self.command is not None and self.command.shared
        return at_work and (self.run.task, self.run.seed) == (run.task, run.seed)

    def _require_success(self, code: int) -> None:
        """Raise RunFailed if the command has not ended well."""
        command = self.command
        assert command is not None
        if code and not (command.may_refuse and code == 2):
            words = f"{command.words[0]} {command.words[1]}"
            raise RunFailed(_last_line(self.run.log, self._log_begin) or f"{words}: exit code {code}")
        if command.once:
            self._prepared.add(shlex.join(command.words))

    def _tell_steps(self) -> None:
        """Say from time to time how far the training is."""
        if time.monotonic() - self._told > NEWS_SECONDS:
            steps, self._told = steps_done(self.run), time.monotonic()
            if steps != self._steps_told:
                self.say(f"step {steps} of {self.run.study.steps}")
            self._steps_told = steps

    def _left(self) -> str:
        """The time left for the chosen runs."""
        left = hours_left([status_of(run) for run in self._chosen], finished_results(self._runs), self._at_a_time)
        return "" if left is None else f"; {timedelta(seconds=round(left * 3600))} left in all"


def _end(attempts: Sequence[_Attempt]) -> None:
    """End the commands at work: politely, so that they save what they have; if the user is impatient, by force."""
    processes = []
    for attempt in attempts:
        if attempt.process is not None:
            attempt.say("stopping, with what the run has so far; once more to stop at once")
            processes.append(attempt.process)
    for signum in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            process.send_signal(signum)
        try:
            for process in processes:
                process.wait()
            return
        except KeyboardInterrupt:
            continue
    for process in processes:
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
