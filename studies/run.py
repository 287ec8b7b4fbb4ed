"""Make what is missing of a study: each run is a `meds train`, a `meds eval` and a small file with its result.

    python -m studies.run studies/forks.yaml [--parallel 2] [--only TASK-METHOD-SEED ...]

It can be stopped at any moment, with Ctrl-C in good order: the same command resumes the runs that were begun, and
repeats none that has a result. A run that fails is tried again by the next call; the others go on.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from analysis.command_line import exit_code_of
from meds_openrlhf.config import ConfigError
from meds_openrlhf.files import write_atomically
from meds_openrlhf.locks import try_lock
from meds_openrlhf.runtime.processes import end_children_with_this_process
from studies.results import collect, read_results, runs_csv
from studies.study import Run, Study, load_study

PROGRAMS = {"meds": [sys.executable, "-m", "meds_openrlhf.cli.main"], "python": [sys.executable]}


class Maker:
    """Makes the runs of a study, each in a thread of its own."""

    def __init__(self, study: Study) -> None:
        self._study, self._commit = study, commit_of(Path(__file__).parent)
        self._shared = defaultdict[tuple[str, int], threading.Lock](threading.Lock)  # of a task and seed
        self._prepared, self._evaluated = set[tuple[str, int]](), set[tuple[str, int]]()
        self._guard = threading.Lock()  # of what follows, and of runs.csv
        self._processes = set[subprocess.Popen]()
        self._stopping = False

    def make_all(self, runs: Sequence[Run], parallel: int) -> bool:
        """Make runs, ``parallel`` at a time; returns whether all succeeded."""
        with ThreadPoolExecutor(parallel) as pool:
            made = [pool.submit(self._make, run) for run in runs]
            try:
                return all([each.result() for each in made])
            except KeyboardInterrupt:
                print("stopping; what the runs have so far is kept", flush=True)
                with self._guard:
                    self._stopping = True
                    for process in self._processes:
                        process.terminate()
                pool.shutdown(wait=False, cancel_futures=True)
                raise  # when the pool's threads have ended

    def _make(self, run: Run) -> bool:
        """Make what is missing of a run; False if it fails."""
        fresh, began = not run.paths.config.exists(), time.monotonic()
        try:
            with self._shared[run.task, run.seed]:
                for words in run.preparation() if (run.task, run.seed) not in self._prepared else ():
                    self._execute(run, "preparing", words)
                self._prepared.add((run.task, run.seed))
            if not run.paths.model_complete.is_file():
                self._execute(run, "training", run.training())
            with self._shared[run.task, run.seed]:
                if (run.task, run.seed) not in self._evaluated:
                    self._execute(run, "evaluating the policy before training", run.evaluation_before())
                self._evaluated.add((run.task, run.seed))
            self._execute(run, "evaluating", run.evaluation())
            result = collect(run, self._commit, hours=round((time.monotonic() - began) / 3600, 4) if fresh else None)
        except (subprocess.SubprocessError, OSError, ConfigError) as error:
            print(f"{run.name}: {error}; all output is in {run.log}", flush=True)
            return False
        with self._guard:
            write_atomically(run.result, json.dumps(asdict(result), allow_nan=False) + "\n")
            write_atomically(run.result.parents[1] / "runs.csv", runs_csv(self._study, read_results(self._study)))
        if not self._study.evaluation.keep_checkpoints:
            shutil.rmtree(run.paths.checkpoints, ignore_errors=True)
            for weights in run.evaluations.glob(f"{run.method}@*/model-*"):
                shutil.rmtree(weights)
        print(f"{run.name}: done", flush=True)
        return True

    def _execute(self, run: Run, stage: str, words: Sequence[str]) -> None:
        """Run a command to its end, its output in the run's log. Raises SubprocessError with its last line."""
        with run.log.open("ab") as log, self._guard:
            if self._stopping:
                raise subprocess.SubprocessError(f"stopped before {stage}")
            print(f"{run.name}: {stage}", flush=True)
            log.write(f"$ {shlex.join(words)}\n".encode())
            log.flush()
            command = [*PROGRAMS.get(words[0], [words[0]]), *words[1:]]
            # A session of its own: Ctrl-C in a terminal would reach it twice, which stops it without a checkpoint.
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            self._processes.add(process)
        code = process.wait()
        with self._guard:
            self._processes.remove(process)
        if code or self._stopping:
            last_line = run.log.read_text(errors="replace").rstrip().rpartition("\n")[2]
            raise subprocess.SubprocessError(f"{'stopped' if self._stopping else 'failed'}, {last_line}")


def commit_of(folder: Path) -> tuple[str | None, bool | None]:
    """The commit of a working tree, and whether code in it has changed since; None outside of a repository."""
    git = ["git", "-C", str(folder)]
    try:
        head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True, stderr=subprocess.DEVNULL).strip()
        status = [*git, "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude,top)results"]
        return head, bool(subprocess.check_output(status))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def run_study(study: Study, only: Sequence[str], parallel: int) -> bool:
    """Make what is missing; returns whether all succeeded. Raises ConfigError, with nothing started, for mistakes."""
    runs, results = study.runs(), read_results(study)
    for name in only:
        if name not in {run.name for run in runs}:
            raise ConfigError("--only", name, f"must be one of {', '.join(run.name for run in runs)}.")
    if parallel < 1:
        raise ConfigError("--parallel", parallel, "must be at least 1.")
    for run in runs:
        run.config()
        result, log = results.get(run.key), run.log.read_text(errors="replace") if run.log.exists() else ""
        before = {line for line in log.splitlines() if line.startswith("$ meds train ")}
        before |= {f"$ {result.command}"} if result and result.command else set()
        if before - {f"$ {shlex.join(run.training())}"}:
            raise ConfigError("run", run.name, "was started with other settings. Rename the study, or remove the run.")
    runs[0].log.parent.mkdir(parents=True, exist_ok=True)
    with (runs[0].log.parent / ".lock").open("w") as lock:
        if not try_lock(lock.fileno(), optional=True):
            raise ConfigError("FILE", study.name, "is being run by another process. Wait for it to end.")
        missing = [run for run in runs if run.key not in results and (not only or run.name in only)]
        print(f"{study.name}: {len(missing)} runs to make", flush=True)
        end_children_with_this_process()
        return Maker(study).make_all(missing, parallel)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code, 1 if a run failed."""
    parser = argparse.ArgumentParser(prog="python -m studies.run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE", help="e.g. studies/forks.yaml")
    parser.add_argument("--parallel", type=int, default=2, metavar="N", help="runs at a time (default: %(default)s)")
    parser.add_argument("--only", nargs="+", default=[], metavar="RUN", help="make only these: TASK-METHOD-SEED")
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    succeeded = []
    code = exit_code_of(lambda: succeeded.append(run_study(load_study(given.file), given.only, given.parallel)))
    return code or int(succeeded != [True])


if __name__ == "__main__":
    sys.exit(main())
