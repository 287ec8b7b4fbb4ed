"""What our mixin adds to OpenRLHF's trainers at a checkpoint, around a hand-written base that saves files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.checkpoints import Checkpoint, newest_complete
from meds_openrlhf.training.trainer import MemoryTraining, TrainerContext


class SavingTrainer:
    """Saves like OpenRLHF's: a folder per tag; a best one only where the metric got better."""

    def __init__(self, strategy: Any) -> None:
        self.args = strategy.args
        self.wandb_logger = None
        self.best_eval_metric_value = float("-inf")
        self.saved_states: dict[str, dict] = {}
        self.loaded: dict = {"global_step": 0}

    def _save(self, tag: str, states: dict) -> None:
        folder = self.args.folder / "checkpoints/_actor" / tag
        folder.mkdir(parents=True)
        (folder / "weights.pt").write_bytes(b"x")
        self.saved_states[tag] = dict(states)

    def save_logs_and_checkpoints(self, global_step: int, logs: Any, states: dict) -> None:
        if global_step % self.args.ckpt.save_steps == 0:
            self._save(f"global_step{global_step}", states)

    def save_best_checkpoint(self, metrics: dict, global_step: int, states: dict) -> None:
        if metrics["pass1"] > self.best_eval_metric_value:
            self.best_eval_metric_value = metrics["pass1"]
            self._save(f"best_global_step{global_step}", states)

    def init_checkpoint_states(self) -> dict:
        return self.loaded


class Trainer(MemoryTraining, SavingTrainer):
    def _make_experience_maker(self, pool: Any, strategy: Any) -> Any:
        return None


class RecordingPool:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.snapshots: list[str] = []
        self.restored: list[str | None] = []

    def snapshot(self, name: str) -> None:
        self.snapshots.append(name)

    def restore(self, name: str | None) -> None:
        self.restored.append(name)

    def has_snapshot(self, name: str) -> bool:
        return name in self.snapshots

    def prune_snapshots(self, keep: set[str]) -> None:
        self.snapshots = [name for name in self.snapshots if name in keep]


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    args = SimpleNamespace(
        folder=tmp_path, train=SimpleNamespace(seed=1), ckpt=SimpleNamespace(save_steps=3, disable_ds=False)
    )
    reports: list[Any] = []
    context = TrainerContext(
        meds=MedsSettings(run_dir=str(tmp_path)),
        paths=RunPaths(tmp_path),
        steps=SimpleNamespace(put=reports.append, reports=reports),
        pool=RecordingPool(),  # type: ignore[arg-type]
        transform=None,  # type: ignore[arg-type]
        prompt_ids=None,
        wandb_environment={},
    )
    return Trainer(context=context, strategy=SimpleNamespace(args=args))


def test_a_checkpoint_names_its_memory_and_is_marked_last(trainer: Trainer) -> None:
    for step in (1, 2, 3):
        trainer.save_logs_and_checkpoints(
            step, {"reward": 0.5, "generated_samples": ["text", 1.0]}, {"global_step": step}
        )
    assert trainer.saved_states == {"global_step3": {"global_step": 3, "memory_snapshot": "global_step3"}}
    assert newest_complete(trainer._context.paths) == Checkpoint("global_step3", 3)
    assert [(report.step, report.metrics) for report in trainer._context.steps.reports] == [
        (step, {"reward": 0.5}) for step in (1, 2, 3)
    ]


def test_a_best_checkpoint_counts_as_the_step_that_it_holds(trainer: Trainer) -> None:
    states = {"global_step": 5, "memory_snapshot": "global_step3"}
    trainer.save_best_checkpoint({"pass1": 0.4}, 4, states)  # evaluated at step 4, heard of after step 5
    assert trainer.saved_states["best_global_step4"] == {"global_step": 5, "memory_snapshot": "best_global_step4"}
    assert newest_complete(trainer._context.paths) == Checkpoint("best_global_step4", 5)
    assert states["memory_snapshot"] == "global_step3"  # the caller's own stay as they were


def test_an_evaluation_that_is_not_the_best_leaves_no_snapshot(trainer: Trainer) -> None:
    trainer.save_best_checkpoint({"pass1": 0.4}, 4, {"global_step": 4})
    trainer.save_best_checkpoint({"pass1": 0.3}, 8, {"global_step": 8})
    assert trainer._pool.snapshots == ["best_global_step4"]
    assert newest_complete(trainer._context.paths) == Checkpoint("best_global_step4", 4)


def test_the_memory_goes_back_to_the_checkpoints_moment_or_to_nothing(trainer: Trainer) -> None:
    trainer.init_checkpoint_states()
    trainer.loaded = {"global_step": 3, "memory_snapshot": "global_step3"}
    trainer.init_checkpoint_states()
    assert trainer._pool.restored == [None, "global_step3"]
    trainer.loaded = {"global_step": 3}
    with pytest.raises(ConfigError, match="it was saved without a memory"):
        trainer.init_checkpoint_states()


def test_a_branched_memory_goes_back_to_where_it_began(trainer: Trainer) -> None:
    trainer._pool.snapshots.append("branch")
    trainer.init_checkpoint_states()
    trainer.loaded = {"global_step": 3, "memory_snapshot": "global_step3"}
    trainer.init_checkpoint_states()
    assert trainer._pool.restored == ["branch", "global_step3"]


def test_keys_do_not_show_in_the_context(trainer: Trainer) -> None:
    context = TrainerContext(**{**vars(trainer._context), "wandb_environment": {"WANDB_API_KEY": "secret"}})
    assert "secret" not in repr(context)
