"""The trainer's checkpoints, without a trainer."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from meds_openrlhf.checkpoints import newest_complete
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.step import checkpoint as checkpointing
from meds_openrlhf.training.step.checkpoint import CheckpointedTraining


class Training(CheckpointedTraining):
    def fit(self, global_step: int = 0) -> None:
        """Abstract in OpenRLHF's."""


class Pool:
    """Keeps the names of snapshots that were not pruned."""

    kept: set[str]

    def snapshot(self, name: str) -> None:
        pass

    def prune_snapshots(self, kept: set[str]) -> None:
        self.kept = kept


def test_a_checkpoint_whose_folder_is_not_yet_seen_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a shared disk the listing of a folder may lag behind what another node has just written there."""
    paths = RunPaths(tmp_path)
    for tag in ("global_step4", "global_step5"):
        folder = paths.policy_checkpoints / tag
        folder.mkdir(parents=True)
        (folder / "weights.pt").write_bytes(bytes(10))
    monkeypatch.setattr(checkpointing, "saved_tags", lambda _: {"global_step4"})
    training, pool = Training.__new__(Training), Pool()
    training.__dict__.update(
        _context=SimpleNamespace(paths=paths, pool=pool), _diversity=None, _rollouts=SimpleNamespace(flush=int),
        args=SimpleNamespace(ckpt=SimpleNamespace(disable_ds=False)),
    )  # fmt: skip
    with training._saving(True, "global_step5", 5, {}):
        pass
    newest = newest_complete(paths)
    assert newest is not None
    assert newest.tag == "global_step5"
    assert {"global_step4", "global_step5"} <= pool.kept
