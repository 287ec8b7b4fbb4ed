"""Plans as `meds plan` prints them, and what the demo asks for on machines with and without a GPU."""

import json
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace

import pytest
import ray

from meds_openrlhf.cli import train
from meds_openrlhf.cli.main import main
from meds_openrlhf.config import RunConfig
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.runtime import devices
from meds_openrlhf.step_log import StepLog
from meds_openrlhf.training.start import placing
from tests.cli.conftest import Meds
from tests.failing import failing
from tests.placement.clusters import found_shape

REPOSITORY = Path(__file__).parents[2]
CONFIG = "configs/qwen2.5-math-7b/meds.yaml"
PLANS = REPOSITORY / "tests/placement/plans"


@pytest.fixture(autouse=True)
def _configs(meds: Meds, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that nobody else writes to."""
    Path("configs").symlink_to(REPOSITORY / "configs")
    monkeypatch.setattr(placing, "find_shape", found_shape)


@pytest.mark.parametrize("cluster", ["1x8", "4x8", "32x8"])
def test_the_shipped_recipe_on_clusters_of_all_sizes(cluster: str, meds: Meds) -> None:
    printed = meds.output("plan", CONFIG, "--cluster", cluster)
    assert printed == (PLANS / f"qwen2.5-math-7b-{cluster}.txt").read_text()
    assert max(map(len, printed.splitlines())) <= 120
    assert not ray.is_initialized()
    assert [path.name for path in Path().iterdir()] == ["configs"]
    page = (REPOSITORY / "docs/cluster-plan.md").read_text()
    assert (indent(f"$ meds plan {CONFIG} --cluster {cluster}\n{printed}", "    ") in page) == (cluster == "4x8")


def test_a_cluster_that_is_too_small_says_what_lacks(meds: Meds) -> None:
    counts = ["--actor.num_nodes=4", "--actor.num_gpus_per_node=8", "--meds.placement.mode=colocate"]
    code, _, error = meds("plan", CONFIG, "--cluster", "4x8", "--cpus", "9", *counts)
    assert code == 1
    assert error.startswith(f"meds: {CONFIG} does not fit: the cluster has no room for 4 x 8 GPUs on one node ")
    assert "free: 4 nodes with 8 GPUs and 9 CPUs each. Lower meds.memory.shards or add nodes. To run on" in error
    _, printed, _ = meds("plan", CONFIG, "--cluster", "4x8", "--cpus", "9", "--json", *counts)
    assert [problem.partition(":")[0] for problem in json.loads(printed)["problems"]] == ["does not fit"]
    meds.output("plan", CONFIG, "--cluster", "4x8", *counts)
    code, printed, _ = meds("plan", CONFIG, "--cluster=1x8", "--gpu-memory=16", "--meds.placement.mode=colocate")
    assert code == 1
    assert "too full  policy + engines on a GPU: about 63 GB of 16 GB" in printed


def test_a_plan_for_programs(meds: Meds) -> None:
    plan = json.loads(meds.output("plan", CONFIG, "--cluster", "1x8", "--json"))
    assert plan["problems"] == []
    assert plan["gpu_memory_gb"] == 140
    assert plan["roles"]["policy"]["shares_with"] == ["engines"]
    assert sum(plan["roles"]["policy"]["gpus"].values()) == plan["gpus"] == 8
    assert 0 < plan["roles"]["policy"]["gb_per_gpu"] < 140
    code, printed, _ = meds("plan", CONFIG, "--cluster=1x8", "--gpu-memory=16", "--json")
    assert code == 1
    assert any("on a GPU: about" in line for line in json.loads(printed)["problems"])
    code, printed, _ = meds("plan", CONFIG, "--cluster=1x8", "--actor.model_name_or_path=some/model")
    assert code == 1  # whether it fits is not known
    assert "unknown: some/model: not readable" in printed


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        *[(f"{flag}=8", f"{flag}=8") for flag in ("--cluster", "--cpus")],
        ("--meds.placement.mode=split --train.colocate_all", "train.colocate_all=True"),
        ("--meds.placement.mode=flags", "vllm.num_engines"),
        *[(f"--{setting}", setting) for setting in ("ckpt.max_num=1", "vllm.num_engine=1")],
        *[(f"--{setting}", setting) for setting in ("vllm.tensor_parallel_size=8", "actor.model_name_or_path=./qwen")],
    ],
)
def test_a_wrong_setting_is_named(words: str, setting: str, meds: Meds) -> None:
    cluster = [] if words.startswith(("--cluster", "--cpus")) else ["--cluster=4x8"]
    assert meds.refusal("plan", CONFIG, *words.split(), *cluster).startswith(f"{setting}: ")


def test_without_a_cluster_there_has_to_be_one_and_a_model(meds: Meds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", failing(ConnectionError("Could not find any running Ray instance.")))
    assert meds.refusal("plan", CONFIG).startswith("RAY_ADDRESS: ")
    Path("run.yaml").write_text("meds: {run_dir: runs/x}\nvllm.num_engines: 1\n")
    assert meds.refusal("plan", "run.yaml", "--cluster", "1x8").startswith("actor.model_name_or_path: ")


@pytest.mark.parametrize(("has_gpu", "mode"), [(True, "auto"), (False, "flags")])
def test_one_gpu_is_enough(has_gpu: bool, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Exception):
        pass

    def start(config: RunConfig, **_options: bool) -> None:
        assert config.meds.placement.mode == mode
        raise Started

    monkeypatch.setattr(devices, "has_cuda", lambda: has_gpu)
    monkeypatch.setattr(train, "make_arithmetic", lambda _folder: SimpleNamespace())
    monkeypatch.setattr(train, "train", start)
    with pytest.raises(Started):
        main(["demo"])


def test_the_summary_compares_first_and_last_steps(tmp_path: Path) -> None:
    assert train.summarize(RunPaths(tmp_path)) == f"{tmp_path}: no step was finished"
    log = StepLog(tmp_path / "metrics.jsonl")
    for step in range(1, 7):
        metrics = {"rollout/reward_mean": step / 10, "meds/rows": 5.0, "meds/prompts": 2.0, "meds/clusters": 1.0}
        log.append(step, {**metrics, "meds/bytes": 2e6, **({"meds/eigen_ratio_all": 0.5} if step > 5 else {})})
    text = train.summarize(RunPaths(tmp_path))
    assert "                        first 5  last 5" in text
    assert "reward, raw               0.300   0.400" in text
    assert "top-1 eigen ratio, all       --   0.500" in text
    assert "memory   5 rollouts of 2 prompts, 1 clusters, 2.0 MB" in text
