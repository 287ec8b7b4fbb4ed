"""`meds memory`: what it prints, its exit codes, and whose settings it goes by."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from meds_openrlhf.config import MedsSettings, MemorySettings, RunConfig
from meds_openrlhf.config.method import PRESETS
from meds_openrlhf.memory.rows import prompt_key
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.paths import RunPaths
from tests.cli.conftest import Meds
from tests.memory.written import SETTINGS, WrittenMemory, files_of, stream


def question(number: int) -> str:
    return f"What is\n{number} + {number}? {'x' * 100}"


def by_text(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with the keys of questions, in place of prompt-0 and so on."""
    keys = [prompt_key(question(int(key.removeprefix("prompt-")))) for key in rows.column("prompt").to_pylist()]
    place = rows.schema.get_field_index("prompt")
    return rows.set_column(place, rows.schema.field(place), pa.array(keys, rows.schema.field(place).type))


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A run by the preset robust, its data set at hand; one restart."""
    paths = RunPaths(tmp_path / "run")
    memory = WrittenMemory(paths.memory.root, settings=replace(SETTINGS, method=PRESETS["robust"]))
    batches = [by_text(rows) for rows in stream(6)]
    memory.observe(*batches[:3])
    memory.snapshot()
    memory.start()
    memory.observe(*batches[3:])
    memory.stop()
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"question": question(i)}) + "\n" for i in range(6)) + "no json\n")
    meds = MedsSettings(run_dir=str(paths.root), memory=MemorySettings(preset="robust"))
    flags = {"data.prompt_dataset": str(data), "data.input_key": "question"}
    paths.config.write_text(RunConfig(meds, flags).as_yaml())
    return paths


def read(path: Path) -> pa.Table:
    return pa.ipc.open_file(path.read_bytes()).read_all()


def test_inspect_lists_the_biggest_clusters_and_their_prompt(run: RunPaths, meds: Meds) -> None:
    out = meds.output("memory", "inspect", run.root, "--top", "2").splitlines()
    rows = sum(map(len, stream(6)))
    assert out[:3] == ["prompts    6", f"rows       {rows} ({rows} wrong, 0 right)", "steps      6, from 1 to 6"]
    assert out[4] == "snapshots  global_step3"
    assert "with the preset robust" in out[5]
    assert out[6].startswith("successes  30 visits of ")
    assert out[8].split() == ["size", "share", "steps", "verdict", "prompt"]
    assert len(out) == 11
    number = int(out[9].split(" + ")[0][-1])
    # Without the line that all prompts begin with.
    assert f"{prompt_key(question(number))}  {number} + {number}? xxxx" in out[9]
    assert out[9].endswith("x…")


def test_inspect_for_programs_or_by_other_presets(run: RunPaths, meds: Meds) -> None:
    robust = json.loads(meds.output("memory", "inspect", run.root, "--json"))
    assert robust["biggest"][0]["text"].startswith("What is\n")
    assert robust["wrong"] == sum(map(len, stream(6)))
    paper = json.loads(meds.output("memory", "inspect", run.memory.root, "--json", "--preset", "paper"))
    assert paper["clusters"] != robust["clusters"]
    refusal = meds.refusal("memory", "inspect", run.root, "--preset", "papers")
    assert refusal.startswith("meds.memory.preset=papers: must be ")
    run.memory.root.rename("alone")  # without its run it is clustered as the paper does
    assert "with the preset paper" in meds.output("memory", "inspect", "alone")
    for action, *words in (["inspect"], ["verify"], ["replay", "--out", "x"]):
        assert str(run.root) in meds.refusal("memory", action, run.root, *words)


def test_verify_says_sound_or_what_is_not(run: RunPaths, meds: Meds) -> None:
    rows = sum(map(len, stream(6)))
    assert meds.output("memory", "verify", run.root) == f"{rows} rows, 30 visits, 1 snapshots: sound\n"
    file = files_of(run.memory.root, shard=1)[0]
    content = file.read_bytes()
    file.write_bytes(content[:1200] + bytes([content[1200] ^ 0x55]) + content[1201:])
    code, printed, _ = meds("memory", "verify", run.root)
    assert code == 1
    assert printed.startswith(f"damage: {file}: is damaged (it does not match its checksum); restore it from a ba")
    assert printed.endswith("damaged\n")


def test_replay_is_by_the_runs_settings_unless_told_otherwise(run: RunPaths, meds: Meds) -> None:
    own, other, again = (Path(f"{name}.arrow") for name in ("own", "other", "again"))
    log = pa.Table.from_batches([rows for _, rows in open_memory(run.root).rows_by_step()])
    out = meds.output("memory", "replay", run.root, "--out", own)
    assert f"rows       {len(log)}, of which {len(log)} were remembered" in out
    assert "penalized" in out
    assert read(own).column("label").to_pylist() == log.column("label").to_pylist()
    assert read(own).column("cluster_size").to_pylist() == log.column("cluster_size").to_pylist()
    words = ["--preset", "paper", "--meds.penalty.alpha", "0.5", "--meds.penalty.beta=1", "--meds.features.layers", "2"]
    meds.output("memory", "replay", run.root, "--out", other, *words)
    assert max(read(other).column("penalty").to_pylist()) > 0.2
    assert read(other).column("label") != read(own).column("label")
    # A replay is a stream; without a run it goes by the defaults.
    meds.output("memory", "replay", own, "--out", again, "--meds.memory.preset", "robust")
    assert read(again).equals(read(own))
    refusal = meds.refusal("memory", "replay", own, "--out", own)
    assert "this is the file to replay. Name another file." in refusal
    assert read(again).equals(read(own))
    file = files_of(run.memory.root)[0]
    assert meds.refusal("memory", "replay", run.root, "--out", file).startswith(f"--out={file}: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--meds.penalty.alpha -1", "meds.penalty.alpha=-1: must be a number that is at least 0."),
        ("--meds.memory.shards 3", "meds.memory.shards=3: cannot be changed for recorded rollouts. Change one of m"),
        ("--actor.adam.lr 3", "actor.adam.lr=3: cannot be changed"),
        ("--meds.features.layers 9", "meds.features.layers=9: "),
        ("--preset best", "meds.memory.preset=best: must be "),
    ],
)
def test_settings_that_make_no_sense_are_one_line(run: RunPaths, words: str, message: str, meds: Meds) -> None:
    assert meds.refusal("memory", "replay", run.root, "--out", "out.arrow", *words.split()).startswith(message)
    assert not Path("out.arrow").exists()
