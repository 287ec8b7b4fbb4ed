"""ray_jobs/slurm.sh with three real Ray nodes, all on this machine; Slurm's own commands are stand-ins."""

import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from tests.e2e.conftest import BIN
from tests.e2e.runs import processes_of
from tests.processes import free_ports, wait_until
from tests.ray_jobs.test_slurm import notes, start_job, write_command

# In place of the training: uses every node, then works until it is told to stop; SIGTERM is not how it is told.
DRIVER = f"""#!{sys.executable}
import os, signal, sys, time
import ray

ray.init(os.environ["RAY_ADDRESS"], logging_level="ERROR")

@ray.remote(num_gpus=2)
def node():
    time.sleep(2)
    return ray.get_runtime_context().get_node_id()

def save(*_):
    print("saved", flush=True)
    sys.exit(138)

signal.signal(signal.SIGUSR1, save)  # the signal comes as soon as the next line is read
print(os.environ["RAY_AUTH_MODE"], os.path.basename(os.environ["RAY_AUTH_TOKEN_PATH"]))
print("nodes", len(set(ray.get([node.remote() for _ in range(3)]))), sys.argv[1:], flush=True)
while "--end" not in sys.argv:
    time.sleep(0.1)
"""


@pytest.mark.slow
def test_a_cluster_is_made_used_and_queued_again(tmp_path: Path) -> None:
    write_command(tmp_path, "meds", DRIVER)
    (tmp_path / "c.yaml").write_text("meds: {run_dir: run}\n")
    scratch = Path(tempfile.mkdtemp(prefix="ray-"))  # short: Ray keeps sockets below it
    environment = {
        "RAY_START_ARGS": "--num-cpus=4 --num-gpus=2 --dashboard-agent-listen-port=0",
        "RAY_HEAD_ARGS": f"--include-dashboard=false --ray-client-server-port={free_ports(1)[0]}",
        "RAY_TMPDIR": str(scratch),
    }
    job = start_job(tmp_path, "c.yaml", path=f"{BIN}:", **environment)
    output = ""
    for line in job.stdout:
        print(line, end="")  # shown when the test fails
        output += line
        if line.startswith("nodes"):
            break
    job.send_signal(signal.SIGUSR1)  # as Slurm does before the time limit
    output += job.communicate(timeout=60)[0]
    assert job.returncode == 0
    assert "all 3 nodes are in\n" in output
    assert "token .ray-token-77\nnodes 3 ['train', 'c.yaml']\nstopping: the time limit is near\n" in output
    assert "saved\nmeds train: exit code 138\n" in output
    assert notes(tmp_path, "scontrol") == ["requeue 77"]
    wait_until(lambda: processes_of(scratch) == [])
    shutil.rmtree(scratch, ignore_errors=True)
