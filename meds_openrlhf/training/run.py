"""A whole run: lock the run folder, check, place the run, start all actors, follow them, save the model.

The driver forwards news and stop requests, and monitors the processes whose loss ends the run.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

import ray

from meds_openrlhf.checkpoints import newest_complete
from meds_openrlhf.config import RunConfig
from meds_openrlhf.features.kind import FeatureFunctionError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.placement.engine_limits import EngineLimits
from meds_openrlhf.placement.inventory import Shortage
from meds_openrlhf.placement.plan import Plan
from meds_openrlhf.placement.ray_cluster import inventory, plan_when_free, release, reserve
from meds_openrlhf.run_folder import run_paths_of, set_back, sole_driver_of
from meds_openrlhf.runtime import devices
from meds_openrlhf.runtime.errors import (
    Interrupted,
    Interruptions,
    RunLostError,
    WatchdogExpired,
    innermost,
    interruptible,
)
from meds_openrlhf.runtime.losses import Member, actors_of_this_job, first_loss, loss_behind
from meds_openrlhf.runtime.ray_connection import ray_connection
from meds_openrlhf.terminal import RunConsole
from meds_openrlhf.tracking.sending import Trackers
from meds_openrlhf.tracking.trackers import wanted_trackers
from meds_openrlhf.training.control import StepReport, Stopped
from meds_openrlhf.training.openrlhf import cpu
from meds_openrlhf.training.start.nodes import nodes_now, stated_nodes
from meds_openrlhf.training.start.prepare import Job, prepare

NO_GPU = "this machine has no GPU. Set RAY_ADDRESS to a cluster, or set meds.allow_cpu=true."
POLL_SECONDS = 0.5
CENSUS_SECONDS = 5.0  # between two looks for lost actors
# The halves of an asynchronous trainer, which the driver knows only by their class names.
HALVES = {"TrainingHalf": "training half", "GeneratingHalf": "generating half"}


def run_training(
    config: RunConfig, *, resume: bool, verbose: bool = False, console: RunConsole, cluster: str | None = None
) -> None:
    """Train to the end, on ``cluster``, such as ``4x8`` (nodes x GPUs per node), or on the nodes that Ray has now.

    Raises ConfigError, with nothing started, for mistakes that the user can correct; RunLostError if a vital process is
    lost, the user's feature fails or the run makes no progress for too long; Interrupted on Ctrl-C or SIGTERM.
    """
    paths = run_paths_of(config)
    on_cpu = devices.runs_on_cpu(config.meds.allow_cpu, "meds.allow_cpu", NO_GPU)
    if on_cpu:
        cpu.install()
    stated = stated_nodes(cluster, on_cpu)
    with sole_driver_of(paths, resume, config.meds.lock_seconds):
        job = prepare(config, paths, resume, on_cpu, lambda: stated or nodes_now(on_cpu))
        connection = ray_connection(on_cpu=on_cpu, verbose=verbose, say=console.say)
        with connection, interruptible(config.meds.watchdog.minutes) as interruptions:
            timeout = config.meds.placement.timeout_seconds
            job, plan = _planned(job, timeout if stated or resume else 0.0, console)
            groups = reserve(plan, timeout)
            try:
                trained = set_back(paths, config, job.checkpoint, job.total_steps)
                console.start(job, job.report(plan), trained)
                trackers = Trackers(paths, wanted_trackers(os.environ), first_step=job.first_step)
                try:
                    Run(job, groups, interruptions, console, trackers).train(job.engine_limits(plan))
                finally:
                    for line in trackers.finish():
                        console.say(line)
            except RunLostError as error:
                raise RunLostError(f"{error}; {_how_to_resume(paths)}") from error
            finally:
                release(groups)


def _planned(job: Job, joining: float, console: RunConsole) -> tuple[Job, Plan]:
    """Plan the placement once enough nodes have joined, within ``joining`` seconds, and what the run needs is free.

    A resumed run whose nodes do not come back in that time goes on with those that there are, which its policy and
    critic must fit, as their ranks are those of the checkpoint. Raises Shortage if they do not.
    """
    timeout = job.config.meds.placement.timeout_seconds
    try:
        return job, plan_when_free(job.plan, timeout, console.say, joining)
    except Shortage:
        if job.checkpoint is None:
            raise
    job = prepare(job.config, job.paths, job.resume, job.on_cpu, inventory)
    return job, plan_when_free(job.plan, timeout, console.say)


def _how_to_resume(paths: RunPaths) -> str:
    newest = newest_complete(paths)
    if newest is None:
        return "no checkpoint was saved yet, so --resume starts from the beginning"
    return f"the same command with --resume resumes after step {newest.step}"


@dataclass
class Run:
    """A job with its placement groups, and everything that monitors it."""

    job: Job
    groups: dict[str, Any]  # placement groups by role
    interruptions: Interruptions
    console: RunConsole
    trackers: Trackers
    members: list[Member] = field(default_factory=list)  # empty until the actors are started

    def train(self, limits: EngineLimits) -> None:
        """Start everything, engines with their ``limits``, and follow it to the end.

        Raises RunLostError if a process or the user's feature fails.
        """
        try:
            with self.interruptions.themselves():
                self.interruptions.rewind_watchdog()
                self._start_and_follow(limits)
        except WatchdogExpired:
            limit = f"{self.job.config.meds.watchdog.minutes:g} minutes (meds.watchdog.minutes)"
            hint = "`ray stack` or `py-spy dump --pid PID` on a node shows what its processes wait for"
            raise RunLostError(f"nothing was finished within {limit}; if it happens again, {hint}") from None
        except ray.exceptions.RayError as error:
            cause = innermost(error)
            if isinstance(cause, (RunLostError, FeatureFunctionError)):
                raise RunLostError(str(cause)) from error
            loss = loss_behind(error, self.members or actors_of_this_job())
            if loss is None:
                raise
            raise RunLostError(loss) from error

    def _start_and_follow(self, limits: EngineLimits) -> None:
        """Start all actors, follow the training and save the models."""
        from meds_openrlhf.training.start.actors import start_actors  # late: it imports OpenRLHF

        actors = start_actors(self.job, limits, self.groups)
        self.members = members_of(actors.trainer, actors.engines, actors.models, actors.shards)
        self.job.paths.model_complete.unlink(missing_ok=True)  # of a policy that was trained to an earlier end
        stopped = self.follow(actors.trainer.fit.remote(), actors.control)
        if stopped is not None:
            resume = f"checkpoint {stopped.tag} is saved, resume with --resume"
            saved = resume if stopped.tag else "ckpt.disable_ds: not saved"
            raise Interrupted(self.interruptions.noted or 0, f"stopped after step {stopped.step}; {saved}")
        ray.get(actors.models["policy"].async_save_model())
        if "critic" in actors.models and self.job.args.critic.save_value_network:
            ray.get(actors.models["critic"].async_save_model())

    def follow(self, training: Any, control: Any) -> Stopped | None:
        """Follow the call ``training`` until it returns or the trainer reports that it stopped.

        ``control`` is the handle of the run's RunControl. Raises RunLostError if a vital process is lost,
        WatchdogExpired if there is no progress, and any error of the call.
        """
        next_census, passed_on = 0.0, False
        self.interruptions.rewind_watchdog()
        self.interruptions.patient = True
        try:
            while True:
                done, _ = ray.wait([training], timeout=POLL_SECONDS)
                for line in self.trackers.poll():
                    self.console.say(line)
                stopped = self._take_news(control)
                if stopped is not None:
                    return stopped
                if done:
                    ray.get(training)
                    return None
                if self.interruptions.expired:
                    raise WatchdogExpired
                if self.interruptions.noted is not None and not passed_on:
                    control.request_stop.remote()
                    kept = "without" if self.job.args.ckpt.disable_ds else "with"
                    self.console.say(f"stopping after this step, {kept} a checkpoint; interrupt again to stop at once")
                    passed_on = True
                if time.monotonic() >= next_census:
                    if loss := first_loss(self.members):
                        raise RunLostError(loss)
                    next_census = time.monotonic() + CENSUS_SECONDS
        finally:
            self.interruptions.patient = False
            self.interruptions.rewind_watchdog()

    def _take_news(self, control: Any) -> Stopped | None:
        for news in ray.get(control.take_news.remote()):
            if isinstance(news, Stopped):
                return news
            if isinstance(news, StepReport):
                self.console.step(news.step, news.metrics)
            else:
                self.console.say(news)
            self.interruptions.rewind_watchdog()
        return None


def members_of(trainer: Any, engines: list[Any], groups: dict[str, Any], shards: list[Any]) -> list[Member]:
    """Return all actors of a run, including actors that only the actor table lists."""
    vital = {"trainer": trainer}
    for role, group in groups.items():
        vital |= {f"{role} rank {rank}": handle for rank, handle in enumerate(group._actor_handlers)}
    others = {f"vLLM engine {number}": handle for number, handle in enumerate(engines)}
    others |= {f"memory shard {number}": handle for number, handle in enumerate(shards)}
    known = [Member(name, handle._actor_id.hex(), name in vital) for name, handle in (vital | others).items()]
    ids = {member.actor_id for member in known}
    return known + [member for member in actors_of_this_job(HALVES) if member.actor_id not in ids]
