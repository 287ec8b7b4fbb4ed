"""What a run's failures become for the user."""

from types import SimpleNamespace

import pytest
from ray.exceptions import RayTaskError

from meds_openrlhf.config import MedsSettings
from meds_openrlhf.features.function import FeatureFunctionError
from meds_openrlhf.runtime.errors import Interruptions, RunLostError, WatchdogExpired
from meds_openrlhf.training.run import Run

FAILED = FeatureFunctionError("my.py: from_texts raised KeyError: 3")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        # Raised in the policy's actor, whose error passes through the trainer's.
        (RayTaskError("fit", "", RayTaskError("forward", "", FAILED)), r"^my.py: from_texts raised KeyError: 3$"),
        (WatchdogExpired(), r"^nothing was finished within 240 minutes .*`ray stack` or `py-spy dump"),
    ],
)
def test_a_failure_ends_the_run_with_a_line(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    job = SimpleNamespace(config=SimpleNamespace(meds=MedsSettings(run_dir="r")))
    monkeypatch.setattr(Run, "_start_and_follow", fail)
    with pytest.raises(RunLostError, match=message):
        Run(job, None, {}, Interruptions(None), None, None).train()
