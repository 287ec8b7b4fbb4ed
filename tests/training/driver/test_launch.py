"""What a run's failures become for the user."""

from typing import Any

import pytest
from ray.exceptions import RayTaskError

from meds_openrlhf.features.function import FeatureFunctionError
from meds_openrlhf.training.driver import launch
from meds_openrlhf.training.driver.interruption import Interruptions
from meds_openrlhf.training.errors import RunLostError


def test_a_feature_of_the_users_that_fails_ends_the_run_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised in the policy's actor, whose error passes through the trainer's."""
    failed = FeatureFunctionError("my.py: from_texts raised KeyError: 3")

    def fail(*_: Any) -> None:
        raise RayTaskError("fit", "a traceback", RayTaskError("forward", "a traceback", failed))

    monkeypatch.setattr(launch, "_start_and_follow", fail)
    nothing: Any = None
    with pytest.raises(RunLostError, match=r"^my.py: from_texts raised KeyError: 3$"):
        launch._train(nothing, {}, Interruptions(None), nothing, nothing)
