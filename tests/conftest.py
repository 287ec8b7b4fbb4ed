"""Settings of all tests, and the Ray cluster that those of them share which need one."""

import os
import re
import signal
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.processes import free_ports, has_a_node, listens, ray_head_command, running

# No test is about time, and a busy machine is no failure.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A shell's background job ignores SIGINT, and so would every program that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).parents[1]
# End-to-end tests with processes of their own, or so many that they fill a second process; the others share one head.
ALONE = (
    "test_staying_alive.py", "test_submit.py", "test_bad_input.py", "test_eval_checkpoints.py", "test_slurm.py",
    "test_judge.py",
)  # fmt: skip
FIRST = ("head", "tests/e2e/test_staying_alive.py", "tests/e2e/test_submit.py", "ray")

# What an extra installs, or Python from 3.11 on: with --base, a test that imports one of these is skipped. Any other
# missing module is an error.
BEYOND_BASE = (
    "datasets", "deepspeed", "hdbscan", "huggingface_hub", "latex2sympy2_extended", "math_verify", "matplotlib",
    "mkdocs", "mlflow", "numba", "openai", "openrlhf", "pydantic", "ray", "reasoning_gym", "requests", "scipy",
    "sklearn", "swanlab", "tensorboard", "tokenizers", "tomllib", "torch", "transformers", "vllm", "wandb",
    "wandb_workspaces", "wrapt",
)  # fmt: skip
MISSING = re.compile(rf"No module named '({'|'.join(BEYOND_BASE)})[.']")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--base", action="store_true", help="skip tests of what the base installation has no packages for")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Rooms that are about the packages of extras alone."""
    rooms = [REPOSITORY / "tests" / name for name in ("e2e", "gpu", "tracking", "training")]
    return True if config.getoption("--base") and collection_path in rooms else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file that imports what a base installation lacks is skipped, and says so."""
    report = yield
    missing = MISSING.search(str(report.longrepr)) if report.failed and collector.config.getoption("--base") else None
    if missing:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: needs {missing[1]}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """So is a test that imports it while it runs."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if item.config.getoption("--base") and MISSING.search(str(error)):
            pytest.skip(f"needs {error.name}")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Or whose fixtures do."""
    return (yield from pytest_runtest_call(item))


class Groups(LoadScopeScheduling):
    """What is shared is made once: tests of one group run in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


@cache
def group_of(file: str) -> str:
    """Tests of one file are a group; so are all that share a Ray cluster."""
    path = REPOSITORY / file
    if path.parent.name == "e2e" and path.name not in ALONE:
        return "head"
    return "ray" if "ray_cluster" in path.read_text() else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Groups:
    return Groups(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The groups that take longest come first; with --base, what needs more is skipped."""
    for item in items:
        for mark in item.iter_markers("needs") if config.getoption("--base") else ():
            item.add_marker(pytest.mark.skip(f"needs {mark.args[0]}"))
    rank = {group: place for place, group in enumerate(FIRST)}
    items.sort(key=lambda item: rank.get(group_of(item.nodeid.partition("::")[0]), len(FIRST)))


@pytest.fixture(scope="session", autouse=True)
def nothing_is_compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A run without CUDA compiles nothing of DeepSpeed's: on a new machine nobody waits for whoever compiles first."""
    folder = tmp_path_factory.mktemp("torch-extensions")
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    yield
    compiled = sorted(path.name for path in folder.iterdir())
    assert compiled == [] or os.path.exists("/dev/nvidiactl"), f"compiled: {compiled}"


@dataclass(frozen=True)
class RayCluster:
    """A head with eight made-up GPUs and without a dashboard."""

    address: str
    metrics: str  # where Prometheus would read its gauges


@pytest.fixture(scope="session")
def ray_head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A cluster of this machine, for the whole session."""
    port, metrics = free_ports(2)
    command = [*ray_head_command(port), "--num-cpus=16", "--num-gpus=8", "--include-dashboard=false"]
    command += [f"--metrics-export-port={metrics}", '--system-config={"metrics_report_interval_ms": 500}']
    # Ray would start a process for each CPU as soon as anybody connects.
    environment = {**os.environ, "RAY_enable_open_telemetry": "true", "RAY_prestart_worker_first_driver": "false"}
    log = tmp_path_factory.mktemp("ray-head") / "log"
    with running(command, log, lambda: listens(port) and has_a_node(port), environment, starts=3):
        yield RayCluster(f"127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics")


@pytest.fixture(scope="module")
def ray_cluster(ray_head: RayCluster) -> Iterator[RayCluster]:
    """The module is connected to the cluster; what it has started there ends with it."""
    import ray

    ray.init(address=ray_head.address, log_to_driver=False, logging_level="ERROR")
    yield ray_head
    ray.shutdown()
