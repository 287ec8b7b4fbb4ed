"""Stream a job's log until the job ends, across broken connections and restarts of the head."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import aiohttp
import requests

# Errors of a broken connection, in Ray's client and in the two libraries that it uses.
BREAKS = (RuntimeError, OSError, aiohttp.ClientError, requests.RequestException, asyncio.TimeoutError)


class End(Enum):
    """How a job ends, as observed from outside::

    submitted ──► SUCCEEDED | FAILED | STOPPED
         │
         └ the head went away ──► LOST      it restarted and no longer knows the job
                              └─► UNKNOWN   it did not come back in time; the job may still be running
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Ending:
    """The end of a job."""

    end: End
    driver_exit_code: int | None  # of `meds train`; None if it never started, or was lost with its node
    reason: str

    @property
    def exit_code(self) -> int:
        """The exit code of `meds submit` (docs/cluster.md)."""
        if self.end is End.FAILED and self.driver_exit_code is not None:
            code = self.driver_exit_code
            return code if code > 0 else 128 - code  # -9: killed by signal 9
        return {End.SUCCEEDED: 0, End.FAILED: 1, End.STOPPED: 143, End.LOST: 1, End.UNKNOWN: 69}[self.end]


class JobReader(Protocol):
    """The part of Ray's client that `Follower` needs."""

    def get_job_info(self, job_id: str) -> Any:
        """The job's status and exit code. Raises RuntimeError with "status code 404" if the job is unknown."""

    def get_job_logs(self, job_id: str) -> str:
        """The job's output so far."""

    def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        """Stream the job's output from its first line on."""


class Follower:
    """Writes a job's output, every character exactly once, until the job has ended."""

    def __init__(
        self,
        server: JobReader,
        write: Callable[[str], None],
        say: Callable[[str], None],
        *,
        patience: float = 600,
        pause: float = 2,
        quiet: float = 60,
    ) -> None:
        """``patience``: seconds to wait for a missing head; ``quiet``: seconds without output before a status check."""
        self._server, self._write, self._say = server, write, say
        self._patience, self._pause, self._quiet = patience, pause, quiet
        self._written = 0
        self._silent_since: float | None = None

    def follow(self, name: str) -> Ending:
        """Write the job's log until its end."""
        self._written, self._silent_since = 0, None
        while True:
            with suppress(*BREAKS):  # the status shows whether the error matters
                asyncio.run(self._tail(name))
            ending = self._ending(name)
            if ending is not None:
                self._write_rest(name)
                return ending
            time.sleep(self._pause)

    async def _tail(self, name: str) -> None:
        """Write the log until it ends or the connection breaks. Each connection starts again at the first line."""
        position = 0
        lines = self._server.tail_job_logs(name)
        while True:
            following = asyncio.ensure_future(anext(lines))
            while not (await asyncio.wait({following}, timeout=self._quiet))[0]:
                self._server.get_job_info(name)  # raises if the head is gone; a dead connection is silent
            try:
                text = following.result()
            except StopAsyncIteration:
                return
            self._pass_on(text, position)
            position += len(text)

    def _pass_on(self, text: str, position: int) -> None:
        new = text[max(0, self._written - position) :]
        if new:
            self._write(new)
            self._written += len(new)

    def _write_rest(self, name: str) -> None:
        with suppress(*BREAKS):  # the log may be gone with its node
            self._pass_on(self._server.get_job_logs(name), 0)

    def _ending(self, name: str) -> Ending | None:
        """How the job ended; None while it is running, or while the head may still come back."""
        try:
            info = self._server.get_job_info(name)
        except BREAKS as error:
            if "status code 404" in str(error):
                return Ending(End.LOST, None, "the head was restarted and no longer knows this job")
            return self._wait_for_head()
        if self._silent_since is not None:
            self._say("the head answers again")
            self._silent_since = None
        if not info.status.is_terminal():
            return None
        return Ending(End[info.status.name], info.driver_exit_code, _reason(info))

    def _wait_for_head(self) -> Ending | None:
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            self._say(f"the head does not answer; trying again for {self._patience:.0f} s")
        if now - self._silent_since < self._patience:
            return None
        return Ending(End.UNKNOWN, None, f"the head has not answered for {self._patience:.0f} s")


def _reason(info: Any) -> str:
    """Why a job failed, in one line."""
    if info.driver_exit_code == 127:
        return "the head knows no command `meds`: activate this package's environment there before `ray start`"
    if info.driver_exit_code is not None:
        code = info.driver_exit_code
        return "killed" if code in (137, -9) else f"exit code {code}"
    return next(iter((info.message or "no reason given").strip().splitlines()))
