"""A run is checked, packed and named before it is sent, and sent under quoting that a shell undoes."""

import shlex
from pathlib import Path

import pytest
import ray

from meds_openrlhf.cli.main import main
from meds_openrlhf.config import ConfigError
from meds_openrlhf.jobs import cluster
from meds_openrlhf.jobs.cluster import connect
from meds_openrlhf.jobs.submission import Submission, prepare
from tests.jobs.http_server import http_server, version
from tests.ports import silent_address


def ready(folder: Path, *overrides: str, **options: object) -> Submission:
    (folder / "c.yaml").write_text("meds: {run_dir: /shared/runs/x}\n")
    defaults = {"working_dir": folder, "name": None, "resume": False, "verbose": False, "variables": [], "environ": {}}
    return prepare(folder / "c.yaml", overrides, **{**defaults, **options})


def test_every_attempt_but_the_first_goes_on(tmp_path: Path) -> None:
    run = ready(tmp_path, "--a.b=it's $HOME", name="x", verbose=True)
    assert [run.name_of(attempt) for attempt in (1, 2, 3)] == ["x", "x-2", "x-3"]
    words = ["meds", "train", "c.yaml", "--a.b=it's $HOME", "--verbose"]
    assert shlex.split(run.entrypoint(1)) == words
    assert shlex.split(run.entrypoint(2)) == [*words, "--resume"]
    assert shlex.split(ready(tmp_path, resume=True).entrypoint(1)) == ["meds", "train", "c.yaml", "--resume"]


def test_a_name_is_that_of_the_run_folder_and_the_time(tmp_path: Path) -> None:
    name, _, time = ready(tmp_path).name.partition("-")
    assert name == "x"
    assert len(time) == len("20260101-120000")


def test_what_is_sent_and_what_is_not(tmp_path: Path) -> None:
    environ = {"WANDB_API_KEY": "hush", "HF_TOKEN": "hush"}
    lines = ready(tmp_path, variables=["HF_TOKEN"], environ=environ).sent("http://head:8265")
    assert lines[0] == f"sending 1 files, 0.0 kB, of {tmp_path} to http://head:8265"
    assert lines[1].startswith("sending in the clear: HF_TOKEN; Ray shows a job's environment")
    assert lines[2].startswith("not sending: WANDB_API_KEY, set here, because Ray shows")
    assert "hush" not in "".join(lines)
    assert len(ready(tmp_path).sent("http://head:8265")) == 1


def test_a_refused_job_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster.JobServer, "_upload_working_dir_if_needed", lambda *_: None)
    run = ready(tmp_path, name="x")
    run = Submission(**{**vars(run), "package": type(run.package)("gcs://x.zip", {}, ())})  # uploaded already
    with http_server(200, version(ray.__version__)) as address:
        server = connect(address)
    gone = pytest.raises(ConfigError, match="job: 'x' was not submitted: the head does not answer")
    with silent_address() as server._address, gone:
        run.submit(server, 1)
    for answer, message in (
        ("Job with submission_id x already exists. Please", "--name: 'x' is the name of another job"),
        ("Traceback\n  here\nValueError: no agent. Try", "job: 'x' is refused by the head: ValueError: no agent"),
    ):
        with http_server(500, answer) as address:
            server._address = address
            with pytest.raises(ConfigError) as refused:
                run.submit(server, 1)
        assert str(refused.value).startswith(message)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--address: None is not set; name the head's dashboard"),
        (["--address=http://h:1", "--retries=-1"], "--retries: -1 is below 0"),
        (["--address=http://h:1", "--retries=1", "--no-follow"], "--retries: 1 needs someone who follows"),
        (["--address=http://h:1", "--env=HF_TOKEN=hush"], "--env: 'HF_TOKEN' comes with a value"),
        (["--address=http://h:1", "--meds.run_dir=runs/x"], "meds.run_dir: 'runs/x' is relative"),
        (["--address=http://h:1", "--meds.penalty.alpha=x"], "meds.penalty.alpha: 'x' has the wrong type"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("meds: {run_dir: /shared/runs/x}\n")
    assert main(["submit", "c.yaml", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"meds: {message}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
