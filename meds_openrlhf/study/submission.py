"""The runs of a study as jobs on a Ray cluster, one after another: each is `meds study run FILE --only RUN` there.

Ray gives a job a copy of the working folder, so runs and results belong on storage that every node sees. A job makes
what is missing of its run; submitting the study again follows a job that is still at work, and submits the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from meds_openrlhf.config import ConfigError
from meds_openrlhf.config.file_settings import RELATIVE_IN_A_JOB
from meds_openrlhf.jobs.cluster import JobServer, connect
from meds_openrlhf.jobs.environment import job_environment
from meds_openrlhf.jobs.log_stream import End, Follower
from meds_openrlhf.jobs.named_files import require_paths
from meds_openrlhf.jobs.packaging import require_fit, survey
from meds_openrlhf.jobs.submission import Submission
from meds_openrlhf.study.execution import needs_run
from meds_openrlhf.study.plan import StudyRun


def submissions_of(
    runs: Sequence[StudyRun], working_dir: Path, variables: Sequence[str], environ: Mapping[str, str]
) -> list[Submission]:
    """A job for every run that has no result here. Raises ConfigError for what a job would not find."""
    study = runs[0].study
    for name, folder in (("runs", study.runs), ("results", study.results)):
        if not folder.is_absolute():
            raise ConfigError(name, str(folder), RELATIVE_IN_A_JOB)
    environment, package = job_environment(variables, environ), survey(working_dir)
    missing = [run for run in runs if needs_run(run)]
    for run in missing:
        require_paths(run.load(), run.config_file, package)
    require_fit(package)
    file = os.path.relpath(study.path.absolute(), package.root)
    if file.startswith("..") or package.missing(file) is not None:
        raise ConfigError("FILE", str(study.path), f"is not sent with {package.root}, of which a job gets a copy")
    folders = ("--runs", str(study.runs), "--results", str(study.results))
    now = f"{datetime.now():%Y%m%d-%H%M%S}"
    return [
        Submission(
            name=f"{_name(run)}{now}",
            train=("meds", "study", "run", file, *folders, "--only", run.name),
            resume=False,
            package=package,
            environment=environment,
        )
        for run in missing
    ]


def submit_study(
    submissions: Sequence[Submission], address: str, say: Callable[[str], None], write: Callable[[str], None]
) -> int:
    """Submit and follow one job after another; returns the exit code, 1 if one of them failed."""
    server = connect(address)
    failed = []
    for submission in submissions:
        name = _at_work(server, submission.name[:-15])
        if name is None:
            name = submission.submit(server, 1)
            say(f"{name}: submitted")
        else:
            say(f"{name}: is at work already")
        ending = Follower(server, write, lambda line, name=name: say(f"{name}: {line}")).follow(name)  # type: ignore[misc]
        if ending.end is not End.SUCCEEDED:
            failed.append(f"{name}: {ending.end.value} ({ending.reason})")
    for line in failed:
        say(line)
    return 1 if failed else 0


def _name(run: StudyRun) -> str:
    """What the names of all jobs of a run begin with; a time follows."""
    return f"{run.study.name}-{run.name}-"


def _at_work(server: JobServer, begin: str) -> str | None:
    """The name of a job that is making the run now."""
    for job in server.list_jobs():
        name = job.submission_id
        if name and name.startswith(begin) and len(name) == len(begin) + 15 and not job.status.is_terminal():
            return str(name)
    return None
