"""TensorBoard's files, read back as TensorBoard does."""

import math
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.plugin_util import markdown_to_safe_html
from tensorboard.util import tensor_util

from meds_openrlhf.config import ConfigError
from meds_openrlhf.tracking.sending import Trackers, new_lines
from meds_openrlhf.tracking.trackers import TRACKERS, RunLine, TrackedRun
from tests.tracking.written_run import WrittenRun

MARKDOWN = [
    "![x](http://evil/p.png)", "[x](http://evil)", "<http://evil>", "<img src=x>", "# h", "* a", "`", "```", "\n",
    "\n\n", "\r", "\u2028", "\t", "    ", "<div>", "<!--", "|a|b|\n|-|-|\n", "[x]: http://evil", "[x]", "a\n===", "\\",
    "a", "\x02",
]  # fmt: skip


def points(run: WrittenRun, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in run.board().Scalars(tag)]


def test_numbers_histograms_and_texts_have_the_names_of_openrlhf(run: WrittenRun) -> None:
    run.step(1, **{"loss": 0.5, "meds/rows": 7})
    run.step(2, loss=float("nan"))
    run.evaluation(2, eval_aime_pass1=0.25)
    run.clusters(4, response="so\nit is | 17")
    run.send("tensorboard")
    assert points(run, "train/meds/rows") == [(1, 7.0)]
    assert points(run, "eval/eval_aime_pass1") == [(2, 0.25)]
    assert run.on_the_board() == [1, 2]
    assert math.isnan(points(run, "train/loss")[1][1])
    (event,) = run.board().Histograms("train/meds/cluster_sizes")
    histogram = event.histogram_value
    assert (event.step, histogram.num, histogram.min, histogram.max) == (4, 12, 1, 4)
    assert (list(histogram.bucket_limit), list(histogram.bucket)) == ([1, 2, 4], [0, 5, 7])
    (text,) = run.board().Tensors("train/biggest_clusters")
    assert tensor_util.make_ndarray(text.tensor_proto)[0].decode() == (
        "**size 12**, 4 in this step, label 3\n\n    answer 17\n    prompt k1\n\n    9 + 9?\n\n    so\n    it is | 17"
    )


@given(parts=st.lists(st.sampled_from(MARKDOWN), max_size=12), member=st.sampled_from(["answer", "prompt", "response"]))
def test_nothing_in_a_cluster_is_taken_for_markdown(parts: list[str], member: str) -> None:
    cluster = {"prompt": "k", "prompt_text": "9?", "label": 3, "size": 12, "members": 4, "answer": "", "response": "17"}
    cluster[member] = "".join(parts)
    shown = markdown_to_safe_html(RunLine("clusters", 1, {"biggest_clusters": [cluster]}).biggest_clusters)
    tags = set(re.findall("</?[a-z]+[0-9]?", shown))
    assert tags == {"<p", "</p", "<strong", "</strong", "<pre", "</pre", "<code", "</code"}


def test_a_resumed_run_is_shown_once_also_in_a_viewer_that_is_open(
    run: WrittenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.steps(1, 2, 3)
    run.evaluation(3, pass1=0.1)
    session = TRACKERS["tensorboard"][1](TrackedRun(run.paths))
    for line in new_lines(run.paths, {}):
        session.send(line)
    viewer = run.board()
    assert [event.step for event in viewer.Scalars("train/loss")] == [1, 2, 3]
    run.resume(1)
    run.steps(2, 3, times=10.0)
    # A viewer reads files in the order of their names: a second, and a counter (as text: 10, then 9).
    later = time.time() + 2
    monkeypatch.setattr(time, "time", lambda: later)
    run.send("tensorboard")
    viewer.Reload()
    for board in (viewer, run.board()):
        shown = [(event.step, event.value) for event in board.Scalars("train/loss")]
        assert shown == [(1, 1.0), (2, 20.0), (3, 30.0)]
    assert "eval/pass1" not in run.board().Tags()["scalars"]


def test_earlier_files_of_the_run_are_emptied_and_those_of_others_are_not(run: WrittenRun) -> None:
    run.steps(1)
    run.send("tensorboard")
    (another,) = run.tensorboard.iterdir()
    run.paths.tracking.unlink()  # what follows is another run's
    for _ in range(3):
        run.send("tensorboard")
    sizes = sorted(path.stat().st_size for path in run.tensorboard.iterdir())
    assert sizes == [0, 0, another.stat().st_size, another.stat().st_size]


def test_flags_name_the_folder_and_the_run(run: WrittenRun, tmp_path: Path) -> None:
    run.steps(1)
    flags = f"logger:\n  tensorboard_dir: {tmp_path}/boards\n  wandb: {{run_name: night}}\n"
    run.paths.config.write_text("meds:\n  run_dir: x\n" + flags)
    run.send("tensorboard")
    assert len(list((tmp_path / "boards" / "night").iterdir())) == 1


def test_files_outside_of_the_run_stay_as_they_are(run: WrittenRun, tmp_path: Path) -> None:
    """Whatever its configuration, its links and its names say."""
    run.steps(2)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    other = tmp_path / "other" / "my-run"
    other.mkdir(parents=True)
    theirs = other / f"events.out.tfevents.1.h.{TrackedRun(run.paths).id}"
    theirs.write_text("precious")
    run.paths.config.write_text(f"meds: {{run_dir: x}}\nlogger:\n  tensorboard_dir: {other.parent}\n")
    run.send("tensorboard")
    assert theirs.read_text() == "precious"
    assert len(list(other.iterdir())) == 2
    run.paths.config.write_text("meds: {run_dir: x}\nlogger:\n  wandb: {run_name: ../../../other/up}\n")
    run.send("tensorboard")
    assert [path.name for path in run.paths.tensorboard.iterdir()] == [".._.._.._other_up"]
    link = run.paths.tensorboard / ".._.._.._other_up" / f"events.out.tfevents.1.h.{TrackedRun(run.paths).id}"
    link.symlink_to(victim)
    with pytest.raises(ConfigError, match="leads out of the folder"):
        TRACKERS["tensorboard"][1](TrackedRun(run.paths))
    assert victim.read_text() == "precious"
    run.paths.tracking_log.unlink(missing_ok=True)
    run.paths.tracking_log.symlink_to(victim)
    trackers = Trackers(run.paths, ["tensorboard"])
    trackers.finishing.set()
    trackers.finish(5.0)
    run.paths.tracking_lock("tensorboard").unlink()
    (run.paths.root / ".tracking-tensorboard.lock").symlink_to(victim)
    with pytest.raises(ConfigError, match="leads out of the folder"):
        Trackers(run.paths, ["tensorboard"])
    assert victim.read_text() == "precious"
