"""What is shown on a terminal: the lines of a run, and nothing that a terminal acts on."""

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest

from meds_openrlhf.terminal import PrintableStream, RunConsole, printable, step_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ä 数\tand\n", "plain ä 数\tand\n"),
        ("\x1b]52;c;cHduZWQ=\x07", "\\x1b]52;c;cHduZWQ=\\x07"),
        ("a\rb\x9bc", "a\\rb\\x9bc"),
        ("\u202eright to left", "\\u202eright to left"),
        ("half \ud800", "half \\ud800"),
    ],
)
def test_control_characters_are_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_stream_shows_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    print("\x1b[2J", file=PrintableStream(sys.stdout))
    assert capsys.readouterr().out == "\\x1b[2J\n"


@pytest.mark.parametrize("shell", ["{} >&-", "{} 2>&- >&-", "{} | true", "{} > /dev/null", "PYTHONIOENCODING=ascii {}"])
@pytest.mark.parametrize("words", ["--help", "memory inspect 'no such ä'"])
def test_closed_streams_and_any_encoding_end_without_a_traceback(shell: str, words: str) -> None:
    command = f"{sys.executable} -m meds_openrlhf.cli.main {words}"
    ended = subprocess.run(["bash", "-c", shell.format(command)], capture_output=True, text=True)
    assert ended.returncode == (0 if words == "--help" or "| true" in shell else 2)
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


def test_the_console_tells_the_time_left() -> None:
    stream = io.StringIO()
    clock = iter((50.0, 54.0, 58.0, 62.0, 99.0))
    console = RunConsole(stream, lambda: next(clock))
    console._total = 40
    for step in (1, 2, 3, 4):
        console.step(step, {"rollout/reward_mean": 0.5, "timing/step_total": 3.0})
    lines = stream.getvalue().splitlines()
    assert lines[1] == "step  2/40 | reward 0.500 | 3.0 s"
    assert lines[3] == "step  4/40 | reward 0.500 | 3.0 s, 0:02:24 left"  # four seconds from step to step
    console.done("runs/a")
    assert stream.getvalue().splitlines()[-2:] == [
        "runs/a: the prompts were used up before step 40; raise train.num_episodes for more",
        "runs/a: done; the trained policy is in runs/a/model",
    ]
    console._total = 3
    console.done("runs/a")
    assert stream.getvalue().count("used up") == 1


def test_a_resumed_run_says_what_no_checkpoint_has() -> None:
    stream = io.StringIO()
    job = SimpleNamespace(
        total_steps=4, first_step=3, resume=True, on_cpu=False, too_long=0,
        config=SimpleNamespace(meds=SimpleNamespace(run_dir="runs/a")),
    )  # fmt: skip
    report = SimpleNamespace(plan="policy: 1 GPU", overfull=[])
    RunConsole(stream).start(job, report, 4)
    RunConsole(stream).start(job, report, 3)
    begins = "runs/a: resuming after step 3, up to step 4; loading models, this takes a while"
    again = "runs/a: what was trained after step 3, up to step 4, is in no checkpoint"
    assert [line for line in stream.getvalue().splitlines() if "step" in line] == [begins, again, begins]


def test_the_step_line_with_a_memory() -> None:
    metrics = {
        "meds/accuracy": 0.5,
        "meds/reward_raw": 0.5, "meds/reward_shaped": 0.45, "meds/penalized_share": 0.25, "meds/rows": 42.0,
        "meds/clusters": 6.0, "meds/noise_share": 0.1, "meds/eigen_ratio_step": 0.66, "timing/step_total": 2.0,
    }  # fmt: skip
    assert step_line(7, 40, metrics) == (
        "step  7/40 |  50% right | reward 0.500 shaped 0.450 | penalized  25% | 42 rows 6 clusters 10% noise"
        " | eigen ratio 0.66 | 2.0 s"
    )
