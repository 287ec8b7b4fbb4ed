"""The training half of a run: its steps and checkpoints, with ranks that note and save."""

import errno
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import ray
import torch

from meds_openrlhf.checkpoints import Checkpoint, newest_complete
from meds_openrlhf.config import ConfigError
from meds_openrlhf.config.schema import MedsSettings, PolicySettings
from meds_openrlhf.features.moments import DiversityTracker, Moments
from meds_openrlhf.memory.pool import MemoryPool
from meds_openrlhf.memory.shard import ShardStats
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.step_log import StepLog
from meds_openrlhf.training.control import RunControl, StepReport
from meds_openrlhf.training.step import trainer as trainer_module
from meds_openrlhf.training.step.context import TrainerContext
from meds_openrlhf.training.step.engine_fleet import EngineFleet
from meds_openrlhf.training.step.rollout import Rollouts
from meds_openrlhf.training.step.trainer import NEW_RUN, Trainer, is_due
from tests.training.step.rollouts import RECORDED, arguments

pytestmark = pytest.mark.usefixtures("ray_cluster")


class Ranks:
    """A group of ranks that save a folder per tag, and note what they are asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.calls: list[str] = []
        self.saved_states: dict[str, dict] = {}
        self.loaded: dict = {"global_step": 0}

    def async_run_method(self, method_name: str, **named: Any) -> list[Any]:
        self.calls.append(method_name)
        result = {"get_checkpoint_states": self.loaded, "fit": {"policy_loss": 0.5, "kl": 0.1}}.get(method_name)
        if method_name == "save_checkpoint":
            folder = self._folder / "checkpoints/_actor" / named["tag"]
            folder.mkdir(parents=True)
            (folder / "weights.pt").write_bytes(b"x")
            self.saved_states[named["tag"]] = named["client_states"]
        return [ray.put(result)]

    def async_run_method_batch(self, method_name: str, **named: Any) -> list[Any]:
        self.calls.append(f"{method_name} {named['experience']}")
        return []


class Fleet:
    """Engines that have the weights."""

    usable = ("engine",)

    def take_in_restarted(self) -> bool:
        return False

    def note_sync(self) -> None: ...


class RecordingPool:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.snapshots: list[str] = []
        self.restored: list[str | None] = []
        self.visits = 1

    def snapshot(self, name: str) -> None:
        self.snapshots.append(name)

    def restore(self, name: str | None) -> ShardStats:
        self.restored.append(name)
        return ShardStats(visits=self.visits)

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
    checkpoints = {"ckpt.save_steps": 3, "ckpt.load_enable": True, "ckpt.path": str(tmp_path / "checkpoints")}
    args = arguments(**checkpoints, **{"ckpt.best_metric_key": "pass1", "critic.freezing_steps": -1})
    paths, pool, meds = RunPaths(tmp_path), cast(MemoryPool, RecordingPool()), MedsSettings(run_dir=str(tmp_path))
    context = TrainerContext(meds, paths, Control(paths), pool, feature=RECORDED, recorder=None, first_step=0)
    models, strategy = {"policy": Ranks(tmp_path)}, SimpleNamespace(args=args)
    return Trainer(strategy, models, cast(EngineFleet, Fleet()), SimpleNamespace(pad_token_id=0), context)


def states_of(trainer: Trainer) -> dict[str, dict]:
    saved: dict[str, dict] = trainer.actor_model_group.saved_states
    return saved


def resume_from(trainer: Trainer, state: dict) -> dict:
    trainer.args.ckpt.load_enable = True
    Path(trainer.args.ckpt.path, "_actor").mkdir(parents=True, exist_ok=True)
    trainer.actor_model_group.loaded = state
    return trainer.resume()


def news_of(trainer: Trainer) -> list[Any]:
    return trainer._context.control.mailbox.take_news()


def test_a_checkpoint_names_its_memory_and_is_marked_last(trainer: Trainer) -> None:
    for step in (1, 2, 3):
        logs = {"reward": 0.5, "generated_samples": ["text", 1.0]}
        assert not trainer.finish_step(step, logs, {"episode": 7})
    best = {f"{name}_eval_metric_{what}": None for name, what in (("best", "value"), ("latest", "value"))}
    best |= {"best_eval_metric_key": "pass1", "best_eval_metric_value": float("-inf")}
    expected = {"episode": 7, "global_step": 3, "memory_snapshot": "global_step3", **best}
    assert states_of(trainer) == {"global_step3": expected}
    assert newest_complete(trainer._context.paths) == Checkpoint("global_step3", 3)
    assert news_of(trainer) == [StepReport(step, {"reward": 0.5}) for step in (1, 2, 3)]
    assert [line["step"] for line in StepLog(trainer._context.paths.metrics).read()] == [1, 2, 3]


def test_a_checkpoint_whose_folder_is_not_yet_seen_is_kept(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a shared disk the listing of a folder may lag behind what another node has just written there."""
    trainer.finish_step(3, {}, {})
    monkeypatch.setattr(trainer_module, "saved_tags", lambda _: {"global_step3"})
    trainer.finish_step(6, {}, {})
    assert newest_complete(trainer._context.paths) == Checkpoint("global_step6", 6)
    assert trainer._context.pool.snapshots == ["global_step3", "global_step6"]


