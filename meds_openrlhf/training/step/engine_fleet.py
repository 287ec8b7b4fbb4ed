"""Sends prompts to vLLM engines from one process: drops lost engines and adds restarted engines again.

An engine knows whether it has the policy's weights. Only engines that have them are used.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from meds_openrlhf.runtime.errors import RunLostError, innermost

# Ray reports a lost engine within seconds. A silent engine counts as busy for this long, and is then restarted.
STATUS_SECONDS = 300.0
RESTART_SECONDS = 900.0
POLL_SECONDS = 2.0
# Engines abort a prompt within a decoding step.
CANCEL_SECONDS = 60.0


class StaleWeightsError(RuntimeError):
    """A restarted engine was asked to generate before it received the policy's weights."""


@dataclass(frozen=True)
class EngineStatus:
    """The life (process) of an engine, whether it has the policy's weights, and whether vLLM is running."""

    life: str
    has_weights: bool = True
    loaded: bool = True


class EngineFleet:
    """All engines of a run. ``usable`` is the list that OpenRLHF's trainer and generator use, updated in place.

    The other engines are unavailable until a weight sync after their restart, or given up after their last restart.
    """

    def __init__(self, engines: list[Any], tell: Callable[[str], None]) -> None:
        self.usable = list(engines)
        self.tell = tell
        self._engines = list(engines)
        self._given_up: set[Any] = set()
        self._lives: dict[Any, str] = {}  # of the usable engines
        self._group: list[str] | None = None  # lives in the weight-sync group; None before the first sync
        self._sent: dict[Any, tuple[Any, str]] = {}  # by call: its engine, and the engine's life at that time
        self._running: Counter[Any] = Counter()  # calls by engine

    # ── prompts ──

    def generate(self, **request: Any) -> Any:
        """Send a prompt to the least loaded engine; return the ObjectRef of the call."""
        engine = min(self.usable, key=self._running.__getitem__)
        call = engine.generate_responses.remote(**request)
        self._sent[call] = engine, self._lives.get(engine, "")
        self._running[engine] += 1
        return call

    def wait(self, calls: Sequence[Any]) -> list[Any]:
        """Wait up to 10 s for a call to end; return all ended calls."""
        ended, _ = ray.wait(calls, num_returns=1, timeout=10.0)
        if ended:
            ended, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        return list(ended)

    def responses(self, call: Any) -> list[Any] | None:
        """Return the responses of an ended call. If its engine was lost, drop the engine and return None."""
        life = self._forget(call)
        try:
            responses: list[Any] = ray.get(call)
            return responses
        except (ray.exceptions.RayTaskError, ray.exceptions.RayActorError) as error:
            is_actor = isinstance(error, ray.exceptions.RayActorError)
            if not (is_actor or self.is_loss(error) or isinstance(innermost(error), StaleWeightsError)):
                raise
            self.drop(life, error)
        return None

    def cancel(self, calls: Sequence[Any]) -> None:
        """Abort calls, and wait until the engines have done so."""
        for call in calls:
            ray.cancel(call)
            self._forget(call)
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=CANCEL_SECONDS)

    def _forget(self, call: Any) -> str:
        """Stop counting a call; return the life of the engine that had it."""
        engine, life = self._sent.pop(call)
        self._running[engine] -= 1
        return life

    # ── engines ──

    def keep_those_with_weights(self) -> None:
        """Drop engines that are unavailable or lack the weights; called before engines generate or pause."""
        self._use({engine: status for engine, status in self._statuses().items() if status.has_weights})

    def take_in_restarted(self) -> bool:
        """Use every engine that answers, restarted or not; called before a weight sync.

        Returns whether a new sync group is needed. Raises RunLostError if no engine comes back.
        """
        statuses = self._loaded_statuses()
        self._use(statuses)
        lives = [status.life for status in statuses.values()]
        before, self._group = self._group, lives
        if before is None:  # OpenRLHF's group has all engines
            return len(lives) < len(self._engines) or not all(status.has_weights for status in statuses.values())
        return lives != before

    def note_sync(self) -> None:
        """Tell the engines in use that they have the weights; called after a weight sync."""
        ray.get([engine.has_received.remote(self._lives[engine]) for engine in self.usable])

    def drop(self, life: str, error: Exception) -> None:
        """Stop using the engine whose call failed during ``life``, until it has restarted and has the weights.

        Kills the actor so that Ray restarts it, unless the actor is lost already or was restarted and lacks weights.
        """
        lost = next((engine for engine in self.usable if self._lives.get(engine) == life), None)
        if lost is None:
            return  # another failed call has dropped it already, and Ray may have restarted it since
        self.usable.remove(lost)
        if not isinstance(innermost(error), (ray.exceptions.RayActorError, StaleWeightsError)):
            ray.kill(lost, no_restart=False)  # the actor outlives its vLLM process
        left = f"its prompts go to the remaining {len(self.usable)}" if self.usable else "waiting for its restart"
        self._tell_of(lost, f"was lost ({type(error).__name__}); {left}")

    def is_loss(self, error: BaseException) -> bool:
        """Return whether the loss of one of these engines caused ``error``, which may be wrapped."""
        cause = innermost(error)
        if isinstance(cause, ray.exceptions.RayActorError):
            return any(cause.actor_id == engine._actor_id.hex() for engine in self._engines)
        exceptions = sys.modules.get("vllm.v1.engine.exceptions")  # imported if such an error can occur
        return exceptions is not None and isinstance(cause, exceptions.EngineDeadError)

    def _use(self, statuses: dict[Any, EngineStatus]) -> None:
        for engine in statuses:
            if engine not in self.usable:
                self._tell_of(engine, "is back")
        for engine in self.usable:
            if engine not in statuses:
                self._tell_of(engine, f"is unavailable; continuing with {len(statuses)} of {len(self._engines)}")
        self.usable[:] = statuses
        self._lives = {engine: status.life for engine, status in statuses.items()}

    def _tell_of(self, engine: Any, what: str) -> None:
        self.tell(f"vLLM engine {self._engines.index(engine)} {what}")

    def _loaded_statuses(self) -> dict[Any, EngineStatus]:
        """Wait until vLLM is running in at least one engine; return the statuses of all engines in which it is running.

        Starts vLLM in restarted engines that did not load it while the policy trained.
        """
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            statuses = self._statuses()
            if loads := [engine.load.remote() for engine, status in statuses.items() if not status.loaded]:
                ray.wait(loads, num_returns=len(loads), timeout=RESTART_SECONDS)
                statuses = self._statuses()
            if loaded := {engine: status for engine, status in statuses.items() if status.loaded}:
                return loaded
            if len(self._given_up) == len(self._engines) or time.monotonic() > deadline:
                why = "they say why in Ray's logs, /tmp/ray/session_latest/logs on their node"
                raise RunLostError(f"every vLLM engine was lost, and none came back ({why})")
            time.sleep(POLL_SECONDS)

    def _statuses(self) -> dict[Any, EngineStatus]:
        """Return the statuses of the engines that answer, in the order of the engines."""
        references = {engine.status.remote(): engine for engine in self._engines}
        done, silent = ray.wait(list(references), num_returns=len(references), timeout=STATUS_SECONDS)
        for reference in silent:
            ray.kill(references[reference], no_restart=False)
        statuses: dict[Any, EngineStatus] = {}
        for reference in [reference for reference in references if reference in set(done)]:
            engine = references[reference]
            try:
                statuses[engine] = ray.get(reference)
            except ray.exceptions.ActorDiedError:
                if engine not in self._given_up:
                    self._given_up.add(engine)
                    self._tell_of(engine, "exceeded its restart limit and will not be restarted")
            except ray.exceptions.RayActorError:
                pass  # being restarted
        return statuses
