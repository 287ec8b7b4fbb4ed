"""The rules of docs/cluster-plan.md: the counts that a file leaves out, and the flags of each mode."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.config import ConfigError
from meds_openrlhf.placement.inventory import imagined_cluster
from meds_openrlhf.placement.plan import RoleRequest
from meds_openrlhf.placement.sizing import Sizing, mode_flags, require_batches, size
from tests.placement.clusters import node, recipe

SHARDS_AND_CONTROLLER = 9


def sized(cluster: str, mode: str = "auto", memory: float = 140.0, **changes: Any) -> Sizing:
    saved = changes.pop("saved", None)
    return size(recipe(**changes), mode, imagined_cluster(cluster, memory), SHARDS_AND_CONTROLLER, saved)


def counts(sizing: Sizing) -> tuple[int, int, int, int]:
    """Nodes and GPUs per node of the policy, engines and their tensor parallel size."""
    names = ("actor.num_nodes", "actor.num_gpus_per_node", "vllm.num_engines", "vllm.tensor_parallel_size")
    nodes, gpus, engines, tensor_parallel = (sizing.flags[name] for name in names)
    return nodes, gpus, engines, tensor_parallel


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        *[("1x8", (1, 4, 4, 1)), ("2x8", (1, 8, 8, 1)), ("4x8", (2, 8, 16, 1))],
        ("3x8", (1, 8, 16, 1)),  # whole nodes
        ("1x7", (1, 2, 5, 1)),  # 3 ranks do not divide the batch; what they leave generates
    ],
)
def test_split_gives_half_to_the_policy_and_the_rest_to_engines(cluster: str, expected: tuple) -> None:
    assert counts(sized(cluster, "split")) == expected
    asynchronous = sized(cluster, given={"train.async_enable": True})  # which `auto` splits
    assert (asynchronous.mode, counts(asynchronous)) == ("split", expected)
    assert "train.colocate_all" not in asynchronous.flags
    assert sized(cluster, "split", model=None).flags == sized(cluster, "split").flags  # needs no figures of the model


def test_split_gives_critic_and_reward_their_own_gpus_and_the_reference_the_policys() -> None:
    roles = ("policy", "engines", "reference", "critic", "reward")
    flags = sized("4x8", "split", roles=roles, hosts={"reference": "policy", "reward": "critic"}).flags
    sections = ("actor", "ref", "critic", "reward")
    assert {flags[f"{section}.num_nodes"] for section in sections} == {1}
    assert {flags[f"{section}.num_gpus_per_node"] for section in sections} == {8}
    assert flags["vllm.num_engines"] == 16
    assert flags["train.colocate_actor_ref"] is flags["train.colocate_critic_reward"] is True
    apart = sized("4x8", "split", roles=roles[:3]).flags
    assert (apart["actor.num_nodes"], apart["ref.num_nodes"], apart["vllm.num_engines"]) == (1, 1, 16)


def test_given_counts_are_kept() -> None:
    given = {"actor.num_nodes": 1, "actor.num_gpus_per_node": 4, "vllm.num_engines": 3}
    sizing = sized("1x8", "split", given=given)
    assert sizing.flags["vllm.tensor_parallel_size"] == 1
    assert not set(sizing.flags) & set(given)
    assert sized("2x8", "split", given={"vllm.num_engines": 12}).flags["actor.num_gpus_per_node"] == 4
    assert sized("2x8", "colocate", given={"vllm.num_engines": 4}).flags["actor.num_gpus_per_node"] == 4
    narrow = sized("4x8", "colocate", given={"actor.num_gpus_per_node": 4}).flags
    assert (narrow["actor.num_nodes"], narrow["vllm.num_engines"]) == (8, 32)
    both = sized("2x8", given={"actor.num_gpus_per_node": 8, "vllm.num_engines": 16})
    assert (both.mode, both.flags["actor.num_nodes"]) == ("colocate", 2)
    wide = {"vllm.tensor_parallel_size": 4}
    assert sized("1x8", "split", given=wide).flags["vllm.num_engines"] == 1
    assert sized("1x8", "colocate", given=wide).flags["vllm.num_engines"] == 2
    assert sized("3x6", "colocate", given=wide, train_batch=240, prompts=60).flags["actor.num_nodes"] == 3
    assert sized("1x8", "flags", train_batch=100, train_micro_batch=3).flags == {}


def test_ranks_divide_openrlhfs_batches_and_leave_cpus_for_the_memory() -> None:
    assert counts(sized("3x8", "colocate")) == (2, 8, 16, 1)  # 24 do not divide 256
    assert counts(sized("3x8", "colocate", train_batch=240, prompts=60)) == (3, 8, 24, 1)
    assert counts(sized("1x8", "colocate", train_batch=256, train_micro_batch=64)) == (1, 4, 4, 1)
    assert counts(sized("1x8", "colocate", prompts=1, samples=8, rollout_micro_batch=4)) == (1, 2, 2, 1)
    assert counts(sized("1x8", "colocate", duplicates=2, train_batch=4)) == (1, 8, 8, 1)
    nodes = [node("a", 8, 8), node("b", 8, 8)]
    assert counts(size(recipe(), "colocate", nodes, 5)) == (1, 8, 8, 1)  # 11 CPUs are left for GPUs
    assert counts(size(recipe(), "colocate", nodes, 9)) == (1, 4, 4, 1)


def test_a_refusal_names_the_flag_that_the_ranks_follow_from() -> None:
    requests = [RoleRequest("policy", 1, 6), RoleRequest("engines", 6, 1, "policy")]
    batches = r"8192 responses in micro-batches of 4, train.batch_size 256 in micro-batches of 1"
    rest = rf"and the batches \({batches}\) do not divide among them. Use 1, 2, 4, 8, 16, … 256 ranks.$"
    engines, default = "vllm.num_engines=6: makes", "actor.num_gpus_per_node: is not set, which makes"
    for makes, decided in ((engines, {"actor.num_nodes": 1}), (default, {})):
        with pytest.raises(ConfigError, match=f"^{makes} 6 policy ranks, {rest}"):
            require_batches(recipe(given={"vllm.num_engines": 6}), requests, decided)
    with pytest.raises(ConfigError, match="No number of ranks divides them; change the batch sizes"):
        require_batches(recipe(train_batch=100, train_micro_batch=3), requests, {})


def test_a_critic_with_more_ranks_than_the_policy_is_refused_with_batches_by_tokens() -> None:
    """OpenRLHF makes a batch for each policy rank, and could not give one to each critic rank."""
    requests = [RoleRequest("policy", 1, 2), RoleRequest("critic", 1, 4), RoleRequest("engines", 2, 1)]
    run = recipe(("policy", "engines", "critic"), dynamic=True, given={"critic.num_gpus_per_node": 4})
    with pytest.raises(ConfigError, match=r"num_gpus_per_node=4: makes 4 critic ranks, but .* policy ranks, 2\."):
        require_batches(run, requests, {})
    require_batches(replace(run, batching=replace(run.batching, dynamic=False)), requests, {})
    given = {"actor.num_nodes": 1, "actor.num_gpus_per_node": 1}
    for dynamic, ranks in ((True, 1), (False, 2)):  # counts that are left out fit
        flags = sized("1x8", "split", roles=("policy", "engines", "critic"), dynamic=dynamic, given=given).flags
        assert flags["critic.num_nodes"] * flags["critic.num_gpus_per_node"] == ranks


@pytest.mark.parametrize("mode", ["flags", "split", "colocate", "auto"])
def test_engines_are_as_wide_as_vllm_can_split_the_model(mode: str) -> None:
    with pytest.raises(ConfigError, match=r"_size=8: cannot split the 28 attention heads .* Use 1, 2, 4.$"):
        sized("4x8", mode, given={"vllm.tensor_parallel_size": 8})
    sized("4x8", mode, given={"vllm.tensor_parallel_size": 4})
    if mode == "split":
        assert sized("4x8", mode, model=None, given={"vllm.tensor_parallel_size": 8}).flags["actor.num_nodes"] == 2


@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 8)),
    mode=st.sampled_from(["split", "colocate"]),
    train_batch=st.sampled_from([16, 96, 250, 256]),
    memory=st.sampled_from([24.0, 80.0]),
)
def test_what_is_sized_fits(shape: tuple[int, int], mode: str, train_batch: int, memory: float) -> None:
    nodes = imagined_cluster(f"{shape[0]}x{shape[1]}", memory)
    run = recipe(train_batch=train_batch, prompts=train_batch, samples=4)
    nodes_used, gpus, engines, tensor_parallel = counts(size(run, mode, nodes, 9))
    assert nodes_used * gpus in run.batching.even_counts()
    if mode == "colocate":
        assert nodes_used * gpus == engines * tensor_parallel <= shape[0] * shape[1]
        assert gpus % tensor_parallel == 0
    elif shape[0] * shape[1] >= 2 * tensor_parallel:
        assert nodes_used * gpus + engines * tensor_parallel <= shape[0] * shape[1]


@pytest.mark.parametrize(
    ("mode", "named", "value", "given"),
    [
        *[("split", name, True, {}) for name in ("train.colocate_all", "vllm.enable_sleep")],
        *[(mode, "train.colocate_all", False, {}) for mode in ("colocate", "auto")],
        ("colocate", "train.async_enable", True, {}),
        ("auto", "vllm.enable_sleep", True, {"train.async_enable": True}),
    ],
)
def test_flags_that_contradict_the_mode_are_refused(mode: str, named: str, value: bool, given: dict) -> None:
    given = {**given, named: value}
    with pytest.raises(ConfigError, match=f"^{named}={value}: contradicts meds.placement.mode={mode}. Leave it out"):
        mode_flags(mode, given)
    assert mode_flags("flags", given) == {}


def test_a_users_flag_wins_over_the_modes() -> None:
    sharing = {"train.colocate_all": True, "train.async_enable": True}  # the models of DeepSpeed may
    assert "train.colocate_all" not in mode_flags("split", sharing)
    given = {"vllm.gpu_memory_utilization": 0.5, "vllm.enable_sleep": False, "ds.enable_sleep": None}
    colocated = {"train.colocate_all": True, "ds.enable_sleep": True}
    assert mode_flags("colocate", given) == colocated
    for unable in ({"actor.optim": "muon"}, {"ds.zero_stage": 0}):
        assert mode_flags("colocate", {**given, **unable}) == {**colocated, "ds.enable_sleep": False}
