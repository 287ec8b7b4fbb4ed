"""What the end-to-end tests share: one small warm-started policy, one Ray cluster with made-up GPUs, one way to run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog
from tests.ports import free_ports

MEDS = [sys.executable, "-m", "meds_openrlhf.cli.main"]
REPOSITORY = Path(__file__).parents[2]
STEPS = 8  # 16 prompts, 4 a step, 2 episodes
SAMPLES = 32  # a step's: 8 responses to each of its prompts


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(420))


@dataclass(frozen=True)
class Run:
    """A finished `meds train`."""

    paths: RunPaths
    output: str

    @property
    def steps(self) -> list[dict[str, float]]:
        return StepLog(self.paths.metrics).read()


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The arithmetic task with a policy that was trained just long enough to make mistakes in boxes."""
    from meds_openrlhf.data.warm_start import WarmStartRecipe, prepare

    folder = tmp_path_factory.mktemp("assets") / "arithmetic"
    prepare(folder, recipe=WarmStartRecipe(steps=160, layers=4, train_problems=16, eval_problems=8))
    return folder


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """A Ray cluster of this machine with eight made-up GPUs; its address."""
    port = free_ports(1)[0]
    head = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    head += ["--num-gpus=8", "--num-cpus=32", "--include-dashboard=false", "--disable-usage-stats"]
    process = subprocess.Popen(head, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for_port(port)
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def wait_for_port(port: int, seconds: float = 60) -> None:
    import time

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens on port {port}")


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


@pytest.fixture
def train(assets: Path, cluster: str, tmp_path: Path) -> Callable[..., Run]:
    """Run `meds train` with overrides on the shared cluster, to the end."""

    def run(*overrides: str, method: str = "meds") -> Run:
        finished = subprocess.run(
            command(assets, tmp_path / "run", *overrides, method=method),
            env={**os.environ, "RAY_ADDRESS": cluster},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=400,
        )
        print(finished.stdout[-6000:])  # shown when the test fails
        assert finished.returncode == 0
        return Run(RunPaths(tmp_path / "run"), finished.stdout)

    return run
