"""The real W&B client in its offline mode, its files read back."""

import json
import math
import os
from pathlib import Path
from typing import Any

from meds_openrlhf.tracking.sending.follower_process import FollowerProcess
from tests.tracking.sending.wandb_file import axes_of, history_of, read_wandb_file
from tests.tracking.sending.written_run import CONFIG, WrittenRun

KEY = "b7" * 20


def send(run: WrittenRun, **environment: str) -> None:
    """One process, from its start to its end."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    full = {**given, "WANDB_MODE": "offline", "WANDB_API_KEY": KEY, **environment}
    follower = FollowerProcess(run.paths, full)
    assert follower.finish(60, 60) == []
    assert follower.has_sent_everything


def sessions(run: WrittenRun) -> list[list[Any]]:
    """The records of each session, oldest first."""
    files = run.paths.root.glob("wandb/offline-run-*/*.wandb")
    return [read_wandb_file(path) for path in sorted(files, key=lambda path: path.stat().st_mtime)]


def kinds(records: list[Any], kind: str) -> list[Any]:
    return [getattr(record, kind) for record in records if record.WhichOneof("record_type") == kind]


def test_everything_is_there_under_openrlhfs_names_on_one_axis(run: WrittenRun, snapshot: Path) -> None:
    run.paths.config.write_text(CONFIG + f"reward:\n  api_key: very-secret\n  note: {KEY}\n")
    run.step(1, **{"loss": 0.5, "meds/rows": 7})
    run.step(2, loss=float("nan"))
    run.evaluation(2, eval_aime_pass1=0.25)
    run.clusters(2)
    run.clusters(3, answer=None, response=None)
    send(run)
    (records,) = sessions(run)
    history = history_of(records)
    assert [line["_step"] for line in history] == [0, 1, 2, 3, 4]
    assert [line["train/global_step"] for line in history] == [1, 2, 2, 2, 3]
    assert history[0]["train/loss"] == 0.5
    assert history[0]["train/meds/rows"] == 7
    assert math.isnan(history[1]["train/loss"])
    assert history[2]["eval/eval_aime_pass1"] == 0.25
    assert history[2]["eval/global_step"] == 2
    histogram = history[3]["train/meds/cluster_sizes"]
    assert (histogram["bins"], histogram["values"]) == ([1, 2, 4], [5, 7])
    assert [line["train/biggest_clusters"]["nrows"] for line in history[3:]] == [1, 1]
    axes = axes_of(records)
    assert (axes["train/*"], axes["eval/*"]) == ("train/global_step", "train/global_step")
    tables = run.paths.root.glob("wandb/offline-run-*/files/media/table/train/*.json")
    assert sorted((json.loads(table.read_text()) for table in tables), key=lambda one: one["data"]) == [
        {"columns": ["step", "prompt", "label", "size", "members", "answer", "response"], "data": [row]}
        for row in ([2, "9 + 9?", 3, 12, 4, "17", "so 17"], [3, "9 + 9?", 3, 12, 4, None, None])
    ]
    (opened,) = kinds(records, "run")[:1]
    assert (opened.project, opened.display_name) == ("fruit", "my-run")
    assert opened.run_id == run.state()["wandb_id"]
    config = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in opened.config.update}
    assert config["actor"] == {"learning_rate": 1e-6}
    assert config["reward"] == {"api_key": "***", "note": "***"}
    written = [path.read_bytes() for path in run.paths.root.rglob("*") if path.is_file() and path != run.paths.config]
    assert len(written) > 5
    assert not any(KEY.encode() in content or b"very-secret" in content for content in written)


def test_a_snapshot_is_its_manifest_and_where_its_rows_are(run: WrittenRun, snapshot: Path) -> None:
    send(run)
    (records,) = sessions(run)
    (artifact,) = kinds(records, "artifact")
    assert (artifact.type, set(artifact.aliases)) == ("memory", {"latest", "global_step2"})
    assert json.loads(artifact.metadata)["rows"] == 2
    entries = {entry.path: entry for entry in artifact.manifest.contents}
    rows = entries["shard-0000/000001.arrow"]
    assert rows.ref == (run.paths.memory.root / rows.path).as_uri()
    assert (rows.size, rows.digest, rows.local_path) == (5, "0000004d-5", "")
    assert entries["snapshots/global_step2.json"].ref == ""
    send(run)
    assert len(sessions(run)) == 1  # nothing new, nothing opened


def test_a_resumed_run_goes_on_in_the_same_wandb_run_which_the_environment_may_name(run: WrittenRun) -> None:
    for step in (1, 2, 3):
        run.step(step, loss=float(step))
    send(run, WANDB_RUN_ID="mine", WANDB_PROJECT="vegetables", WANDB_NAME="carrot")
    run.resume(1)
    run.step(2, loss=20.0)
    send(run)
    first, second = sessions(run)
    assert [line["train/loss"] for line in history_of(first)] == [1.0, 2.0, 3.0]
    assert [(line["_step"], line["train/loss"]) for line in history_of(second)] == [(3, 20.0)]
    opened = [kinds(records, "run")[0] for records in (first, second)]
    named = [(one.run_id, one.project, one.display_name) for one in opened]
    assert named == [("mine", "vegetables", "carrot"), ("mine", "fruit", "my-run")]
