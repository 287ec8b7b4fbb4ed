"""What our mixin adds to OpenRLHF's trainers at a checkpoint, around a hand-written base that saves files."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import ray
import torch
from openrlhf.trainer.ppo_trainer import BasePPOTrainer

from meds_openrlhf.checkpoints import Checkpoint, newest_complete
from meds_openrlhf.config import ConfigError
from meds_openrlhf.config.schema import MedsSettings, PolicySettings
from meds_openrlhf.features.moments import DiversityTracker, Moments
from meds_openrlhf.memory.pool import MemoryPool
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog
from meds_openrlhf.training.control import RunControl, StepReport, Stopped
from meds_openrlhf.training.step import trainer as trainer_module
from meds_openrlhf.training.step.context import TrainerContext
from meds_openrlhf.training.step.trainer import MedsTraining
from tests.training.step.rollouts import RECORDED

pytestmark = pytest.mark.usefixtures("ray_cluster")


class SavingTrainer(BasePPOTrainer):
    """Saves like OpenRLHF's: a folder per tag; a best one only where the metric got better. Its loop is ``loop``."""

    loop: Callable[[], None]

    def __init__(self, strategy: Any) -> None:
        self.args, self.vllm_engines = strategy.args, list[Any]()
        self.experience_maker = SimpleNamespace(diversity=DiversityTracker())
        self.best_eval_metric_value = float("-inf")
        self.saved_states: dict[str, dict] = {}
        self.loaded: dict = {"global_step": 0}

    def fit(self, global_step: int = 0) -> None:
        self.loop()

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

    def _detect_eval_metric_key(self, metrics: dict) -> str | None:
        return "pass1" if "pass1" in metrics else None


class Trainer(MedsTraining, SavingTrainer):
    pass


class RecordingPool:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.snapshots: list[str] = []
        self.restored: list[str | None] = []

    def snapshot(self, name: str) -> None:
        self.snapshots.append(name)

    def restore(self, name: str | None) -> None:
        self.restored.append(name)

    def prune_snapshots(self, keep: set[str]) -> None:
        self.snapshots = [name for name in self.snapshots if name in keep]


class Control:
    """The handle of a run's mailbox, which is in this process."""

    def __init__(self, paths: RunPaths) -> None:
        self.mailbox = RunControl(paths)

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *words: ray.put(getattr(self.mailbox, name)(*words)))


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    ckpt = SimpleNamespace(save_steps=3, disable_ds=False)
    args = SimpleNamespace(folder=tmp_path, train=SimpleNamespace(seed=1), ckpt=ckpt)
    paths, pool, meds = RunPaths(tmp_path), cast(MemoryPool, RecordingPool()), MedsSettings(run_dir=str(tmp_path))
    context = TrainerContext(meds, paths, Control(paths), pool, feature=RECORDED, recorder=None, first_step=0)
    return Trainer(context=context, strategy=SimpleNamespace(args=args))


def news_of(trainer: Trainer) -> list[Any]:
    return trainer._context.control.mailbox.take_news()


def test_a_checkpoint_names_its_memory_and_is_marked_last(trainer: Trainer) -> None:
    for step in (1, 2, 3):
        logs = {"reward": 0.5, "generated_samples": ["text", 1.0]}
        trainer.save_logs_and_checkpoints(step, logs, {"global_step": step})
    assert trainer.saved_states == {"global_step3": {"global_step": 3, "memory_snapshot": "global_step3"}}
    assert newest_complete(trainer._context.paths) == Checkpoint("global_step3", 3)
    assert news_of(trainer) == [StepReport(step, {"reward": 0.5}) for step in (1, 2, 3)]
    assert [line["step"] for line in StepLog(trainer._context.paths.metrics).read()] == [1, 2, 3]