def test_a_best_checkpoint_counts_as_the_step_that_it_holds(trainer: Trainer) -> None:
    states = {"memory_snapshot": "global_step3"}
    trainer.finish_evaluation(4, {"pass1": 0.4}, 5, states)  # evaluated after step 4, heard of after step 5
    saved = states_of(trainer)["best_global_step4"]
    assert (saved["global_step"], saved["memory_snapshot"]) == (5, "best_global_step4")
    assert (saved["best_eval_metric_value"], saved["checkpoint_metric_key"]) == (0.4, "pass1")
    assert newest_complete(trainer._context.paths) == Checkpoint("best_global_step4", 5)
    assert states == {"memory_snapshot": "global_step3"}  # the caller's own stay as they were
    trainer.finish_evaluation(8, {"pass1": 0.3}, 8, {})  # not the best
    trainer.finish_evaluation(9, {"other": 0.9}, 9, {})  # not the metric
    assert trainer._context.pool.snapshots == ["best_global_step4"]
    assert newest_complete(trainer._context.paths) == Checkpoint("best_global_step4", 5)
    trainer.finish_step(9, {}, {})
    assert states_of(trainer)["global_step9"]["latest_eval_metric_value"] == 0.3


def test_the_memory_goes_back_to_the_checkpoints_moment_or_to_its_beginning(trainer: Trainer) -> None:
    assert trainer.resume() == NEW_RUN
    state = resume_from(trainer, {"global_step": 3, "memory_snapshot": "global_step3", "best_eval_metric_value": 0.7})
    assert (state["episode"], trainer.best_eval_metric_value) == (0, 0.7)
    assert trainer._context.pool.restored == [None, "global_step3"]
    assert not [news for news in news_of(trainer) if "begin empty" in str(news)]
    trainer._context.pool.visits = 0
    resume_from(trainer, {"global_step": 3, "memory_snapshot": "global_step3"})
    (news,) = news_of(trainer)
    assert news == "the memory of global_step3 was written by a version that counted no successes: they begin empty"
    assert trainer.actor_model_group.calls[-1] == "broadcast_to_vllm"  # the engines loaded other weights
    with pytest.raises(ConfigError, match="was saved without a memory"):
        resume_from(trainer, {"global_step": 3})


def test_a_stop_that_was_asked_for_saves_the_step(trainer: Trainer) -> None:
    assert not trainer.finish_step(1, {}, {})
    trainer._context.control.mailbox.request_stop()
    assert trainer.finish_step(2, {}, {})
    assert newest_complete(trainer._context.paths) == Checkpoint("global_step2", 2)
    assert news_of(trainer) == [StepReport(1, {}), StepReport(2, {})]


def test_a_stop_during_an_evaluation_needs_no_further_step(trainer: Trainer) -> None:
    trainer.finish_step(3, {}, {})
    trainer._context.control.mailbox.request_stop()
    assert trainer.finish_evaluation(3, {"pass1": 0.4}, 3, {})
    assert list(states_of(trainer)) == ["global_step3", "best_global_step3"]  # the step was saved before
    assert trainer.finish_evaluation(4, {"pass1": 0.3}, 4, {})
    assert newest_complete(trainer._context.paths) == Checkpoint("global_step4", 4)


