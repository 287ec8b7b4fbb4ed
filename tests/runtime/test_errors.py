"""Signals become exceptions, or are noted while a step is under way."""

import os
import signal
import time
from threading import Timer

import pytest
import ray

from meds_openrlhf.runtime.errors import Interrupted, WatchdogExpired, interruptible


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_interrupts_what_can_wait_for_no_step(signum: int) -> None:
    before = signal.getsignal(signum)
    with pytest.raises(Interrupted) as raised, interruptible(None):
        os.kill(os.getpid(), signum)
    assert raised.value.signum == signum
    assert signal.getsignal(signum) is before


def test_the_watchdog_counts_from_the_last_rewind() -> None:
    with interruptible(10) as interruptions:
        interruptions.rewind_watchdog()
        assert 300 < signal.getitimer(signal.ITIMER_REAL)[0] <= 600
        signal.setitimer(signal.ITIMER_REAL, 200)  # as if the most of it had passed
        interruptions.rewind_watchdog()
        assert 300 < signal.getitimer(signal.ITIMER_REAL)[0] <= 600
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)  # switched off
    with pytest.raises(WatchdogExpired), interruptible(0.05 / 60) as interruptions:  # noqa: PT012 - begins here
        interruptions.rewind_watchdog()
        time.sleep(5)


@pytest.mark.usefixtures("ray_cluster")
def test_an_interruption_ends_rays_blocking_calls_at_once() -> None:
    never = ray.remote(lambda: time.sleep(600)).remote()
    for call in (lambda: ray.wait([never]), lambda: ray.get(never)):
        with pytest.raises(WatchdogExpired), interruptible(0.5 / 60) as interruptions:  # noqa: PT012 - as above
            interruptions.rewind_watchdog()
            call()
    with pytest.raises(Interrupted) as raised, interruptible(None):  # noqa: PT012 - as above
        Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        ray.get(never)
    assert raised.value.signum == signal.SIGTERM
