"""The atlas of small runs: clusters, their facts, examples and heatmaps."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.memory.snapshot import read_format, write_format
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report.atlas import Atlas, Limits, read_atlas, tables_of
from meds_openrlhf.report.details import details_of
from tests.report.stored_runs import RUN, Rollout, write_config, write_log, write_memory, write_run


def atlas_of(paths: RunPaths, **limits: int) -> Atlas:
    atlas = read_atlas(paths, Limits(**limits))
    assert atlas is not None
    return atlas


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return write_run(tmp_path / "run")


def test_clusters_are_of_all_rows_of_a_prompt_with_their_steps(run: RunPaths) -> None:
    tables = tables_of(atlas_of(run))
    assert tables["clusters"] == {
        "prompt": [0, 0, 1],
        "label": [0, 1, 0],
        "right": [0, 0, 0],
        "size": [4, 2, 2],
        "share": [0.6667, 0.3333, 0.5],
        "first": [1, 1, 2],
        "last": [3, 1, 2],
        "since": [0, 1, 0],
    }
    assert tables["totals"] == {
        "prompts": 2, "rows": 10, "clusters": 3, "noise": 2, "rollouts": 14, "texts": 11,
    }  # fmt: skip
    assert tables["basis"] == "clustered by the run's settings (preset robust)"
    assert tables["compared"] == [2, 3]


def test_prompts_have_their_rows_answers_and_visits(run: RunPaths) -> None:
    prompts = tables_of(atlas_of(run))["prompts"]
    assert prompts["key"] == ["a", "b"]
    assert prompts["text"] == ["What is a?", "What is b?"]
    assert prompts["right"] == ["7", None]
    assert prompts["visit"] == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0]]
    assert prompts["labels"] == [[0, 0, 1, 1, 0, 0], [0, 0, -1, -1]]
    of_a = [prompts["answers"][0][code] for code in prompts["answer"][0]]
    assert of_a == ["12", "12", "20", "21", "12", "13"]
    assert prompts["seen"] == [[[1, 3], [6, 4], [1, 2]], [[2], [4], [0]]]


def test_a_visit_without_wrong_rollouts_is_what_a_cluster_dies_of(run: RunPaths) -> None:
    write_log(run, [*RUN, [Rollout("a", None, "7", correct=True)]])
    tables = tables_of(atlas_of(run))
    assert tables["clusters"]["since"] == [1, 2, 0]
    assert tables["prompts"]["seen"][0] == [[1, 3, 4], [6, 4, 1], [1, 2, 1]]


def test_examples_are_different_texts_with_the_answer_marked(run: RunPaths) -> None:
    details = details_of(atlas_of(run))
    biggest = details[0]["clusters"][0]
    assert [(one["s"], one["i"]) for one in biggest["examples"]] == [(1, 0), (1, 1), (3, 1)]  # 3, 0 has no text
    assert biggest["examples"][2]["p"] == [(0, "other \\boxed{"), (1, "13"), (0, "}")]
    assert [one["p"][0] for one in details[0]["right"]] == [(0, "right again \\boxed{")]
    assert details[1]["right"] == []


def test_heatmaps_hold_members_and_their_nearest_neighbors(run: RunPaths) -> None:
    atlas = atlas_of(run, heatmap_rows=3)
    details = details_of(atlas)
    heatmap = details[0]["clusters"][1]["heatmap"]
    assert heatmap["m"] == [2, 3]
    assert len(heatmap["o"]) == 3
    assert set(heatmap["o"]) <= {0, 1, 4, 5}
    stored = atlas.rows.logits(0).logits[[*heatmap["m"], *heatmap["o"]]]
    assert heatmap["lo"] == pytest.approx(stored.min(axis=0).tolist(), rel=1e-4)
    assert heatmap["hi"] == pytest.approx(stored.max(axis=0).tolist(), rel=1e-4)


def test_values_of_a_function_are_not_shown_as_layer_logits(run: RunPaths) -> None:
    held = read_format(run.memory)
    assert held is not None
    assert atlas_of(run).rows.logits is not None
    write_format(run.memory, replace(held, model={**held.model, "function": "0123abcd"}))
    atlas = atlas_of(run)
    assert atlas.rows.logits is None
    assert "heatmap" not in json.dumps(details_of(atlas))


def test_limits_keep_the_biggest(run: RunPaths) -> None:
    atlas = atlas_of(run, prompts=1, detailed_clusters=1)
    tables = tables_of(atlas)
    assert tables["prompts"]["key"] == ["a"]
    assert tables["clusters"]["size"] == [4, 2]
    assert tables["totals"]["clusters"] == 3
    details = details_of(atlas)
    assert list(details) == [0]
    assert list(details[0]["clusters"]) == [0]
    assert tables_of(atlas_of(run, rows=9))["prompts"]["key"] == ["a"]
    assert tables_of(atlas_of(run, rows=10))["prompts"]["key"] == ["a", "b"]


def test_right_rollouts_that_are_remembered_have_clusters_of_their_own(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    write_config(paths, remember="both")
    right = [Rollout("a", 1, "7", correct=True)] * 5
    write_memory(paths, [[*RUN[0], *right]])
    clusters = tables_of(atlas_of(paths))["clusters"]
    assert (clusters["label"], clusters["right"], clusters["size"]) == ([2, 0, 1], [1, 0, 0], [5, 2, 2])
    assert clusters["share"] == [1.0, 0.5, 0.5]
    assert tables_of(atlas_of(paths))["prompts"]["first_right"] == [4]


def test_rows_that_are_answers_have_no_heatmap(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    write_config(paths, preset="answers")
    write_memory(paths, RUN, preset="answers")
    details = details_of(atlas_of(paths))
    assert details[0]["clusters"][0] == {"examples": []}


def test_a_memory_whose_rewriting_was_interrupted_is_read(run: RunPaths) -> None:
    whole = tables_of(atlas_of(run))
    run.memory.root.rename(run.memory.before.root)
    run.memory.root.mkdir()
    assert tables_of(atlas_of(run)) == whole


def test_without_a_memory_equal_answers_are_put_together(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    paths.root.mkdir()
    write_log(paths, [[Rollout("a", None, answer) for answer in ("1/2", "0.5", "4", "\\frac 1 3", "0.50")], RUN[1]])
    tables = tables_of(atlas_of(paths))
    assert tables["clusters"]["size"] == [3, 2]
    assert tables["prompts"]["labels"] == [[0, 0, -1, -1, 0], [0, 0, -1, -1]]
    assert tables["basis"] == "the run has no memory; equal wrong answers are grouped"


def test_a_run_without_rows_has_no_atlas(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    write_config(paths)
    assert read_atlas(paths) is None
    write_memory(paths, [])
    assert read_atlas(paths) is None


def test_a_log_file_that_vanishes_is_no_error(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunPaths, "rollout_steps", lambda self: [1, 2, 3, 4])  # 4 was there a moment ago
    tables = tables_of(atlas_of(run))
    assert tables["totals"]["rows"] == 10
    assert tables["totals"]["rollouts"] == 14


def test_a_damaged_log_file_is_named(run: RunPaths) -> None:
    whole = bytearray(run.rollouts(2).read_bytes())
    whole[-40] ^= 255  # in the footer
    for content in (b"no arrow", bytes(whole)):
        run.rollouts(2).write_bytes(content)
        with pytest.raises(ConfigError, match=r"000002\.arrow: cannot be read as Arrow"):
            atlas_of(run)
