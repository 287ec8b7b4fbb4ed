"""One shard, driven directly: what it answers, when, and what is left after it dies."""

import itertools
import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from meds_openrlhf.config.method import PRESETS, ClusteringMethod, make_method
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory import shard as shard_module
from meds_openrlhf.memory.clustering import cluster_sets
from meds_openrlhf.memory.log import LogState
from meds_openrlhf.memory.rows import layer_logits_of, make_rows
from meds_openrlhf.memory.sets import UNASSIGNED
from meds_openrlhf.memory.shard import History, MemoryShard, ShardSettings, ShardStats
from tests.failing import failing
from tests.memory.written import (
    LAYERS,
    SETTINGS,
    answered,
    answered_by_one,
    counts_of,
    files_of,
    make_shard,
    run,
    stream,
)


def crash(shard: MemoryShard) -> None:
    """What a killed process leaves: nothing handed over, the folder free."""
    shard._log._lock.close()


def test_joint_assignment_clusters_rows_with_the_stored_ones(tmp_path: Path) -> None:
    """The loop written out plainly, without a log, caches or incremental state; test_replay.py has that of knn."""
    method, batches = make_method("robust", assignment="joint"), stream(9)
    answers = run(make_shard(tmp_path, replace(SETTINGS, method=method)), batches)
    history: dict[str, np.ndarray] = {}
    penalized = 0
    for rows, answer in zip(batches, answers):
        features, prompts = SETTINGS.transform(layer_logits_of(rows)), np.array(rows.column("prompt").to_pylist())
        for prompt in set(prompts):
            indices = np.flatnonzero(prompts == prompt)
            stored = history.get(prompt, np.empty((0, features.shape[1])))
            history[prompt] = np.concatenate([stored, features[indices]])
            clusters = cluster_sets(history[prompt], np.array([0, len(history[prompt])]), method)
            sizes = [(clusters == label).sum() if label >= 0 else 0 for label in clusters]
            labels, sizes = clusters[len(stored) :].tolist(), sizes[len(stored) :]
            if len(stored) == 0:  # a first visit
                labels, sizes = [UNASSIGNED] * len(indices), [0] * len(indices)
            assert (answer.label[indices].tolist(), answer.size[indices].tolist()) == (labels, sizes)
            penalized += np.count_nonzero(sizes)
    assert penalized > 10  # the stream does exercise clusters
    assert answers[-1].stats.rows == sum(map(len, batches))


def test_a_shard_of_answers_counts_how_often_one_was_given_before(tmp_path: Path) -> None:
    settings = ShardSettings(2, FeatureTransform("all", "none", "none"), PRESETS["answers"])
    batches = [
        make_rows(range(len(given)), ["p"] * len(given), [False] * len(given), np.float32([[x, x] for x in given]))
        for given in ([7, 7, 8], [7, 8, 9], [7, 7])
    ]
    answers = run(make_shard(tmp_path, settings), batches)
    assert [answer.size.tolist() for answer in answers] == [[0, 0, 0], [2, 1, 0], [3, 3]]


@pytest.mark.parametrize("normalize", ["l2", "none"])
def test_when_clustering_runs_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, normalize: str) -> None:
    """Clustered at once, never before it is needed, or slowly beside the next steps: the same answers."""
    settings = replace(SETTINGS, transform=FeatureTransform(normalize=normalize))
    batches = stream(12, prompts=4, per_step=3)
    at_once = [answered(answer) for answer in run(make_shard(tmp_path / "at once", settings), batches)]
    late = make_shard(tmp_path / "late", settings)
    assert [answered(late.observe(step, rows, counts_of(rows))) for step, rows in enumerate(batches, 1)] == at_once

    real, asking = shard_module.cluster_sets, threading.current_thread()

    def slow(*arguments: object) -> np.ndarray:
        if threading.current_thread() is not asking:
            time.sleep(0.02)
        return real(*arguments)

    monkeypatch.setattr(shard_module, "cluster_sets", slow)
    monkeypatch.setattr(shard_module, "GROUPS_AT_ONCE", 1)
    beside = make_shard(tmp_path / "beside", settings)
    answers, threads = [], []
    for step, rows in enumerate(batches, 1):
        answers.append(answered(beside.observe(step, rows, counts_of(rows))))
        threads.append(threading.Thread(target=beside.recluster))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert answers == at_once
    late.recluster()
    assert beside.stats() == late.stats()


