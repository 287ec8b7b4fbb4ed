"""A run on nodes that join while it starts, and that are fewer when it is resumed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.step_log import StepLog
from tests.e2e.conftest import command, environment, finish, start

pytestmark = pytest.mark.slow

# Counts that the demo's file sets, left to the cluster.
SIZED = ["--meds.placement.mode=split"]
SIZED += [f"--{count}=null" for count in ("actor.num_nodes", "actor.num_gpus_per_node", "vllm.num_engines")]
STATED = ["--cluster", "3x1"]


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    """A head with one made-up GPU; tests add nodes."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "num_gpus": 1, "include_dashboard": False})
    yield made
    made.shutdown()


def test_stated_nodes_are_waited_for_and_may_be_fewer_on_resume(assets: Path, nodes: Cluster, tmp_path: Path) -> None:
    paths, variables = RunPaths(tmp_path / "run"), environment(RAY_ADDRESS=nodes.address)
    train = command(assets, paths.root, *SIZED)
    first = start([*train, *STATED, "--meds.max_steps=4"], env=variables)
    lines = iter(first.stdout)
    wanted = "waiting up to 300 seconds for nodes with room for 1 GPU for policy, 2 GPUs for engines"
    assert any(wanted in line for line in lines)
    added = [nodes.add_node(num_cpus=4, num_gpus=1) for _ in range(2)]
    code, output = finish(first, None)
    assert code == 0
    assert re.search(r"policy: 1 GPU on .*; engines: 2 GPUs on .*; memory: 2 shards", output)

    nodes.remove_node(added[0])
    later = [*train, "--resume", "--meds.placement.timeout_seconds=15"]
    code, output = finish(start([*later, *STATED, "--meds.max_steps=6"], env=variables), None)
    assert code == 0
    assert "waiting up to 15 seconds for nodes with room for 1 GPU for policy, 2 GPUs for engines" in output
    assert re.search(r"policy: 1 GPU on .*; engines: 1 GPU on ", output)
    assert "resuming after step 4" in output

    code, output = finish(start(later, env=variables), None)  # on what Ray has now
    assert code == 0
    assert "waiting" not in output
    assert re.search(r"policy: 1 GPU on .*; engines: 1 GPU on ", output)
    assert [step["step"] for step in StepLog(paths.metrics).read()] == list(range(1, 9))
