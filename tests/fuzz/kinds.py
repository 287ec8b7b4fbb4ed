"""Genuine files of every kind that is read, and how each is read; a reading is comparable text."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import feather

from meds_openrlhf.checkpoints import whole_checkpoints
from meds_openrlhf.config import load_config
from meds_openrlhf.data.catalog import DataSet
from meds_openrlhf.data.sources import Source, read_rows, require_own_files
from meds_openrlhf.dumps.reading import Dump
from meds_openrlhf.evaluation.request import read_problems, read_settings
from meds_openrlhf.evaluation.samples import iterate_samples
from meds_openrlhf.features.moments import DiversityTracker
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.judge.client import ReplyCache
from meds_openrlhf.memory.stored import open_memory, verify_memory
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report.atlas import Limits
from meds_openrlhf.report.write import _facts
from meds_openrlhf.rollouts.log import read_rollouts, write_rollouts
from meds_openrlhf.rollouts.run import read_log
from meds_openrlhf.runs.settings import compare_settings, flat_settings
from meds_openrlhf.runtime.hub import require_trusted
from meds_openrlhf.tools.replay import read_recording
from meds_openrlhf.tracking.sending import new_lines
from meds_openrlhf.tracking.trackers import TrackedRun

TESTS = Path(__file__).parents[1]
KILLED_RUN = TESTS / "data" / "killed_run.tar.xz"  # of an earlier version, which wrote rollout logs without a checksum


@dataclass(frozen=True)
class Kind:
    """``files`` are damaged, one at a time; ``read`` reads their folder. ``checked``: no damage passes in silence."""

    name: str
    files: list[Path]
    read: Callable[[], str]
    checked: bool = False


def unpack_killed_run(folder: Path) -> RunPaths:
    """The run's folder, which lies beside the policy and the data set that its configuration names."""
    with tarfile.open(KILLED_RUN) as archive:
        archive.extractall(folder, filter="data")
    return RunPaths(folder / "run")


