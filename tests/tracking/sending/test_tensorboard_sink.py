"""TensorBoard's files, read back as TensorBoard does."""

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from tensorboard.util import tensor_util

from meds_openrlhf.tracking.sending.run_lines import RunLines
from meds_openrlhf.tracking.sending.tensorboard_sink import TensorboardSink, _as_markdown
from meds_openrlhf.tracking.sending.tracking_state import SentBackError, StateFile
from tests.tracking.sending.written_run import WrittenRun

MARKDOWN = [
    "![x](http://evil/p.png)", "[x](http://evil)", "<http://evil>", "<img src=x>", "# h", "* a", "`", "```", "\n",
    "\n\n", "\r", "\u2028", "\t", "    ", "<div>", "<!--", "|a|b|\n|-|-|\n", "[x]: http://evil", "[x]", "a\n===", "\\",
    "a", "\x02",
]  # fmt: skip


def sink_of(run: WrittenRun) -> TensorboardSink:
    return TensorboardSink(run.to.tensorboard, StateFile(run.paths), RunLines(run.paths))


def board(run: WrittenRun) -> Any:
    accumulator = EventAccumulator(run.to.tensorboard)
    accumulator.Reload()
    return accumulator


def points(run: WrittenRun, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in board(run).Scalars(tag)]


def test_metrics_and_evaluations_have_the_names_of_openrlhf(run: WrittenRun) -> None:
    run.step(1, **{"loss": 0.5, "meds/rows": 7})
    run.step(2, loss=float("nan"))
    run.evaluation(2, eval_aime_pass1=0.25)
    sink = sink_of(run)
    assert sink.hand_new()
    assert not sink.hand_new()
    assert sink.finish()
    assert points(run, "train/meds/rows") == [(1, 7.0)]
    assert points(run, "eval/eval_aime_pass1") == [(2, 0.25)]
    assert [step for step, _ in points(run, "train/loss")] == [1, 2]
    assert math.isnan(points(run, "train/loss")[1][1])


def test_clusters_are_histograms_and_a_text(run: WrittenRun) -> None:
    run.clusters(4, response="so\nit is | 17")
    sink = sink_of(run)
    sink.hand_new()
    sink.finish()
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
    }
    shown = markdown_to_safe_html(_as_markdown({**cluster, member: "".join(parts)}))
    tags = set(re.findall("</?[a-z]+[0-9]?", shown))
    assert tags == {"<p", "</p", "<strong", "</strong", "<pre", "</pre", "<code", "</code"}


def test_a_second_session_goes_on_where_the_first_ended(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    sink = sink_of(run)
    sink.hand_new()
    sink.finish()
    run.step(2, loss=2.0)
    sink = sink_of(run)
    sink.hand_new()
    sink.finish()
    assert points(run, "train/loss") == [(1, 1.0), (2, 2.0)]


def test_repeated_steps_are_shown_once(run: WrittenRun) -> None:
    for step in (1, 2, 3, 4):
        run.step(step, loss=float(step))
    run.evaluation(3, pass1=0.1)
    sink = sink_of(run)
    sink.hand_new()
    sink.finish()
    run.resume(2)
    for step in (3, 4, 5):
        run.step(step, loss=step * 10.0)
    sink = sink_of(run)
    sink.hand_new()
    sink.finish()
    assert points(run, "train/loss") == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0), (5, 50.0)]
    assert points(run, "eval/pass1") == []


def test_what_a_killed_session_wrote_and_did_not_note_is_shown_once(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    sink_of(run).hand_new()
    before = run.paths.tracking.read_text()
    run.step(2, loss=2.0)
    run.clusters(2)
    sink_of(run).hand_new()
    run.paths.tracking.write_text(before)  # as if it had been killed just before it noted step 2
    run.clusters(2)
    sink = sink_of(run)
    sink.hand_new()
    sink.finish()
    assert points(run, "train/loss") == [(1, 1.0), (2, 2.0)]


def test_a_session_that_is_sent_back_ends(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    run.step(2, loss=2.0)
    sink = sink_of(run)
    sink.hand_new()
    run.resume(1)
    run.step(2, loss=20.0)
    run.step(3, loss=30.0)
    with pytest.raises(SentBackError):
        sink.hand_new()


def test_a_clock_that_was_ahead_hides_nothing(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    sink = sink_of(run)
    sink.hand_new()
    sink.finish()
    (file,) = run.paths.tensorboard.glob("my-run/*")
    file.rename(file.with_name("events.out.tfevents.9000000000.other.7"))
    run.step(2, loss=2.0)
    sink = sink_of(run)
    sink.hand_new()
    sink.finish()
    assert points(run, "train/loss") == [(1, 1.0), (2, 2.0)]
    assert [path.name[:31] for path in sorted(run.paths.tensorboard.glob("my-run/*"))] == [
        "events.out.tfevents.9000000000.", "events.out.tfevents.9000000001.",
    ]  # fmt: skip


def test_it_loads_no_torch() -> None:
    code = "import sys, meds_openrlhf.tracking.sending.tensorboard_sink; print({'torch', 'wandb'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_a_folder_without_files_gets_everything(run: WrittenRun) -> None:
    """Somebody removed it, or the run's folder has another name now."""
    run.step(1, loss=1.0)
    for _ in range(2):
        sink = sink_of(run)
        sink.hand_new()
        sink.finish()
        assert points(run, "train/loss") == [(1, 1.0)]
        shutil.rmtree(run.to.tensorboard)


def test_without_anything_new_there_is_no_new_file(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    for _ in range(3):
        sink = sink_of(run)
        sink.hand_new()
        assert sink.finish()
    assert len(list(Path(run.to.tensorboard).iterdir())) == 1
