"""What ray_jobs/slurm.sh makes of the end of a run: done, given up, or queued again.

Slurm's commands are stand-ins, as far as the script uses them, and all nodes are this machine.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import free_ports

pytestmark = pytest.mark.e2e

SCRIPT = Path(__file__).parents[2] / "ray_jobs/slurm.sh"

# Notes which node the command was meant for. Signals do what they do with Slurm's: SIGTERM and SIGHUP kill the whole
# step, SIGUSR1 is passed on to it.
SRUN = f"""#!{sys.executable} -S
import os, signal, subprocess, sys

words, node = sys.argv[1:], None
while words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    node = value if name == "--nodelist" else node
    if name.startswith("--container"):
        with open(os.environ["SLURM_NOTES"] + "/containers.txt", "a") as notes:
            print(name + "=" + value, file=notes)
with open(os.environ["SLURM_NOTES"] + "/srun.txt", "a") as notes:
    print(node, *words, file=notes)

signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
unblock = lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
step = subprocess.Popen(words, start_new_session=True, preexec_fn=unblock)
for signum in signals:
    sent = signum if signum == signal.SIGUSR1 else signal.SIGKILL
    signal.signal(signum, lambda *_, sent=sent: os.killpg(step.pid, sent))
unblock()
code = step.wait()
sys.exit(code if code >= 0 else 128 - code)
"""
SCONTROL = """#!/bin/bash
if [[ $1 == show ]]; then for n in 0 1 2; do echo "node-$n"; done; else echo "$*" >>"$SLURM_NOTES/scontrol.txt"; fi
"""
REQUEUE = ["requeue 77"]
# The head listens, as Ray's does; a worker only runs.
RAY = """#!/bin/bash
for word; do [[ $word == --port=* ]] && exec {python} -m http.server "${{word#*=}}"; done
exec sleep 60
"""
# Counts the nodes that came in; here, none is counted before all were asked to.
NODES = """#!/bin/sh
if [ "$1" = -m ]; then touch token; [ "$3" = wrong.yaml ] && exit 2; echo $PWD/token; exit; fi
until [ "$(grep -c ' ray start ' "$SLURM_NOTES/srun.txt")" -ge 3 ]; do sleep 0.05; done
echo ${NODES_IN:-3}
"""


def write_command(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def start_job(folder: Path, *arguments: str, restarts: int = 0, path: str = "", **environment: str) -> subprocess.Popen:
    """The batch script of a job on three nodes; its notes come into ``folder``, commands there are found first."""
    write_command(folder, "srun", SRUN)
    write_command(folder, "scontrol", SCONTROL)
    slurm = {"SLURM_JOB_NODELIST": "node-[0-2]", "SLURM_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "4"}
    slurm |= {"SLURM_SUBMIT_DIR": str(folder), "SLURM_NOTES": str(folder), "RAY_PORT": str(free_ports(1)[0])}
    slurm |= {"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}
    path = f"{folder}:{path}{os.environ['PATH']}"
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = {**os.environ, **slurm, "PATH": path, **environment}
    return subprocess.Popen(
        ["bash", str(SCRIPT), *arguments], env=environment, cwd=folder, start_new_session=True, **streams
    )


def notes(folder: Path, command: str) -> list[str]:
    """What was asked of ``command``, in order."""
    file = folder / f"{command}.txt"
    return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Commands that stand in for Ray and the driver."""
    write_command(tmp_path, "ray", RAY.format(python=sys.executable))
    write_command(tmp_path, "python3", NODES)
    write_command(tmp_path, "meds", '#!/bin/sh\necho "meds $*"\necho $RAY_AUTH_MODE $RAY_AUTH_TOKEN_PATH\nexit $END\n')
    return tmp_path


def finish(job: subprocess.Popen) -> tuple[int, str]:
    output = job.communicate(timeout=60)[0]
    print(output)
    return job.returncode, output


def test_every_node_gets_ray_and_the_first_one_the_driver(folder: Path) -> None:
    code, output = finish(start_job(folder, "c.yaml", "--a.b=it's", END="0", RAY_START_ARGS="--x --y"))
    assert code == 0
    asked = notes(folder, "srun")
    assert asked[:2] == ["node-0 hostname -I", "node-0 python3 -m meds_openrlhf.runtime.ray_token c.yaml --a.b=it's"]
    assert re.search(r"^token \S+/token$", output, re.MULTILINE)
    assert not (folder / "token").exists()
    starts = [line for line in asked if " ray start " in line]
    assert sorted(line.split()[0] for line in starts) == ["node-0", "node-1", "node-2"]
    assert sum("--head" in line for line in starts) == 1
    assert all(line.endswith("--disable-usage-stats --x --y") for line in starts)
    port = next(word for line in starts for word in line.split() if word.startswith("--port=")).removeprefix("--port=")
    assert [f":{port} " in line for line in starts] == ["--head" not in line for line in starts]
    assert asked[-1] == "node-0 meds train c.yaml --a.b=it's"
    assert "meds train c.yaml --a.b=it's\n" in output
    assert notes(folder, "scontrol") == []
    assert finish(start_job(folder, "wrong.yaml"))[0] == 2
    assert len(notes(folder, "srun")) == len(asked) + 2  # no head
    code, output = finish(start_job(folder))  # without a configuration
    assert (code, output.split()[:2]) == (2, ["usage:", "sbatch"])


