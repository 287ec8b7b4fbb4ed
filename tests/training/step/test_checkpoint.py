"""A checkpoint that cannot be written."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.step.trainer import MedsTraining


@pytest.fixture
def training(tmp_path: Path) -> MedsTraining:
    trainer = MedsTraining.__new__(MedsTraining)
    trainer.args = SimpleNamespace(ckpt=SimpleNamespace(disable_ds=False))
    trainer._context = SimpleNamespace(paths=RunPaths(tmp_path), pool=None)
    trainer._rollouts = SimpleNamespace(flush=lambda: None)
    trainer.experience_maker = SimpleNamespace(diversity=None)
    return trainer


def write_to_a_full_disk() -> None:
    """As a rank of the policy does, in a process of its own."""
    try:
        torch.save(torch.zeros(100_000), "/dev/full")
    except RuntimeError as error:
        raise ray.exceptions.RayTaskError("save_checkpoint", str(error), error) from error


def test_a_full_disk_is_named_and_the_checkpoint_is_not_complete(training: MedsTraining) -> None:
    saving = training._saving(True, "global_step2", 2, {})
    with pytest.raises(OSError, match="checkpoint global_step2 could not be written; is the disk full") as full, saving:
        write_to_a_full_disk()
    assert full.value.errno == errno.ENOSPC
    assert not training._context.paths.complete.exists()


def test_another_error_stays_what_it_is(training: MedsTraining) -> None:
    with pytest.raises(ray.exceptions.RayTaskError), training._saving(True, "global_step2", 2, {}):
        raise ray.exceptions.RayTaskError("save_checkpoint", "no such rank", ValueError("no such rank"))
