"""Slurm's commands as far as ray_jobs/slurm.sh uses them, all nodes being this machine."""

import os
import subprocess
import sys
from pathlib import Path

from tests.ports import free_ports

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
