"""Every shipped configuration has a plan on clusters of all sizes, which OpenRLHF's own checks accept."""

import io
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError, load_config
from meds_openrlhf.placement.batching import Batching
from meds_openrlhf.placement.inventory import imagined_cluster
from meds_openrlhf.placement.report import PlanReport
from meds_openrlhf.runtime import devices
from meds_openrlhf.training.start import placing
from meds_openrlhf.training.start.prepare import plan_run
from tests.placement.clusters import found_shape, request_of

REPOSITORY = Path(__file__).parents[2]
CONFIGS = sorted(str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob("configs/*/*.yaml"))
MADE_HERE = ("configs/cpu/", "configs/smollm2-135m/")  # whose policies are no model of the hub
ON_GPUS = [config for config in CONFIGS if not config.startswith(MADE_HERE)]


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(placing, "find_shape", found_shape)


def planned(config: str, cluster: str, *overrides: str) -> PlanReport:
    with redirect_stdout(io.StringIO()):  # of OpenRLHF's parser
        return plan_run(load_config(config, overrides), imagined_cluster(cluster, 140.0))


def counts(report: PlanReport) -> tuple[int, int, int, int]:
    """Nodes and GPUs per node of the policy, engines and their tensor parallel size."""
    policy, engines = request_of(report.plan, "policy"), request_of(report.plan, "engines")
    return policy.blocks, policy.block_gpus, engines.blocks, engines.block_gpus


@pytest.mark.parametrize(
    ("cluster", "expected", "half"),
    [("1x8", (1, 8, 8, 1), (1, 4, 4, 1)), ("32x8", (32, 8, 256, 1), (16, 8, 128, 1))],
)
@pytest.mark.parametrize("config", ON_GPUS)
def test_shipped_plans_share_all_gpus_or_halve_them(
    config: str, cluster: str, expected: tuple[int, ...], half: tuple[int, ...]
) -> None:
    report = planned(config, cluster)
    assert (report.mode, counts(report)) == ("colocate", expected)
    assert report.overfull == []
    assert report.plan.gpus == expected[0] * expected[1]
    assert expected[0] * expected[1] in Batching.of(report.args).even_counts()
    assert ("reference" in report.plan.groups[0].roles) == ("grpo" in config)
    report = planned(config, cluster, "--train.async_enable")
    assert (report.mode, counts(report), report.overfull) == ("split", half, [])


@pytest.mark.parametrize("config", ON_GPUS)
def test_one_gpu_holds_the_small_model_alone(config: str) -> None:
    report = planned(config, "1x1")
    assert (report.mode, counts(report)) == ("colocate", (1, 1, 1, 1))
    if "1.7b" in config:
        assert report.overfull == []
    else:
        (line,) = report.overfull
        assert line.startswith("policy + engines")
        assert " GB of 140 GB. Lower train.max_tokens_per_gpu, rollout.max_tokens_per_gpu, vllm.gpu" in line
    with pytest.raises(ConfigError, match=r"^cluster: has no room for 1 GPU for policy.*, 1 GPU for engines and 11"):
        planned(config, "1x1", "--train.async_enable")


@pytest.mark.parametrize("config", [config for config in CONFIGS if config.startswith("configs/cpu/")])
def test_the_demo_says_its_counts(config: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "has_cuda", lambda: False)
    model = f"--actor.model_name_or_path={tmp_path}"  # the demo makes it
    report = planned(config, f"1x{devices.MADE_UP_GPUS}", model)
    assert (report.mode, counts(report)) == ("flags", (1, 1, 1, 1))