def make_kinds(folder: Path) -> list[Kind]:
    """Write genuine files below ``folder``."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    paths, others = unpack_killed_run(folder / "old"), unpack_killed_run(folder / "new")
    for table in list(read_rollouts(others)):
        write_rollouts(others, table)
    plain = unpack_killed_run(folder / "plain")
    for step, table in zip(plain.rollout_steps(), list(read_rollouts(plain))):
        feather.write_feather(table, str(plain.rollouts(step)), compression="uncompressed")
    paths.planned_steps.write_text("40\n")
    of_run = [
        Kind("rollouts", sorted(others.rollouts_folder.iterdir()), lambda: rollouts_of(others), checked=True),
        Kind("rollouts of an earlier version", sorted(paths.rollouts_folder.iterdir()), lambda: rollouts_of(paths)),
        Kind("rollouts of another writer", sorted(plain.rollouts_folder.iterdir()), lambda: rollouts_of(plain)),
        Kind(
            "memory", sorted(others.memory.root.rglob("*.arrow")), lambda: memory_of(others.memory.root), checked=True
        ),
        Kind("manifests", [paths.memory.format, *paths.memory.manifests()], lambda: memory_of(paths.root)),
        Kind("logs", [paths.metrics, paths.clusters, paths.planned_steps], lambda: logs_of(paths)),
        Kind("configuration", [paths.config], lambda: settings_of(paths)),
        Kind("markers", paths.markers(), lambda: repr(whole_checkpoints(paths))),
        Kind("moments", [paths.diversity("global_step4")], lambda: moments_of(paths)),
        Kind("tracking", [paths.tracking], lambda: TrackedRun(paths).id),
    ]
    return [
        *of_run,
        *kinds_of_dumps(folder),
        *kinds_of_data(folder),
        *kinds_of_evaluations(folder),
        *others_kinds(folder),
    ]


def rollouts_of(paths: RunPaths) -> str:
    log = read_log(paths)
    return repr(
        (log.step.tolist(), log.sample.tolist(), log.prompts, log.answers, log.correct.tolist(), log.truths)
    ) + repr([table.to_pylist() for table in read_rollouts(paths)])


def memory_of(folder: Path) -> str:
    memory = open_memory(folder)
    verified = verify_memory(memory)
    return repr((memory.format, verified.rows, verified.damage and "damaged", memory.table().to_pylist()))


def logs_of(paths: RunPaths) -> str:
    return repr((new_lines(paths, {}), _facts("run", paths, flat_settings(paths), Limits())))


def settings_of(paths: RunPaths) -> str:
    flat = flat_settings(paths)
    return repr((load_config(paths.config), flat, compare_settings([flat]), TrackedRun(paths).config))


def moments_of(paths: RunPaths) -> str:
    moments = DiversityTracker()
    moments.load(paths.diversity("global_step4"))
    return repr(moments._saved)


# Files that programs wrote, one of each kind.
WRITTEN = (
    "lm-eval-0.4.13/*/samples*", "inspect-0.3.285/*", "verifiers-0.4.0/stream/**/00000.jsonl.zst",
    "slime-4c4adbb/image/0.pt", "slime-4c4adbb/numpy/0.pt", "nemo_rl-0275e75/turns/*/train_data_step1.jsonl",
    "trl-1.16.0/plain/*/*1.parquet",
)  # fmt: skip


def kinds_of_dumps(folder: Path) -> list[Kind]:
    data = TESTS / "dumps" / "data"
    kinds = [
        Kind(f"dump {path.parent.name}/{path.name}", [path], lambda path=path: dump_of(path))
        for pattern in WRITTEN
        for path in sorted(data.glob(pattern))
        if "choice" not in path.name
    ]
    copied = []
    for number, kind in enumerate(kinds):
        path = Path(shutil.copy(kind.files[0], made(folder / "dumps" / str(number)) / kind.files[0].name))
        copied.append(Kind(kind.name, [path], lambda path=path: dump_of(path)))
    rows = [
        {"prompt": f"What is {n}+1?", "response": f"It is \\boxed{{{n}}}.", "reward": 0.0, "step": 1} for n in range(40)
    ]
    table = made(folder / "dumps") / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), table)
    log = {"eval": {"model": "m"}, "samples": [inspect_sample(n) for n in range(3)]}
    whole = folder / "dumps" / "log.json"
    whole.write_text(json.dumps(log, indent=1))
    archive = folder / "dumps" / "log.eval"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.json", json.dumps({"eval": {"model": "m"}}))
        for n in range(3):
            file.writestr(f"samples/{n}_epoch_1.json", json.dumps(inspect_sample(n)))
    answer = {"role": "assistant", "content": "It is \\boxed{4}."}
    asked = {"role": "user", "content": "1+1"}
    nodes = [{"parent": None, "message": asked, "sampled": False}, {"parent": 0, "message": answer, "sampled": True}]
    lines = {
        "verl": {"input": "1+1", "output": "\\boxed{3}", "score": 0.0, "gts": "2", "step": 1},
        "nemo-rl": {"content": ["1+1", "\\boxed{3}"], "rewards": 0.0},
        "prime-rl": {"nodes": nodes, "rewards": {"math": 1.0}, "example_id": 4, "answer": "2"},
        "trl": {"prompt": [asked], "completion": [answer], "correct": 1.0, "advantage": 0.5, "step": 2},
    }
    for name, line in lines.items():
        (folder / "dumps" / f"{name}.jsonl").write_text(f"{json.dumps(line)}\n" * 4)
    import torch

    saved = folder / "dumps" / "3.pt"
    samples = [{"prompt": "1+1", "response": "\\boxed{3}", "reward": 0.0, "label": "2", "tokens": [1, 2]}] * 3
    torch.save({"rollout_id": 3, "samples": samples}, saved)
    made_here = (table, whole, archive, saved, *sorted((folder / "dumps").glob("*.jsonl")))
    return [*copied, *(Kind(f"dump {path.name}", [path], lambda path=path: dump_of(path)) for path in made_here)]


def inspect_sample(number: int) -> dict[str, object]:
    scores = {"match": {"value": "C", "answer": "2"}}
    output = {"completion": f"It is \\boxed{{{number}}}."}
    return {"id": str(number), "epoch": 1, "input": "1+1", "target": "2", "output": output, "scores": scores}


def dump_of(path: Path) -> str:
    reward = "includes" if path.name.startswith("2026") else "exact"  # evaluations have several
    dump = Dump([path], columns={"reward": reward} if "2026" in path.name else {})
    return repr((list(dump), dump.counts))


def kinds_of_data(folder: Path) -> list[Kind]:
    rows = [{"question": f"What is {n}+1?", "answer": str(n + 1), "level": "Level 1"} for n in range(30)]
    place = made(folder / "data")
    pq.write_table(pa.Table.from_pylist(rows), place / "set.parquet")
    (place / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "set.json").write_text(json.dumps(rows))
    found = [Kind(f"data {path.name}", [path], lambda path=path: data_of(path)) for path in sorted(place.iterdir())]
    card = made(folder / "card") / "README.md"
    card.write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: a/*.parquet\n---\n# A set\n"
    )
    problems = made(folder / "benchmark") / "own.jsonl"
    problems.write_text("".join(json.dumps({"id": n, "prompt": "1+1", "answer": "2"}) + "\n" for n in range(9)))
    return [
        *found,
        Kind("card", [card], lambda: repr(require_own_files(card.parent, "--from"))),
        Kind("benchmark", [problems], lambda: repr(read_problems(problems))),
    ]


def data_of(path: Path) -> str:
    return repr(list(read_rows(Source(DataSet("own", "training", "own/own"), path))))


def kinds_of_evaluations(folder: Path) -> list[Kind]:
    label = made(folder / "evaluation" / "label")
    settings = {"model": "m", "fingerprint": "f", "temperature": 1.0, "top_p": 1.0, "seed": 0, "max_tokens": 9}
    (label / "settings.json").write_text(json.dumps({**settings, "benchmarks": {"own": "1" * 64}}))
    sample = {"problem": "1", "text": "It is 2.", "tokens": 3, "truncated": False, "answer": "2", "right": True}
    samples = label / "own.jsonl"
    samples.write_text("".join(json.dumps({**sample, "index": n}) + "\n" for n in range(9)))
    return [
        Kind("samples", [samples], lambda: repr(list(iterate_samples(samples)))),
        Kind("settings", [label / "settings.json"], lambda: repr(read_settings(label))),
    ]


def others_kinds(folder: Path) -> list[Kind]:
    place = made(folder / "others")
    logits = pa.array([[float(n), 1.0, 2.0] for n in range(12)], pa.list_(pa.float32(), 3))
    columns = {"step": [n // 4 + 1 for n in range(12)], "prompt_key": [f"p{n % 3}" for n in range(12)]}
    table = pa.table({**columns, "correct": [False] * 12, "layer_logits": logits})
    streams = {"file.arrow": pa.ipc.new_file, "stream.arrow": pa.ipc.new_stream}
    for name, form in streams.items():
        with form(str(place / name), table.schema) as writer:
            writer.write_table(table)
    cache = ReplyCache(place / "cache")
    body = {"model": "m", "messages": []}
    made(cache.path(body).parent)
    cache.path(body).write_text(json.dumps({"text": "2", "tokens": 4, "request": body}))
    model = made(place / "model")
    (model / "config.json").write_text(
        json.dumps({"architectures": ["A"], "hidden_size": 8, "layers": list(range(99))})
    )
    text = place / "text.json"
    text.write_text(json.dumps({"a": [1, {"b": [1.5, None, "x"]}], "c": 10**30}))
    return [
        *(
            Kind(f"replay {name}", [place / name], lambda name=name: repr(recording_of(place / name)))
            for name in streams
        ),
        Kind("replies", [cache.path(body)], lambda: repr(cache.read(body))),
        Kind("model", [model / "config.json"], lambda: repr(require_trusted(str(model), "MODEL", False))),
        Kind("JSON", [text], lambda: json_of(text)),
    ]


def recording_of(path: Path) -> list[object]:
    recording = read_recording(path)
    return [recording.step.tolist(), recording.prompt, recording.correct.tolist(), recording.layer_logits.tolist()]


def json_of(path: Path) -> str:
    try:
        return repr(parse_json(path.read_bytes()))
    except ValueError:
        return "refused"


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