def test_only_prompts_that_are_asked_about_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = make_shard(tmp_path)
    shard.recluster()  # nothing was asked before
    shard.observe(1, stream(1, prompts=8, per_step=8)[0])
    clustered = []
    real = shard_module.cluster_sets
    monkeypatch.setattr(
        shard_module, "cluster_sets", lambda f, offsets, s: clustered.append(len(offsets) - 1) or real(f, offsets, s)
    )
    few = make_rows([0, 1], ["prompt-2", "prompt-5"], [False] * 2, np.ones((2, LAYERS), np.float32))
    assert min(shard.observe(2, few).seconds.values()) > 0
    assert shard.observe(2, few).seconds == {"wait": 0, "assign": 0, "append": 0}  # asked again
    assert clustered == [2]
    shard.recluster()
    shard.observe(3, few)
    assert clustered == [2, 8, 0]


def test_rows_that_could_not_be_stored_are_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the shard as it was, on disk and in memory."""
    shard, batches = make_shard(tmp_path / "fails"), stream(4)
    answers = run(shard, batches[:2])
    before = shard.stats()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match=r"shard-0000: the rows of step 3 could not be written \(No space .* stored"):
            shard.observe(3, batches[2])
    assert shard.stats() == before
    assert len(files_of(tmp_path / "fails")) == 2
    answers += run(shard, batches[2:], first=3)
    sound = run(make_shard(tmp_path / "sound"), batches)
    assert [answered(answer) for answer in answers] == [answered(answer) for answer in sound]


def test_a_step_that_was_passed_over_and_rows_of_another_model_are_refused(tmp_path: Path) -> None:
    shard, batches = make_shard(tmp_path), stream(2)
    shard.observe(4, batches[0])
    with pytest.raises(ValueError, match="step=3: must not be below 4"):
        shard.observe(3, batches[1])
    with pytest.raises(ValueError, match="rows: columns"):
        shard.observe(5, make_rows([0], ["p"], [False], np.ones((1, LAYERS + 1), np.float32)))


def test_a_step_without_rows_leaves_no_batch(tmp_path: Path) -> None:
    shard = make_shard(tmp_path)
    assert shard.stats() == ShardStats()
    empty = make_rows([], [], [], np.empty((0, LAYERS), dtype=np.float32))
    assert len(shard.observe(1, empty).label) == 0
    assert shard.snapshot() == LogState(-1, {"shard-0000": 0}, {"shard-0000": 0})
    assert shard.observe(2, stream(1)[0]).stats.prompts == 4
    assert len(shard.observe(1, empty).label) == 0


def test_a_clustering_that_ends_after_a_restore_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = stream(6)
    shard = make_shard(tmp_path / "restored")
    run(shard, batches[:3])
    state = shard.snapshot()
    for step, rows in enumerate(batches[3:], 4):
        shard.observe(step, rows)
    restored = []

    def restore_meanwhile(features: np.ndarray, offsets: np.ndarray, method: ClusteringMethod) -> np.ndarray:
        if restored:
            return cluster_sets(features, offsets, method)
        shard.restore(state)
        restored.append(shard.stats().rows)
        return np.zeros(len(features), np.int32)  # everything one cluster, which it is not

    with monkeypatch.context() as patch:
        patch.setattr(shard_module, "cluster_sets", restore_meanwhile)
        shard.recluster()
    assert restored == [sum(map(len, batches[:3]))]
    expected = make_shard(tmp_path / "undisturbed")
    run(expected, batches[:3])
    expected.snapshot()
    for prompt in {key for rows in batches for key in rows.column("prompt").to_pylist()}:
        assert shard.labels(prompt).tolist() == expected.labels(prompt).tolist()
    assert shard.stats() == expected.stats()
    assert expected.stats().stale == 0
    assert expected.stats().clusters > 3


def test_whatever_is_asked_first_a_new_process_has_read_the_log(tmp_path: Path) -> None:
    batches = stream(4)
    shard = make_shard(tmp_path)
    run(shard, batches)
    prompt = batches[0].column("prompt")[0].as_py()
    questions = (
        lambda one: one.stats().rows,
        lambda one: one.observe(4, batches[3], counts_of(batches[3])).moments.count,
        lambda one: one.observe(4, batches[3], counts_of(batches[3])).moments.scatter.round(6).tolist(),
        lambda one: answered(one.observe(2, batches[1], counts_of(batches[1]))),
        lambda one: one.labels(prompt).tolist(),
        lambda one: one.snapshot(),
    )
    expected = [question(shard) for question in questions]
    assert expected[:2] == [sum(map(len, batches))] * 2
    crash(shard)
    for question, answer in zip(questions, expected):
        fresh = make_shard(tmp_path)
        assert question(fresh) == answer
        fresh.close()


def add_visit(history: History, prompt: str, count: int) -> None:
    """A visit of ``count`` rows."""
    history.add([((prompt, False), count)], np.zeros((count, 1)))


@pytest.mark.parametrize("clustered_since", [True, False])
def test_a_clustering_of_fewer_rows_than_there_are_now_is_dropped(clustered_since: bool) -> None:
    """Selected, then rows came, and were clustered or not; the older clustering arrives after that."""
    history = History(1)
    add_visit(history, "a", 2)
    add_visit(history, "b", 2)
    groups = history.find([("a", False), ("b", False)])
    early = history.select(groups)
    add_visit(history, "a", 1)
    if clustered_since:
        history.set_labels(history.select(groups[:1]), np.array([0, 0, 1], np.int32))
    history.set_labels(early, np.array([-1, -1, 0, 0], np.int32))
    assert list(history.stale) == ([] if clustered_since else groups[:1])
    assert history.labels.tolist() == ([0, 0, 0, 0, 1] if clustered_since else [-2, -2, 0, 0, -2])
    assert history.clusters == (3 if clustered_since else 1)


# ── a writer that is killed at every call that makes rows durable, and at every removal of a merged file ──

STEPS, CHECKPOINT = 6, 4


def die_at(call: int) -> None:
    """Kill this process before one of its calls; if that is the sync of a file, with a half of the bytes written."""
    calls = itertools.count(1)

    def deadly(real: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **options: object) -> object:
            if next(calls) < call:
                return real(*arguments, **options)
            if real is fsync and stat.S_ISREG(os.fstat(arguments[0]).st_mode):
                os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        return called

    fsync = os.fsync
    for name in ("fsync", "replace", "unlink"):
        setattr(os, name, deadly(getattr(os, name)))


def run_until_killed(root: Path, batches: list[pa.RecordBatch], call: int) -> int:
    """Some steps and a checkpoint in a process of its own that dies at its ``call``; the last acknowledged step."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        shard = make_shard(root)
        die_at(call)
        for step in range(1, STEPS + 1):
            shard.observe(step, batches[step - 1], counts_of(batches[step - 1]))
            os.write(writable, b".")
            if step == CHECKPOINT:
                shard.snapshot()
        os._exit(0)
    os.close(writable)
    os.waitpid(child, 0)
    acknowledged = len(os.read(readable, 100))
    os.close(readable)
    return acknowledged