def test_a_checkpoint_whose_folder_is_not_yet_seen_is_kept(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a shared disk the listing of a folder may lag behind what another node has just written there."""
    trainer.save_logs_and_checkpoints(3, {}, {"global_step": 3})
    monkeypatch.setattr(trainer_module, "saved_tags", lambda _: {"global_step3"})
    trainer.save_logs_and_checkpoints(6, {}, {"global_step": 6})
    assert newest_complete(trainer._context.paths) == Checkpoint("global_step6", 6)
    assert trainer._context.pool.snapshots == ["global_step3", "global_step6"]


def test_a_best_checkpoint_counts_as_the_step_that_it_holds(trainer: Trainer) -> None:
    states = {"global_step": 5, "memory_snapshot": "global_step3"}
    trainer.save_best_checkpoint({"pass1": 0.4}, 4, states)  # evaluated at step 4, heard of after step 5
    assert trainer.saved_states["best_global_step4"] == {"global_step": 5, "memory_snapshot": "best_global_step4"}
    assert newest_complete(trainer._context.paths) == Checkpoint("best_global_step4", 5)
    assert states["memory_snapshot"] == "global_step3"  # the caller's own stay as they were
    trainer.save_best_checkpoint({"pass1": 0.3}, 8, {"global_step": 8})  # not the best
    assert trainer._context.pool.snapshots == ["best_global_step4"]
    assert newest_complete(trainer._context.paths) == Checkpoint("best_global_step4", 5)


def test_the_memory_goes_back_to_the_checkpoints_moment_or_to_its_beginning(trainer: Trainer) -> None:
    trainer.init_checkpoint_states()
    trainer.loaded = {"global_step": 3, "memory_snapshot": "global_step3"}
    trainer.init_checkpoint_states()
    assert trainer._context.pool.restored == [None, "global_step3"]
    trainer.loaded = {"global_step": 3}
    with pytest.raises(ConfigError, match="was saved without a memory"):
        trainer.init_checkpoint_states()


def test_a_stop_that_was_asked_for_ends_the_step_with_a_checkpoint(trainer: Trainer) -> None:
    def loop() -> None:
        for step in (1, 2, 3):
            trainer.save_logs_and_checkpoints(step, {}, {"global_step": step})
            if step == 1:
                trainer._context.control.mailbox.request_stop()

    trainer.loop = loop
    trainer.fit()
    assert newest_complete(trainer._context.paths) == Checkpoint("global_step2", 2)
    assert news_of(trainer) == [StepReport(1, {}), StepReport(2, {}), Stopped(2, "global_step2")]


def test_a_stop_during_an_evaluation_needs_no_further_step(trainer: Trainer) -> None:
    def loop() -> None:
        for step in (1, 2):
            trainer.save_logs_and_checkpoints(step, {}, {"global_step": step})
        trainer._context.control.mailbox.request_stop()
        trainer.save_best_checkpoint({"pass1": 0.4}, 2, {"global_step": 2})
        raise AssertionError("went on")

    trainer.loop = loop
    trainer.fit()
    assert news_of(trainer)[-1] == Stopped(2, "global_step2")
    assert newest_complete(trainer._context.paths) == Checkpoint("global_step2", 2)
    assert "best_global_step2" in trainer.saved_states


def test_a_stop_without_checkpoints_says_so(trainer: Trainer) -> None:
    flushed: list[bool] = []
    trainer._rollouts = SimpleNamespace(flush=lambda: flushed.append(True))
    trainer.args.ckpt.disable_ds = True
    trainer._context.control.mailbox.request_stop()
    trainer.loop = lambda: trainer.save_logs_and_checkpoints(1, {}, {})
    trainer.fit()
    assert news_of(trainer)[-1] == Stopped(1, None)
    assert flushed  # all rollouts are logged


def test_the_moments_behind_the_eigen_ratios_are_part_of_a_checkpoint(trainer: Trainer) -> None:
    features = np.array([[0.0, 1.0], [2.0, 1.0], [0.0, 4.0]])
    stored = {"stored": Moments.of(features), "prompts": np.array([0, 0, 1])}
    before = trainer.experience_maker.diversity.add(features, features[:2], **stored)
    trainer.save_logs_and_checkpoints(3, {}, {"global_step": 3})
    trainer.experience_maker.diversity = DiversityTracker(50)
    trainer.loaded = trainer.saved_states["global_step3"]
    trainer.init_checkpoint_states()
    after = trainer.experience_maker.diversity.add(features + 1, features[:0], **stored)
    assert after["meds/eigen_ratio_right_all"] == before["meds/eigen_ratio_right_all"] == 1.0
    assert after["meds/eigen_ratio_window"] != before["meds/eigen_ratio_window"]
    trainer._context.paths.diversity("global_step3").unlink()
    assert newest_complete(trainer._context.paths) is None  # not whole without


@pytest.mark.parametrize(
    ("frozen", "trained"), [(-1, ["policy", "critic"]), (3, ["policy", "critic"]), (4, ["critic"])]
)
def test_a_step_makes_experiences_trains_on_them_and_sends_the_weights(
    trainer: Trainer, frozen: int, trained: list[str]
) -> None:
    """Up to ``critic.freezing_steps`` the policy gets nothing, which it would train on later."""
    calls: list[Any] = []
    result = SimpleNamespace(experiences=["of this step"], metrics={"meds/rows": 7.0})

    def noted(name: str, result: Any = None) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            calls.append((name, *words, *named.values()))
            return result

        return call

    groups = {name: SimpleNamespace(async_run_method_batch=noted(name, [])) for name in ("policy", "critic")}
    trainer.args.train.dynamic_batch_enable = False
    trainer.args.rollout = SimpleNamespace(batch_size=4, n_samples_per_prompt=8)
    trainer.args.critic = SimpleNamespace(freezing_steps=frozen)
    meds = MedsSettings(run_dir="x", policy=PolicySettings(minibatches="responses"))
    trainer._context = replace(trainer._context, meds=meds)
    trainer.__dict__.update(
        actor_model_group=groups["policy"], critic_model_group=groups["critic"],
        experience_maker=SimpleNamespace(make_step=noted("make", result)),
        ppo_train=noted("train", {"policy_loss": 0.5, "kl": 0.1}), broadcast_to_vllm=noted("weights"),
        kl_ctl=SimpleNamespace(update=noted("kl")),
        _compute_rollout_stats=lambda experiences: {"reward": float(len(experiences))},
    )  # fmt: skip
    status, finished = trainer.train_step("samples", 4)
    appended = [(role, "append", result.experiences) for role in trained]
    assert calls == [("make", "samples", 5), *appended, ("train", 4), ("weights",), ("kl", 0.1, 32)]
    times = {name: status.pop(f"timing/{name}") for name in ("make_experience", "ppo_train", "broadcast")}
    assert min(times.values()) >= 0
    assert status == {"policy_loss": 0.5, "kl": 0.1, "meds/rows": 7.0, "reward": 1.0}
    assert finished == 5


def write_to_a_full_disk() -> None:
    """As a rank of the policy does, in a process of its own."""
    try:
        torch.save(torch.zeros(100_000), "/dev/full")
    except RuntimeError as error:
        raise ray.exceptions.RayTaskError("save_checkpoint", str(error), error) from error


def test_a_full_disk_is_named_and_the_checkpoint_is_not_complete(trainer: Trainer) -> None:
    saving = trainer._saving(True, "global_step2", 2, {})
    with pytest.raises(OSError, match="checkpoint global_step2 could not be written; is the disk full") as full, saving:
        write_to_a_full_disk()
    assert full.value.errno == errno.ENOSPC
    assert not trainer._context.paths.complete.exists()


def test_another_error_stays_what_it_is(trainer: Trainer) -> None:
    with pytest.raises(ray.exceptions.RayTaskError), trainer._saving(True, "global_step2", 2, {}):
        raise ray.exceptions.RayTaskError("save_checkpoint", "no such rank", ValueError("no such rank"))
