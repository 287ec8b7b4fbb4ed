"""Starting OpenRLHF's models."""

import time

import pytest
import ray

from meds_openrlhf.training.models import _wait_for


class Engine:
    def __init__(self, reward: str) -> None:
        open(reward).close()

    def status(self) -> None: ...


@pytest.mark.usefixtures("ray_cluster")
def test_an_engine_that_cannot_start_ends_the_wait_for_the_policy(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "there").touch()
    engine = ray.remote(num_cpus=0)(Engine)
    _wait_for([ray.put(1)], [engine.remote(str(tmp_path / "there"))])
    for_ever = ray.remote(lambda: time.sleep(600)).remote()
    with pytest.raises(ray.exceptions.RayActorError, match="nowhere"):
        _wait_for([for_ever], [engine.remote(str(tmp_path / "nowhere"))])
