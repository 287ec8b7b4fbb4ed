"""What a run's failures become for the user."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from meds_openrlhf.config import MedsSettings
from meds_openrlhf.features.function import FeatureFunctionError
from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.runtime.signals import Interruptions, WatchdogExpired
from meds_openrlhf.training.run import Run


def a_run() -> Run:
    job: Any = SimpleNamespace(config=SimpleNamespace(meds=MedsSettings(run_dir="r")))
    nothing: Any = None
    return Run(job, nothing, {}, Interruptions(None), nothing, nothing)


def test_a_feature_of_the_users_that_fails_ends_the_run_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised in the policy's actor, whose error passes through the trainer's."""
    failed = FeatureFunctionError("my.py: from_texts raised KeyError: 3")

    def fail(*_: Any) -> None:
        raise RayTaskError("fit", "a traceback", RayTaskError("forward", "a traceback", failed))

    monkeypatch.setattr(Run, "_start_and_follow", fail)
    with pytest.raises(RunLostError, match=r"^my.py: from_texts raised KeyError: 3$"):
        a_run().train()


def test_a_run_that_does_nothing_ends_with_a_line_that_says_how_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any) -> None:
        raise WatchdogExpired

    monkeypatch.setattr(Run, "_start_and_follow", hang)
    with pytest.raises(RunLostError, match=r"^nothing was finished within 60 minutes .*`ray stack` or `py-spy dump"):
        a_run().train()
