"""What the end-to-end tests share: one small warm-started policy, one Ray cluster with made-up GPUs, one way to run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meds_openrlhf.paths import RunPaths
from tests.e2e.ray_head import BIN, RayHead, ray_head
from tests.e2e.runs import Run

MEDS = [sys.executable, "-m", "meds_openrlhf.cli.main"]
REPOSITORY = Path(__file__).parents[2]
# As long as Weights & Biases wants it, and such that no log holds it by chance.
NODE_KEY = f"{'keyofthenodes':x<40}"

# A job's working folder may bring a script, which then stands in for the training: manners need no model.
STAND_IN = f"""#!/bin/sh
if [ -f script.sh ]; then exec sh ./script.sh "$@"; fi
exec {BIN}/meds "$@"
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(900))  # for hangs; machines differ in speed


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The arithmetic task with a policy that was trained just long enough to make mistakes in boxes."""
    from meds_openrlhf.arithmetic.warm_start import WarmStartRecipe, prepare

    folder = tmp_path_factory.mktemp("assets") / "arithmetic"
    prepare(folder, recipe=WarmStartRecipe(steps=160, layers=4, train_problems=16, eval_problems=8))
    return folder


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    """A Ray cluster of this machine with eight made-up GPUs and a dashboard; its nodes have a key for W&B."""
    commands = tmp_path_factory.mktemp("commands")
    (commands / "meds").write_text(STAND_IN)
    (commands / "meds").chmod(0o755)
    with ray_head(f"{commands}:{BIN}:{os.environ['PATH']}", WANDB_API_KEY=NODE_KEY, WANDB_MODE="offline") as head:
        yield head


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


def start(assets: Path, run_dir: Path, *overrides: str, method: str = "meds", **environment: str) -> subprocess.Popen:
    """`meds train` with a Ray cluster of its own, as on a machine where it is the only job."""
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.Popen(
        command(assets, run_dir, *overrides, method=method),
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


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
        )
        print(finished.stdout[-6000:])  # shown when the test fails
        assert finished.returncode == 0
        return Run(RunPaths(tmp_path / "run"), finished.stdout)

    return run
