"""What the end-to-end tests share: one small warm-started policy, one Ray cluster with made-up GPUs, one way to run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from meds_openrlhf.paths import RunPaths
from tests.e2e.runs import Run
from tests.processes import answers, free_ports, ray_head_command, running

BIN = Path(sys.executable).parent
MEDS = [sys.executable, "-m", "meds_openrlhf.cli.main"]
REPOSITORY = Path(__file__).parents[2]
# As long as Weights & Biases wants it, and such that no log holds it by chance.
NODE_KEY = f"{'keyofthenodes':x<40}"

# The shared cluster's token, without which nobody can connect.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "e2e" * 20}

# A job's working folder may bring a script, which then stands in for the training: manners need no model.
STAND_IN = f"""#!/bin/sh
if [ -f script.sh ]; then exec sh ./script.sh "$@"; fi
exec {BIN}/meds "$@"
"""


EVERY_DAY = "test_killed_run.py"  # the training that `make test` has: of an earlier version, resumed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.path.name != EVERY_DAY:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The arithmetic task with a policy that was trained just long enough to make mistakes in boxes."""
    from meds_openrlhf.arithmetic.warm_start import WarmStartRecipe, prepare

    folder = tmp_path_factory.mktemp("assets") / "arithmetic"
    prepare(folder, recipe=WarmStartRecipe(steps=160, layers=4, train_problems=16, eval_problems=8))
    return folder


def environment(cluster: str | None = None, **variables: str) -> dict[str, str]:
    """This process's, with the Ray cluster of RAY_ADDRESS or, as on a machine for one job alone, without any."""
    ours = ("RAY_ADDRESS", "RAY_API_", "RAY_AUTH_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**inherited, **({} if cluster is None else {"RAY_ADDRESS": cluster, **TOKEN}), **variables}


@dataclass(frozen=True)
class RayHead:
    """A running head."""

    address: str  # of its dashboard
    cluster: str  # what RAY_ADDRESS takes
    folder: Path  # where Ray keeps its logs and the jobs' files


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    """A Ray cluster of this machine with eight made-up GPUs and a dashboard; its nodes have a key for W&B."""
    commands = tmp_path_factory.mktemp("commands")
    (commands / "meds").write_text(STAND_IN)
    (commands / "meds").chmod(0o755)
    port, dashboard, agent = free_ports(3)
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: Ray keeps sockets below it
    start = [*ray_head_command(port), f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"]
    start += [f"--temp-dir={folder}", "--num-gpus=8", "--num-cpus=32"]
    address = f"http://127.0.0.1:{dashboard}"
    # The dashboard takes a job and the node's agent starts it: a job that comes before both is refused.
    pages = [f"{address}/api/jobs/", f"http://127.0.0.1:{agent}/api/local_raylet_healthz"]
    variables = {"PATH": f"{commands}:{BIN}:{os.environ['PATH']}", "WANDB_API_KEY": NODE_KEY, "WANDB_MODE": "offline"}

    def ready() -> bool:
        return all(answers(page, TOKEN["RAY_AUTH_TOKEN"]) for page in pages)

    with running(start, folder / "head.log", ready, environment(**variables, **TOKEN)):
        yield RayHead(address, f"127.0.0.1:{port}", folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(head: RayHead) -> str:
    """What RAY_ADDRESS takes."""
    return head.cluster


def command(assets: Path, run_dir: Path, *overrides: str, method: str = "meds") -> list[str]:
    """`meds train` at the demo's size, cut down to 16 prompts, 4 a step, 8 responses each, 2 episodes.

    Without dynamic filtering, so that it is known which steps there are.
    """
    small = [
        f"--meds.run_dir={run_dir}",
        f"--actor.model_name_or_path={assets}/policy",
        f"--data.prompt_dataset={assets}/train.jsonl",
        *("--rollout.batch_size=4", "--rollout.n_samples_per_prompt=8", "--rollout.micro_batch_size=8"),
        *("--train.batch_size=32", "--train.micro_batch_size=8", "--train.num_episodes=2", "--ckpt.save_steps=4"),
        "--algo.dynamic_filtering_enable=false",
    ]
    return [*MEDS, "train", str(REPOSITORY / f"configs/cpu/{method}.yaml"), *small, *overrides]


def finished(words: list[str], cluster: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    ended = subprocess.run(words, env=environment(cluster), capture_output=True, text=True)
    print(ended.stdout[-6000:], ended.stderr[-3000:])  # shown when the test fails
    return ended


def start(words: list[str], cluster: str | None = None, **options: object) -> subprocess.Popen:
    """Start a command that is ended or followed, with all that it prints in one stream."""
    together = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    return subprocess.Popen(words, **{"env": environment(cluster), **together, **options})


def finish(process: subprocess.Popen, seconds: float | None = 120) -> tuple[int, str]:
    """The exit code of what was started, and what it printed since it was last read."""
    output = process.communicate(timeout=seconds)[0]
    print(output[-6000:])  # shown when the test fails
    return process.returncode, output


@pytest.fixture
def train(assets: Path, cluster: str, tmp_path: Path) -> Callable[..., Run]:
    """Run `meds train` with overrides on the shared cluster, to the end."""

    def run(*overrides: str, method: str = "meds") -> Run:
        ended = finished(command(assets, tmp_path / "run", *overrides, method=method), cluster)
        assert ended.returncode == 0
        return Run(RunPaths(tmp_path / "run"), ended.stdout + ended.stderr)

    return run
