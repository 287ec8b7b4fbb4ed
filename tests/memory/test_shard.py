"""One shard, driven directly: what it answers, when, and what is left after it dies."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from meds_openrlhf.memory.clustering import Clustering, assign, cluster
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.rows import layer_logits_of, make_rows
from meds_openrlhf.memory.shard import MemoryShard, ShardAnswer, ShardSettings, rows_by_prompt
from tests.memory.streams import LAYERS, stream

SETTINGS = ShardSettings(layers=LAYERS)


def run(shard: MemoryShard, batches: list[pa.RecordBatch], first: int = 1) -> list[ShardAnswer]:
    answers = []
    for step, rows in enumerate(batches, start=first):
        answers.append(shard.observe(step, rows))
        shard.recluster()
    return answers


def as_lists(answers: list[ShardAnswer]) -> list[tuple[list[int], list[int], list[int]]]:
    return [(answer.sample.tolist(), answer.label.tolist(), answer.size.tolist()) for answer in answers]


def test_labels_and_sizes_follow_from_the_rows_seen_before(tmp_path: Path) -> None:
    """The method's loop written out plainly, without a log, caches or incremental state."""
    batches = stream(8)
    answers = run(MemoryShard(tmp_path, SETTINGS), batches)
    history: dict[str, np.ndarray] = {}
    penalised = 0
    for rows, answer in zip(batches, answers):
        features = SETTINGS.transform(layer_logits_of(rows))
        for prompt, indices in rows_by_prompt(rows).items():
            stored = history.get(prompt, np.empty((0, features.shape[1])))
            known = cluster(stored, Clustering())
            labels = assign(features[indices], stored, known)
            sizes = [(known == label).sum() if label >= 0 else 0 for label in labels]
            np.testing.assert_array_equal(answer.label[indices], labels)
            np.testing.assert_array_equal(answer.size[indices], sizes)
            history[prompt] = np.concatenate([stored, features[indices]])
            penalised += sum(size > 0 for size in sizes)
    assert penalised > 20  # the stream does exercise clusters
    assert answers[-1].stats.rows == sum(len(rows) for rows in batches)


def test_a_first_visit_is_noise_of_size_zero(tmp_path: Path) -> None:
    answer = MemoryShard(tmp_path, SETTINGS).observe(1, stream(1)[0])
    assert set(answer.label) == {-1}
    assert set(answer.size) == {0}


def test_asked_again_it_answers_the_same_and_stores_nothing(tmp_path: Path) -> None:
    shard, batches = MemoryShard(tmp_path, SETTINGS), stream(5)
    answers = run(shard, batches)
    rows = shard.stats().rows
    for step in (5, 2):  # the latest comes from memory, an older one from the log
        again = shard.observe(step, batches[step - 1])
        assert as_lists([again]) == as_lists([answers[step - 1]])
    assert shard.stats().rows == rows
    assert shard.snapshot()[0].batches == 5


def test_a_step_that_was_passed_over_is_refused(tmp_path: Path) -> None:
    shard, batches = MemoryShard(tmp_path, SETTINGS), stream(2)
    shard.observe(4, batches[0])
    with pytest.raises(ValueError, match="step: 3 comes after step 4 was stored"):
        shard.observe(3, batches[1])


def test_another_process_goes_on_where_a_killed_one_stopped(tmp_path: Path) -> None:
    batches = stream(8)
    unbroken = run(MemoryShard(tmp_path / "a", SETTINGS), batches)
    run(MemoryShard(tmp_path / "b", SETTINGS), batches[:5])
    second = MemoryShard(tmp_path / "b", SETTINGS)  # nothing was closed, no clustering handed over
    assert as_lists([second.observe(5, batches[4])]) == as_lists([unbroken[4]])
    assert as_lists(run(second, batches[5:], first=6)) == as_lists(unbroken[5:])
    assert second.stats().rows == unbroken[-1].stats.rows


def test_restore_cuts_later_rows_away_and_repeats_the_run(tmp_path: Path) -> None:
    batches = stream(8)
    shard = MemoryShard(tmp_path, SETTINGS)
    unbroken = run(shard, batches[:4])
    moment = shard.snapshot()
    unbroken += run(shard, batches[4:], first=5)
    other = MemoryShard(tmp_path, SETTINGS)
    assert other.restore(moment).rows == sum(len(rows) for rows in batches[:4])
    assert as_lists(run(other, batches[4:], first=5)) == as_lists(unbroken[4:])


def test_restore_to_nothing_empties_the_shard(tmp_path: Path) -> None:
    shard = MemoryShard(tmp_path, SETTINGS)
    run(shard, stream(3))
    assert shard.restore([]).rows == 0
    assert not list(tmp_path.glob("*.arrow"))
    assert shard.observe(1, stream(1)[0]).stats.rows > 0


def test_restore_refuses_a_changed_file_and_cuts_nothing(tmp_path: Path) -> None:
    shard = MemoryShard(tmp_path, SETTINGS)
    run(shard, stream(3))
    moment = shard.snapshot()
    path = tmp_path / "000000.arrow"
    content = path.read_bytes()
    path.write_bytes(content[:40] + b"x" + content[41:])
    with pytest.raises(MemoryCorruptionError, match=r"000000\.arrow"):
        MemoryShard(tmp_path, SETTINGS).restore(moment)
    assert path.stat().st_size == len(content)


def test_a_step_without_rows_leaves_no_batch(tmp_path: Path) -> None:
    shard = MemoryShard(tmp_path, SETTINGS)
    empty = make_rows([], [], [], np.empty((0, LAYERS), dtype=np.float32))
    answer = shard.observe(1, empty)
    assert len(answer.label) == 0
    assert shard.snapshot() == []
    assert shard.observe(2, stream(1)[0]).stats.prompts == 4


def test_statistics_count_clusters_and_noise(tmp_path: Path) -> None:
    shard = MemoryShard(tmp_path, SETTINGS)
    run(shard, stream(8))
    labels = [shard.labels(f"prompt-{i}") for i in range(6)]
    stats = shard.stats()
    assert stats.prompts == 6
    assert stats.noise == sum((one == -1).sum() for one in labels)
    assert stats.clusters == sum(one.max() + 1 for one in labels) > 0
    assert stats.bytes == sum(path.stat().st_size for path in tmp_path.glob("*.arrow"))
