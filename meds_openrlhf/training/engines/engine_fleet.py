"""Which vLLM engines can be used now, as one process sees it; lost ones are left out, restarted ones taken in again.

Every weight sync has a number, and an engine says which one it has received. Only those with the newest are used.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from meds_openrlhf.training.errors import RunLostError, innermost

# Ray says within seconds that an engine is away. One that is silent is busy, up to this long.
STATUS_SECONDS = 300.0
RESTART_SECONDS = 900.0
POLL_SECONDS = 2.0
# Instead of a sync's number: the weights on the disk, with which the policy began too; and those after a restart.
AS_STARTED, NONE = 0, -1


class StaleWeightsError(RuntimeError):
    """A restarted engine was asked to generate before the policy's weights had reached it."""


@dataclass(frozen=True)
class EngineStatus:
    """One life of an engine, the weight sync that it has received last, and whether vLLM is running in it."""

    life: str
    weights: int
    loaded: bool = True


class EngineFleet:
    """All engines of a run. ``usable`` is the list that OpenRLHF's trainer and generator work with, kept up to date."""

    def __init__(self, engines: list[Any], tell: Callable[[str], None]) -> None:
        self.usable = list(engines)
        self._engines = list(engines)
        self._ids = [engine._actor_id.hex() for engine in engines]
        self._given_up: set[str] = set()
        self._lives: dict[str, str] = {}  # of the usable ones, by actor id
        self.tell = tell
        self._group: list[str] | None = None  # the lives in the weight-sync group; None: as started
        self._weights = AS_STARTED  # the newest sync that this process knows of

    def keep_those_with_weights(self) -> None:
        """Before responses are generated: leave out engines that are away or have not the newest weights."""
        statuses = self._statuses()
        self._weights = max([self._weights, *(status.weights for status in statuses if status is not None)])
        self._use([one if one is not None and one.weights == self._weights else None for one in statuses])

    def take_in_restarted(self) -> bool:
        """Before a weight sync: use every engine that answers. Whether the sync group has to be formed anew.

        Raises RunLostError where no engine comes back.
        """
        statuses = self._loaded_ones()
        self._use(statuses)
        lives = [status.life for status in statuses if status is not None]
        as_started = all(status is not None and status.weights != NONE for status in statuses)
        changed = lives != self._group if self._group is not None else not as_started
        self._group = lives
        return changed

    def note_sync(self) -> None:
        """After a weight sync: the engines in use have the newest weights, and say so from now on."""
        self._weights += 1
        ray.get([engine.has_received.remote(self._weights) for engine in self.usable])

    def life_of(self, call: Any) -> str:
        """The life of the engine that a call was just made to; ``call`` is the reference to its result."""
        return self._lives.get(call.task_id().actor_id().hex(), "")

    def drop(self, life: str, error: Exception) -> None:
        """An engine failed a call in this life with ``error``; it comes back when Ray has started it again.

        One whose actor was lost is in Ray's hands already, and one without weights may well be in its next life.
        """
        lost = next((one for one in self.usable if self._lives.get(one._actor_id.hex()) == life), None)
        if lost is None:
            return  # another of its calls failed before, and it may be in its next life by now
        self.usable.remove(lost)
        if not isinstance(innermost(error), (ray.exceptions.RayActorError, StaleWeightsError)):
            ray.kill(lost, no_restart=False)  # it outlives the vLLM process inside
        left = f"its prompts go to the {len(self.usable)} left" if self.usable else "waiting until it is restarted"
        self.tell(f"vLLM engine {self._engines.index(lost)} was lost ({type(error).__name__}); {left}")

    def is_loss(self, error: BaseException) -> bool:
        """Whether ``error``, however wrapped, comes of the loss of one of these engines."""
        cause = innermost(error)
        if isinstance(cause, ray.exceptions.RayActorError):
            return cause.actor_id in self._ids
        exceptions = sys.modules.get("vllm.v1.engine.exceptions")  # loaded wherever such an error can be
        return exceptions is not None and isinstance(cause, exceptions.EngineDeadError)

    def _use(self, statuses: list[EngineStatus | None]) -> None:
        engines = [engine for engine, status in zip(self._engines, statuses) if status is not None]
        for engine in engines:
            if engine not in self.usable:
                self.tell(f"vLLM engine {self._engines.index(engine)} is back")
        for engine in self.usable:
            if engine not in engines:
                self.tell(f"vLLM engine {self._engines.index(engine)} is away; {len(engines)} go on without it")
        self.usable[:] = engines
        self._lives = {name: status.life for name, status in zip(self._ids, statuses) if status is not None}

    def _loaded_ones(self) -> list[EngineStatus | None]:
        """Statuses of all engines in which vLLM is running; at least one."""
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            statuses = self._statuses()
            if self._load_waiting(statuses):
                statuses = self._statuses()
            statuses = [one if one is not None and one.loaded else None for one in statuses]
            if any(status is not None for status in statuses):
                return statuses
            if len(self._given_up) == len(self._engines) or time.monotonic() > deadline:
                raise RunLostError("every vLLM engine was lost, and none came back")
            time.sleep(POLL_SECONDS)

    def _load_waiting(self, statuses: list[EngineStatus | None]) -> bool:
        """Restarted engines that sleep while the policy trains wait for this moment to start vLLM; whether any did."""
        named = zip(self._engines, statuses)
        calls = [engine.load.remote() for engine, status in named if status is not None and not status.loaded]
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=RESTART_SECONDS)
        return bool(calls)

    def _statuses(self) -> list[EngineStatus | None]:
        """None for an engine that is away."""
        references = [engine.status.remote() for engine in self._engines]
        done, _ = ray.wait(references, num_returns=len(references), timeout=STATUS_SECONDS)
        answered = set(done)
        return [
            self._status(number, reference) if reference in answered else None
            for number, reference in enumerate(references)
        ]

    def _status(self, number: int, reference: Any) -> EngineStatus | None:
        try:
            status: EngineStatus = ray.get(reference)
            return status
        except ray.exceptions.ActorDiedError:
            if self._ids[number] not in self._given_up:
                self._given_up.add(self._ids[number])
                self.tell(f"vLLM engine {number} was lost too often, and is not started again")
        except ray.exceptions.RayActorError:
            pass  # on its way back
        return None
