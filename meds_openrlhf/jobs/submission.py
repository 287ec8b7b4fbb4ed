"""A run prepared for submission: checked, packed and named, then submitted for each attempt."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import requests

from meds_openrlhf.config import ConfigError, RunConfig, load_config
from meds_openrlhf.jobs.cluster import JobServer, first_sentence
from meds_openrlhf.jobs.environment import JobEnvironment, job_environment
from meds_openrlhf.jobs.named_files import require_paths
from meds_openrlhf.jobs.packaging import Package, readable_size, require_fit, survey


@dataclass(frozen=True)
class Submission:
    """Everything that Ray needs to run a job."""

    name: str
    train: tuple[str, ...]  # `meds train` and its arguments, without --resume
    resume: bool
    package: Package
    environment: JobEnvironment

    def name_of(self, attempt: int) -> str:
        """The job's name; a cluster accepts each name only once."""
        return self.name if attempt == 1 else f"{self.name}-{attempt}"

    def entrypoint(self, attempt: int) -> str:
        """The command, quoted for Ray's shell. Every attempt after the first resumes."""
        return shlex.join([*self.train, "--resume"] if self.resume or attempt > 1 else self.train)

    def submit(self, server: JobServer, attempt: int) -> str:
        """Upload and start the job; returns its name. Raises ConfigError if the head refuses or does not answer."""
        name = self.name_of(attempt)
        runtime_env = {
            "working_dir": str(self.package.root),
            "excludes": list(self.package.excludes),
            "env_vars": self.environment.variables,
        }
        try:
            server.submit_job(entrypoint=self.entrypoint(attempt), submission_id=name, runtime_env=runtime_env)
        except RuntimeError as error:
            if "already exists" in str(error):
                hint = "is the name of another job of this cluster; choose a new one"
                raise ConfigError("--name", name, hint) from error
            raise ConfigError("job", name, f"is refused by the head: {first_sentence(error)}") from error
        except requests.RequestException as error:
            hint = f"was not submitted: the head does not answer ({first_sentence(error)})"
            raise ConfigError("job", name, hint) from error
        return name

    def sent(self, address: str) -> list[str]:
        """Messages about what leaves this machine, and about secrets that do not."""
        package, environment = self.package, self.environment
        lines = [
            f"sending {len(package.files)} files, {readable_size(package.content)}, of {package.root} to {address}"
        ]
        shown = "Ray shows a job's environment to whoever reaches its dashboard or logs"
        if environment.exposed:
            lines.append(f"sending in the clear: {', '.join(environment.exposed)}; {shown}")
        if environment.withheld:
            lines.append(
                f"not sending: {', '.join(environment.withheld)}, set here, because {shown}; "
                "set them in the environment of the nodes, or send them with --env NAME"
            )
        return lines


def prepare(
    config_path: Path,
    overrides: Sequence[str],
    *,
    working_dir: Path,
    name: str | None,
    resume: bool,
    verbose: bool,
    variables: Sequence[str],
    environ: Mapping[str, str],
) -> Submission:
    """Prepare a run for submission. Raises ConfigError for every error that can be detected on this machine."""
    config = load_config(config_path, overrides)
    environment = job_environment(variables, environ)
    package = survey(working_dir)
    config_name = require_paths(config, config_path, package)
    require_fit(package)
    return Submission(
        name=name or _default_name(config),
        train=("meds", "train", config_name, *overrides, *(["--verbose"] if verbose else [])),
        resume=resume,
        package=package,
        environment=environment,
    )


def _default_name(config: RunConfig) -> str:
    return f"{Path(config.meds.run_dir).name}-{datetime.now():%Y%m%d-%H%M%S}"
