"""TensorBoard's files, read back as TensorBoard does."""

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from tensorboard.util import tensor_util

from meds_openrlhf.tracking.run_lines import RunLine, RunLines
from meds_openrlhf.tracking.trackers import TRACKERS, TrackedRun
from tests.tracking.written_run import WrittenRun

MARKDOWN = [
    "![x](http://evil/p.png)", "[x](http://evil)", "<http://evil>", "<img src=x>", "# h", "* a", "`", "```", "\n",
    "\n\n", "\r", "\u2028", "\t", "    ", "<div>", "<!--", "|a|b|\n|-|-|\n", "[x]: http://evil", "[x]", "a\n===", "\\",
    "a", "\x02",
]  # fmt: skip


def send(run: WrittenRun) -> None:
    run.send("tensorboard")


def board(run: WrittenRun) -> Any:
    accumulator = EventAccumulator(str(run.tensorboard))
    accumulator.Reload()
    return accumulator


def points(run: WrittenRun, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in board(run).Scalars(tag)]


def test_metrics_and_evaluations_have_the_names_of_openrlhf(run: WrittenRun) -> None:
    run.step(1, **{"loss": 0.5, "meds/rows": 7})
    run.step(2, loss=float("nan"))
    run.evaluation(2, eval_aime_pass1=0.25)
    send(run)
    assert points(run, "train/meds/rows") == [(1, 7.0)]
    assert points(run, "eval/eval_aime_pass1") == [(2, 0.25)]
    assert [step for step, _ in points(run, "train/loss")] == [1, 2]
    assert math.isnan(points(run, "train/loss")[1][1])


def test_clusters_are_histograms_and_a_text(run: WrittenRun) -> None:
    run.clusters(4, response="so\nit is | 17")
    send(run)
    (event,) = board(run).Histograms("train/meds/cluster_sizes")
    histogram = event.histogram_value
    assert (event.step, histogram.num, histogram.min, histogram.max, histogram.sum) == (4, 12, 1, 4, 5 * 1.5 + 7 * 3)
    assert list(histogram.bucket_limit) == [1, 2, 4]
    assert list(histogram.bucket) == [0, 5, 7]
    (text,) = board(run).Tensors("train/biggest_clusters")
    assert tensor_util.make_ndarray(text.tensor_proto)[0].decode() == (
        "**size 12**, 4 in this step, label 3\n\n    answer 17\n    prompt k1\n\n    9 + 9?\n\n    so\n    it is | 17"
    )


@given(parts=st.lists(st.sampled_from(MARKDOWN), max_size=12), member=st.sampled_from(["answer", "prompt", "response"]))
def test_nothing_in_a_cluster_is_taken_for_markdown(parts: list[str], member: str) -> None:
    cluster = {
        "prompt": "k",
        "prompt_text": "9 + 9?",
        "label": 3,
        "size": 12,
        "members": 4,
        "answer": "",
        "response": "17",
        member: "".join(parts),
    }
    shown = markdown_to_safe_html(RunLine("clusters", 1, {"biggest_clusters": [cluster]}).biggest_clusters)
    tags = set(re.findall("</?[a-z]+[0-9]?", shown))
    assert tags == {"<p", "</p", "<strong", "</strong", "<pre", "</pre", "<code", "</code"}


def test_a_second_session_goes_on_where_the_first_ended(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    send(run)
    run.step(2, loss=2.0)
    send(run)
    assert points(run, "train/loss") == [(1, 1.0), (2, 2.0)]


def test_repeated_steps_are_shown_once(run: WrittenRun) -> None:
    for step in (1, 2, 3, 4):
        run.step(step, loss=float(step))
    run.evaluation(3, pass1=0.1)
    send(run)
    run.resume(2)
    for step in (3, 4, 5):
        run.step(step, loss=step * 10.0)
    send(run)
    assert points(run, "train/loss") == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0), (5, 50.0)]
    assert "eval/pass1" not in board(run).Tags()["scalars"]


def test_a_viewer_that_is_open_follows_a_resumed_run(run: WrittenRun) -> None:
    for step in (1, 2, 3):
        run.step(step, loss=float(step))
    session = TRACKERS["tensorboard"][1](TrackedRun(run.paths, print))
    session.send(RunLines(run.paths).read_new())
    viewer = board(run)
    assert [event.step for event in viewer.Scalars("train/loss")] == [1, 2, 3]
    run.resume(1)
    run.step(2, loss=20.0)
    send(run)
    viewer.Reload()
    assert [(event.step, event.value) for event in viewer.Scalars("train/loss")] == [(1, 1.0), (2, 20.0)]


def test_earlier_files_of_the_run_are_emptied_and_those_of_others_are_not(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    send(run)
    (another,) = run.tensorboard.iterdir()
    run.paths.tracking.unlink()  # what follows is another run's
    for _ in range(3):
        send(run)
    own = [path for path in run.tensorboard.iterdir() if path != another]
    assert sorted(bool(path.stat().st_size) for path in own) == [False, False, True]
    assert another.stat().st_size


def test_a_flag_names_the_folder_and_the_run(run: WrittenRun, tmp_path: Path) -> None:
    run.step(1, loss=1.0)
    flags = f"logger:\n  tensorboard_dir: {tmp_path}/boards\n  wandb: {{run_name: night}}\n"
    run.paths.config.write_text("meds:\n  run_dir: x\n" + flags)
    send(run)
    assert len(list((tmp_path / "boards" / "night").iterdir())) == 1


def test_it_loads_no_torch(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    code = """
import sys
from pathlib import Path
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.sending import Trackers
print(Trackers(RunPaths(Path(sys.argv[1])), ["tensorboard"]).finish(60), {"torch", "wandb"} & set(sys.modules))
"""
    command = [sys.executable, "-c", code, str(run.paths.root)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[] set()\n"
    assert points(run, "train/loss") == [(1, 1.0)]


def test_without_anything_to_show_there_is_no_file(run: WrittenRun) -> None:
    send(run)
    assert not run.tensorboard.exists()
