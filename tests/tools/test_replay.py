"""Replay: the same answers as the reference algorithm written plainly, and as the run itself gave."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hdbscan
import numpy as np
import pyarrow as pa
import pytest
from sklearn.neighbors import NearestNeighbors

from meds_openrlhf.config import ConfigError, MedsSettings, MemorySettings, PenaltySettings
from meds_openrlhf.config.method import PRESETS
from meds_openrlhf.config.schema import FeatureSettings
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.tools.replay import ReplaySummary, read_recording, recording_of, replay
from tests.memory.written import LAYERS, SETTINGS, WrittenMemory, stream


def settings_with(preset: str = "paper", layers: str = "last-half", **memory: object) -> MedsSettings:
    sections = {"features": FeatureSettings(layers=layers), "penalty": PenaltySettings(alpha=0.07, beta=0.15)}
    return MedsSettings(run_dir=".", memory=MemorySettings(preset=preset, **memory), **sections)


def mixed_table(steps: int) -> pa.Table:
    """Right and wrong rollouts of a few kinds, some word for word the same, some without an answer."""
    generator, batches = np.random.default_rng(0), stream(steps, prompts=4, per_step=2, rollouts=8)
    rows = pa.Table.from_batches(batches)
    logits = [None if generator.random() < 0.15 else row for row in rows.column("layer_logits").to_pylist()]
    columns = {
        "step": pa.array(np.repeat(10 + 2 * np.arange(steps), [*map(len, batches)]), pa.int32()),
        "prompt_key": rows.column("prompt"),
        "correct": generator.random(len(rows)) < 0.3,
        "layer_logits": pa.array(logits, pa.list_(pa.float32(), LAYERS)),
    }
    return pa.table(columns)


def write_stream(path: Path, table: pa.Table, rows_per_batch: int = 7, form: Callable = pa.ipc.new_file) -> Path:
    """As an Arrow file, its batches not those of the steps."""
    with pa.OSFile(str(path), "wb") as sink, form(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return path


def replayed(source: Path, settings: MedsSettings) -> tuple[pa.Table, ReplaySummary]:
    target = source.with_name("replayed.arrow")
    summary = replay(read_recording(source), settings, target)
    return pa.ipc.open_file(target.read_bytes()).read_all(), summary


class Reference:
    """The reference algorithm, written plainly: no code of the package, one vector at a time; of a prompt and verdict.

    Its settings are those of the preset "reference".
    """

    def __init__(self) -> None:
        self.vectors: list[np.ndarray] = []
        self.labels: list[int] = []

    def visit(self, logits: list[list[float]]) -> list[tuple[int | None, int, float]]:
        """Label (None on a first visit), size and penalty of new rows, which are then added and clustered."""
        vectors = [np.array(row[LAYERS // 2 :]) / np.linalg.norm(row[LAYERS // 2 :]) for row in logits]
        labels = [self.label_of(vector) if self.labels else None for vector in vectors]
        sizes = [self.labels.count(label) for label in labels]
        self.vectors += vectors
        self.labels = [-1]
        if len(self.vectors) > 1:
            model = hdbscan.HDBSCAN(min_cluster_size=2, min_samples=1).fit(np.array(self.vectors))
            self.labels = model.labels_.tolist()
        return [(label, size, min(0.07 * np.log(size + 1), 0.15)) for label, size in zip(labels, sizes)]

    def label_of(self, vector: np.ndarray) -> int:
        model = NearestNeighbors(n_neighbors=min(3, len(self.vectors)), metric="cosine").fit(np.array(self.vectors))
        votes = [self.labels[index] for index in model.kneighbors(vector[None])[1][0]]
        most = max(votes.count(label) for label in votes)
        return min(label for label in votes if votes.count(label) == most)


def by_reference(table: pa.Table, remember: str) -> list[tuple[int | None, int, float]]:
    """Label, size and penalty of every row, by the last half of the layers."""
    groups, rows = defaultdict[tuple[str, bool], Reference](Reference), table.to_pylist()
    visits = defaultdict[tuple[int, str, bool], list[int]](list)
    answers: list[tuple[int | None, int, float]] = [(None, 0, 0.0)] * len(rows)
    for number, row in enumerate(rows):
        if (remember == "both" or row["correct"] == (remember == "right")) and row["layer_logits"] is not None:
            visits[row["step"], row["prompt_key"], row["correct"]].append(number)
    for (_, *group), numbers in visits.items():
        found = groups[tuple(group)].visit([rows[number]["layer_logits"] for number in numbers])
        for number, answer in zip(numbers, found):
            answers[number] = answer
    return answers


@pytest.mark.parametrize("remember", ["wrong", "right", "both"])
def test_every_row_is_what_the_reference_algorithm_says(tmp_path: Path, remember: str) -> None:
    table = mixed_table(12)
    out, summary = replayed(write_stream(tmp_path / "in.arrow", table), settings_with("reference", remember=remember))
    expected = by_reference(table, remember)
    assert out.column("label").to_pylist() == [label for label, _, _ in expected]
    assert out.column("cluster_size").to_pylist() == [size for _, size, _ in expected]
    np.testing.assert_allclose(out.column("penalty").to_numpy(), [penalty for *_, penalty in expected], rtol=1e-6)
    assert out.select(table.column_names).equals(table)
    assert out.schema.field("label").type == out.schema.field("cluster_size").type == pa.int64()
    assert out.schema.field("penalty").type == pa.float32()
    assert summary.rows == len(table)
    assert summary.assigned == sum(label is not None for label, _, _ in expected) > 15
    assert summary.penalized == sum(size > 0 for _, size, _ in expected) > 10
    assert summary.penalty == pytest.approx(sum(penalty for *_, penalty in expected))


@pytest.mark.parametrize(("preset", "own"), [("paper", {}), ("robust", {"layers": "all", "difference": "before"})])
def test_a_run_and_a_stream_of_its_rows_give_what_the_run_gave(tmp_path: Path, preset: str, own: dict) -> None:
    """Also where its features are others than the default."""
    transform = FeatureTransform(**own)
    memory = WrittenMemory(tmp_path / "memory", settings=replace(SETTINGS, transform=transform, method=PRESETS[preset]))
    memory.observe(*stream(8))
    memory.stop()
    stored = open_memory(tmp_path / "memory")
    log = pa.Table.from_batches([rows for _, rows in stored.rows_by_step()])
    settings = replace(settings_with(preset), features=FeatureSettings(**own))
    replay(recording_of(stored), settings, tmp_path / "run.arrow")
    from_run = pa.ipc.open_file((tmp_path / "run.arrow").read_bytes()).read_all()
    columns = log.rename_columns(["prompt_key" if name == "prompt" else name for name in log.column_names])
    from_stream, _ = replayed(write_stream(tmp_path / "in.arrow", columns), settings)
    for name in ("label", "cluster_size"):
        assert from_run.column(name).to_pylist() == log.column(name).to_pylist()
        assert from_stream.column(name).to_pylist() == log.column(name).to_pylist()
    assert from_run.column("penalty").equals(from_stream.column("penalty"))
    assert from_run.column("prompt_key").to_pylist() == log.column("prompt").to_pylist()
    assert max(log.column("cluster_size").to_pylist()) > 2


def test_settings_change_what_comes_out(tmp_path: Path) -> None:
    source = write_stream(tmp_path / "in.arrow", mixed_table(12))
    base, _ = replayed(source, settings_with("robust"))
    for words in ({"preset": "paper"}, {"layers": "all"}, {"min_cluster_size": 4}):
        other, _ = replayed(source, settings_with(**{"preset": "robust", **words}))
        assert other.column("cluster_size") != base.column("cluster_size")
    weaker, _ = replayed(source, replace(settings_with("robust"), penalty=PenaltySettings(alpha=0.035, beta=0.075)))
    np.testing.assert_allclose(weaker.column("penalty").to_numpy() * 2, base.column("penalty").to_numpy(), rtol=1e-6)
    with pytest.raises(ConfigError, match=r"meds.features.layers=9: selects 9 of 8 layers. It must select 1 to 8"):
        replayed(source, replace(settings_with(), features=FeatureSettings(layers=LAYERS + 1)))


def test_features_that_are_not_finite_count_as_none_and_are_counted(tmp_path: Path) -> None:
    table = mixed_table(6)
    rows = table.column("layer_logits").to_pylist()
    first, second = [i for i, row in enumerate(rows) if row is not None][20:22]
    results = []
    for values in ([float("nan")] * LAYERS, [0.0] * (LAYERS - 1) + [float("inf")]), (None, None):
        rows[first], rows[second] = values
        changed = table.set_column(3, "layer_logits", pa.array(rows, pa.list_(pa.float32(), LAYERS)))
        results.append(replayed(write_stream(tmp_path / "in.arrow", changed), settings_with("robust")))
    (found, broken), (expected, sound) = results
    assert (broken.broken, sound.broken) == (2, 0)
    assert found.column("label").equals(expected.column("label"))


WIDE = [pa.int64(), pa.large_string(), pa.bool_(), pa.large_list(pa.float64())]


@pytest.mark.parametrize("form", ["stream", "wide types", "dictionary", "null layers"])
def test_other_ways_to_write_the_same_rows(tmp_path: Path, form: str) -> None:
    table = other = mixed_table(8)
    expected, _ = replayed(write_stream(tmp_path / "in.arrow", table), settings_with("robust"))
    if form == "wide types":
        other = pa.table([column.cast(wide) for column, wide in zip(table.columns, WIDE)], names=table.column_names)
    if form == "dictionary":
        other = table.set_column(1, "prompt_key", table.column("prompt_key").dictionary_encode())
    if form == "null layers":  # the first batch has no row with logits at all
        head = table.slice(0, 3).set_column(3, "layer_logits", pa.nulls(3, table.schema.field(3).type))
        other = pa.concat_tables([head.set_column(0, "step", pa.array([1, 1, 1], pa.int32())), table])
    path = write_stream(tmp_path / "other.arrow", other, 3, pa.ipc.new_stream if form == "stream" else pa.ipc.new_file)
    found, _ = replayed(path, settings_with("robust"))
    for name in ("label", "cluster_size", "penalty"):
        assert found.column(name).to_pylist()[-len(table) :] == expected.column(name).to_pylist()


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("correct", None, "needs one column correct"),
        ("step", [*range(23), 3], r"step 3 follows step 22. Sort the rows by step"),
        ("step", [None, *range(23)], "the column step is null in some rows"),
        ("prompt_key", [None] * 24, "prompt_key"),
        ("correct", [1] * 24, "the column correct has type int64, and must be bool"),
        ("layer_logits", [1.0] * 24, r"the column layer_logits has type double, and must be fixed_size_list<float32>"),
        ("layer_logits", [[1.0], [1.0, 2.0]] * 12, "some rows have 1 layers and others 2"),
    ],
)
def test_rows_that_make_no_sense_are_refused(tmp_path: Path, column: str, values: list | None, message: str) -> None:
    table = mixed_table(3).slice(0, 24).drop_columns([column])
    if values is not None:
        table = table.append_column(column, pa.array(values))
    source = write_stream(tmp_path / "in.arrow", table, 100)
    with pytest.raises(ConfigError, match=message):
        replayed(source, settings_with())
    assert [path.name for path in tmp_path.iterdir()] == ["in.arrow"]


def test_what_is_no_arrow_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.arrow").write_text("step,prompt_key\n1,a\n")
    with pytest.raises(ConfigError, match=r"in\.arrow: cannot be read as Arrow"):
        replayed(tmp_path / "in.arrow", settings_with())
    with pytest.raises(ConfigError, match=r"none\.arrow: cannot be read as Arrow"):
        replayed(tmp_path / "none.arrow", settings_with())
    path = write_stream(tmp_path / "cut.arrow", mixed_table(2))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ConfigError, match=r"cut\.arrow: cannot be read as Arrow"):
        replayed(path, settings_with())