@pytest.mark.parametrize("given", ["", " --container-name=mine"])
def test_ray_and_driver_share_a_container_at_the_address_that_is_given(folder: Path, given: str) -> None:
    """A node with several networks has several addresses, and not all reach the others."""
    environment = {"SRUN_ARGS": f"--container-image=meds.sqsh{given}", "HEAD_ADDRESS": "127.0.0.1"}
    code, output = finish(start_job(folder, "c.yaml", END="0", **environment))
    assert code == 0
    assert "head node-0 at 127.0.0.1:" in output
    assert not any("hostname" in line for line in notes(folder, "srun"))
    name = "mine" if given else "meds-77"
    assert set(notes(folder, "containers")) == {"--container-image=meds.sqsh", f"--container-name={name}"}


@pytest.mark.parametrize(
    ("end", "failed", "restarts", "code", "requeued"),
    [
        *[("1", 0, 0, 0, REQUEUE), ("1", 2, 2, 0, REQUEUE), ("1", 3, 3, 1, []), ("137", 0, 0, 0, REQUEUE)],
        ("1", 0, 9, 0, REQUEUE),  # nine times at the time limit
        *[("2", 1, 1, 2, []), ("130", 0, 0, 130, []), ("0", 1, 1, 0, [])],
    ],
)
def test_failures_are_queued_again(
    folder: Path, end: str, failed: int, restarts: int, code: int, requeued: list[str]
) -> None:
    failures = folder / "meds-77.failures"
    if failed:
        failures.write_text("exit code 1\n" * failed)
    got, output = finish(start_job(folder, "c.yaml", restarts=restarts, END=end))
    assert got == code
    assert f"meds train: exit code {end}" in output
    assert notes(folder, "scontrol") == requeued
    assert ("meds train c.yaml --resume\n" in output) == (restarts > 0)
    counted = failures.read_text().splitlines() if failures.exists() else []
    assert counted == (["exit code 1"] * failed + [f"exit code {end}"] if requeued else [])


def test_nodes_that_do_not_come_in(folder: Path) -> None:
    code, output = finish(start_job(folder, "c.yaml", END="0", NODES_IN="2", NODE_SECONDS="1"))
    assert (code, notes(folder, "scontrol")) == (0, REQUEUE)
    assert "not all nodes came in\n" in output
    assert "meds train c.yaml" not in output


@pytest.mark.parametrize(("sent", "code", "requeued"), [(signal.SIGUSR1, 0, REQUEUE), (signal.SIGTERM, 138, [])])
def test_a_signal_lets_the_run_save(folder: Path, sent: signal.Signals, code: int, requeued: list[str]) -> None:
    text = "#!/bin/bash\ntrap 'sleep 0.5; echo saved; exit 138' USR1\necho training\nwhile :; do sleep 0.1; done\n"
    write_command(folder, "meds", text)
    job = start_job(folder, "c.yaml", restarts=9)
    for line in job.stdout:
        if line == "training\n":
            break
    job.send_signal(sent)
    got, output = finish(job)
    assert "saved\nmeds train: exit code 138\n" in output
    assert (got, notes(folder, "scontrol")) == (code, requeued)
    assert not (folder / "meds-77.failures").exists()  # neither is a failure


@pytest.mark.parametrize(("retries", "requeued"), [("1", REQUEUE), ("0", [])])
def test_a_step_longer_than_the_notice_is_lost_and_the_job_goes_on(
    folder: Path, retries: str, requeued: list[str]
) -> None:
    text = "#!/bin/bash\ntrap '' USR1\necho training\nfor _ in {1..40}; do sleep 0.1; done\n"
    write_command(folder, "meds", text)
    job = start_job(folder, "c.yaml", REQUEUE_SECONDS="1", MEDS_RETRIES=retries)
    for line in job.stdout:
        if line == "training\n":
            break
    job.send_signal(signal.SIGUSR1)
    _, output = finish(job)
    assert notes(folder, "scontrol") == requeued
    assert ("queued again: a step longer than the notice, retry 1 of 1\n" in output) == bool(requeued)


def test_a_time_limit_too_short_to_start_counts_as_a_failure(folder: Path) -> None:
    (folder / "meds-77.failures").write_text("exit code 1\n" * 3)
    job = start_job(folder, "c.yaml", NODES_IN="2", NODE_SECONDS="3")
    for line in job.stdout:
        if line.startswith("head "):
            break
    job.send_signal(signal.SIGUSR1)
    assert finish(job)[0] == 1
    assert notes(folder, "scontrol") == []


def test_a_trap_runs_in_no_substitution() -> None:
    lines = [line for line in SCRIPT.read_text().splitlines() if not line.startswith("#")]
    # Bash 5.2 parses these while it expands them, and runs a trap within: `trap: unexpected EOF`.
    assert not [line for line in lines if re.search(r"\$\((?!\()|<\(", line)]
