"""Plans become Ray placement groups, on a cluster with made-up GPUs."""

from collections.abc import Iterator

import pytest
import ray

from meds_openrlhf.config import ConfigError
from meds_openrlhf.placement.groups import inventory, release, reserve, shard_options
from meds_openrlhf.placement.plan import RoleRequest, make_plan, require_fit

PLAN = make_plan([RoleRequest("policy", 2), RoleRequest("engines", 2, "policy")], memory_shards=2, controller_cpus=1)


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=5, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_every_role_gets_its_group_and_gives_it_back() -> None:
    require_fit(PLAN, inventory())
    groups = reserve(PLAN, timeout_seconds=20)
    try:
        assert set(groups) == {"policy", "engines", "memory"}
        assert groups["engines"] is groups["policy"]
        assert groups["policy"].bundle_specs == [{"CPU": 1.0, "GPU": 1.0}] * 2
        assert ray.available_resources().get("GPU", 0) == 0
        options = shard_options(groups["memory"], 2)
        assert [one["scheduling_strategy"].placement_group_bundle_index for one in options] == [0, 1]
    finally:
        release(groups)
    again = reserve(PLAN, timeout_seconds=20)  # everything is free again
    release(again)


def test_what_cannot_be_placed_in_time_is_said_and_released() -> None:
    held = reserve(PLAN, timeout_seconds=20)
    try:
        with pytest.raises(
            ConfigError, match=r"could not place policy \+ engines: 2 x 1 GPU \+ 1 CPU; free now are 0 GPUs"
        ):
            reserve(PLAN, timeout_seconds=1)
    finally:
        release(held)
    release(reserve(PLAN, timeout_seconds=20))