def test_without_deepspeeds_checkpoints_the_ranks_still_export_models(trainer: Trainer) -> None:
    trainer.args.ckpt.disable_ds = True
    trainer._context.control.mailbox.request_stop()
    assert trainer.finish_step(1, {}, {})
    assert trainer.actor_model_group.calls == ["save_checkpoint"]  # with ckpt.save_hf they write something
    assert trainer._context.pool.snapshots == []
    assert "memory_snapshot" not in states_of(trainer)["global_step1"]
    assert newest_complete(trainer._context.paths) is None


def test_the_moments_behind_the_eigen_ratios_are_part_of_a_checkpoint(trainer: Trainer) -> None:
    features = np.array([[0.0, 1.0], [2.0, 1.0], [0.0, 4.0]])
    stored = {"stored": Moments.of(features), "prompts": np.array([0, 0, 1])}
    before = trainer.experience_maker.diversity.add(features, features[:2], **stored)
    trainer.finish_step(3, {}, {})
    trainer.experience_maker.diversity = DiversityTracker(50)
    resume_from(trainer, states_of(trainer)["global_step3"])
    after = trainer.experience_maker.diversity.add(features + 1, features[:0], **stored)
    assert after["meds/eigen_ratio_right_all"] == before["meds/eigen_ratio_right_all"] == 1.0
    assert after["meds/eigen_ratio_window"] != before["meds/eigen_ratio_window"]
    trainer._context.paths.diversity("global_step3").unlink()
    assert newest_complete(trainer._context.paths) is None  # not whole without


@pytest.mark.parametrize(
    ("frozen", "trained"), [(-1, ["policy", "critic"]), (3, ["policy", "critic"]), (4, ["critic"])]
)
def test_a_step_makes_experiences_trains_on_them_and_sends_the_weights(
    trainer: Trainer, tmp_path: Path, frozen: int, trained: list[str]
) -> None:
    """Up to ``critic.freezing_steps`` the policy gets nothing, which it would train on later."""
    result, made = SimpleNamespace(experiences=["of this step"], metrics={"meds/rows": 7.0}), list[Any]()
    trainer.args.critic.freezing_steps, trainer.critic_model_group = frozen, Ranks(tmp_path)
    meds = MedsSettings(run_dir="x", policy=PolicySettings(minibatches="responses"))
    trainer._context = replace(trainer._context, meds=meds)
    trainer.experience_maker = SimpleNamespace(make_step=lambda *words: made.append(words) or result)
    trainer._compute_rollout_stats = lambda experiences: {"reward": float(len(experiences))}
    metrics = trainer.step(Rollouts("samples", tokens=70, extras=2, dropped=[("p", 8, 8)], seconds=0.5), 5)
    assert made == [("samples", 5, 70, 2, [("p", 8, 8)])]
    groups = {"policy": trainer.actor_model_group, "critic": trainer.critic_model_group}
    for role, group in groups.items():
        fit = ["append ['of this step']", "fit"] if role in trained else []
        assert group.calls == [*fit, *(["broadcast_to_vllm"] if role == "policy" else [])]
    times = {name: metrics.pop(name) for name in [*metrics] if name.startswith("timing/")}
    assert times.pop("timing/generation") == 0.5
    assert times.pop("timing/step_total") == pytest.approx(0.5 + sum(times.values()))
    assert metrics == {"policy_loss": 0.5, "kl": 0.1, "meds/rows": 7.0, "reward": 1.0}


def test_what_is_due() -> None:
    assert [step for step in range(1, 7) if is_due(step, 3)] == [3, 6]
    assert not any(is_due(step, every) for step in range(9) for every in (-1, float("inf")) if step)


def write_to_a_full_disk(*_: Any) -> None:
    """As a rank of the policy does, in a process of its own."""
    try:
        torch.save(torch.zeros(100_000), "/dev/full")
    except RuntimeError as error:
        raise ray.exceptions.RayTaskError("save_checkpoint", str(error), error) from error


def fail(*_: Any) -> None:
    raise ray.exceptions.RayTaskError("save_checkpoint", "no such rank", ValueError("no such rank"))


def test_a_full_disk_is_named_and_the_checkpoint_is_not_complete(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "get", write_to_a_full_disk)
    with pytest.raises(OSError, match="checkpoint global_step2 could not be written; is the disk full") as full:
        trainer._save("global_step2", 2, {})
    assert full.value.errno == errno.ENOSPC
    assert not trainer._context.paths.complete.exists()
    monkeypatch.setattr(ray, "get", fail)
    with pytest.raises(ray.exceptions.RayTaskError):
        trainer._save("global_step4", 4, {})