def test_what_was_acknowledged_is_there_once_and_right(tmp_path: Path) -> None:
    batches = stream(8, seed=3)
    expected = answered_by_one(tmp_path / "model", batches)
    rows_until = np.cumsum([0, *map(len, batches)]).tolist()
    visits_until = np.cumsum([0, *(len(counts_of(rows)) for rows in batches)]).tolist()
    acknowledged, call = 0, 0
    while acknowledged < STEPS:
        call += 1
        root = tmp_path / str(call)
        acknowledged = run_until_killed(root, batches, call)
        shard = make_shard(root)
        assert shard.stats().rows in rows_until[acknowledged : acknowledged + 2]  # one step may be there unheard of
        if acknowledged:
            rows = batches[acknowledged - 1]
            assert answered(shard.observe(acknowledged, rows, counts_of(rows))) == expected[acknowledged - 1]
        first = min(acknowledged, 2)  # back into what a merge may have been interrupted in
        shard.restore(LogState(first, {"shard-0000": rows_until[first]}, {"shard-0000": visits_until[first]}))
        for step in range(first + 1, 9):
            rows = batches[step - 1]
            assert answered(shard.observe(step, rows, counts_of(rows))) == expected[step - 1]
        assert (shard.stats().rows, shard.stats().visits) == (rows_until[8], visits_until[8])
        shard.close()
    assert call > 20
