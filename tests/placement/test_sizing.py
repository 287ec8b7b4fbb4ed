"""The rules of docs/cluster-plan.md: the counts that a file leaves out, and the flags of each mode."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.config import ConfigError
from meds_openrlhf.placement.batching import Batching
from meds_openrlhf.placement.inventory import Node, imagined_cluster
from meds_openrlhf.placement.roles import role_requests
from meds_openrlhf.placement.sizing import mode_flags, require_batches, require_saved_ranks, size
from tests.placement.clusters import arguments, node

SHARDS = 8
Counts = dict[str, int]


def sized(
    cluster: str | list[Node], mode: str, *roles: str, given: dict[str, Any] | None = None, **flags: Any
) -> Counts:
    """The counts that are not ``given``; ``flags`` are those that the mode or the user sets, but no counts."""
    nodes = imagined_cluster(cluster) if isinstance(cluster, str) else cluster
    shards, saved = flags.pop("shards", SHARDS), flags.pop("saved", {})
    known = {name.replace("__", "."): value for name, value in flags.items()} | (given or {})
    typed = {name.replace(".", "__"): value for name, value in (given or {}).items()}
    args = arguments(*roles, **{"train__colocate_all": mode == "colocate", **flags, **typed})
    return size(args, known, mode, nodes, shards, saved)


def counts(found: Counts) -> tuple[int, int, int, int]:
    """Nodes and GPUs per node of the policy, engines and their tensor parallel size."""
    names = ("actor.num_nodes", "actor.num_gpus_per_node", "vllm.num_engines", "vllm.tensor_parallel_size")
    nodes, gpus, engines, tensor_parallel = (found[name] for name in names)
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
    assert counts(sized(cluster, "auto", train__async_enable=True)) == expected  # which `auto` splits


def test_split_gives_critic_and_reward_model_their_own_gpus() -> None:
    shared = {"train__colocate_actor_ref": True, "train__colocate_critic_reward": True}
    found = sized("4x8", "split", "reference", "critic", "reward", **shared)
    sections = ("actor", "ref", "critic", "reward")
    assert {found[f"{section}.num_nodes"] for section in sections} == {1}
    assert {found[f"{section}.num_gpus_per_node"] for section in sections} == {8}
    assert found["vllm.num_engines"] == 16
    apart = sized("4x8", "split", "reference")
    assert (apart["actor.num_nodes"], apart["ref.num_nodes"], apart["vllm.num_engines"]) == (1, 1, 16)


def test_given_counts_are_kept() -> None:
    given = {"actor.num_nodes": 1, "actor.num_gpus_per_node": 4, "vllm.num_engines": 3}
    assert sized("1x8", "split", given=given) == {"vllm.tensor_parallel_size": 1}
    assert sized("2x8", "split", given={"vllm.num_engines": 12})["actor.num_gpus_per_node"] == 4
    assert sized("2x8", "colocate", given={"vllm.num_engines": 4})["actor.num_gpus_per_node"] == 4
    narrow = sized("4x8", "colocate", given={"actor.num_gpus_per_node": 4})
    assert (narrow["actor.num_nodes"], narrow["vllm.num_engines"]) == (8, 32)
    both = sized("2x8", "auto", given={"actor.num_gpus_per_node": 8, "vllm.num_engines": 16})
    assert both["actor.num_nodes"] == 2
    wide = {"vllm.tensor_parallel_size": 4}
    assert sized("1x8", "split", given=wide)["vllm.num_engines"] == 1
    assert sized("1x8", "colocate", given=wide)["vllm.num_engines"] == 2
    even = {"train__batch_size": 240, "rollout__batch_size": 60}
    assert sized("3x6", "colocate", given=wide, **even)["actor.num_nodes"] == 3
    assert sized("1x8", "flags", train__batch_size=100, train__micro_batch_size=3) == {}


def test_ranks_divide_openrlhfs_batches_and_leave_cpus_for_the_memory() -> None:
    assert counts(sized("3x8", "colocate")) == (2, 8, 16, 1)  # 24 do not divide 256
    even = {"train__batch_size": 240, "rollout__batch_size": 60}
    assert counts(sized("3x8", "colocate", **even)) == (3, 8, 24, 1)
    assert counts(sized("1x8", "colocate", train__micro_batch_size=64)) == (1, 4, 4, 1)
    few = {"rollout__batch_size": 1, "rollout__n_samples_per_prompt": 8}
    assert counts(sized("1x8", "colocate", **few)) == (1, 2, 2, 1)
    assert counts(sized("1x8", "colocate", ds__ring_attn_size=2, train__batch_size=4)) == (1, 8, 8, 1)
    nodes = [node("a", 8, 8), node("b", 8, 8)]
    assert counts(sized(nodes, "colocate", shards=4)) == (1, 8, 8, 1)  # 11 CPUs are left for GPUs
    assert counts(sized(nodes, "colocate", shards=8)) == (1, 4, 4, 1)


def test_what_others_use_counts_as_well() -> None:
    busy = [node("a", 8, 128, free_gpus=3, free_cpus=20)]
    assert counts(sized(busy, "colocate")) == (1, 8, 8, 1)


def test_resumed_runs_keep_ranks_and_fit_their_engines() -> None:
    assert counts(sized("4x8", "colocate", saved={"policy": 16})) == (2, 8, 16, 1)
    assert counts(sized("4x8", "split", saved={"policy": 8})) == (1, 8, 24, 1)
    assert counts(sized("3x8", "split", saved={"policy": 8})) == (1, 8, 16, 1)  # of which one was lost


def test_a_refusal_names_the_flag_that_the_ranks_follow_from() -> None:
    six = {"actor__num_gpus_per_node": 6, "vllm__num_engines": 6, "train__colocate_all": True}
    batches = r"8192 responses in micro-batches of 4, train.batch_size 256 in micro-batches of 1"
    rest = rf"and the batches \({batches}\) do not divide among them. Use 1, 2, 4, 8, 16, … 256 ranks.$"
    engines, default = "vllm.num_engines=6: makes", "actor.num_gpus_per_node: is not set, which makes"
    for makes, decided in ((engines, {"actor.num_nodes": 1}), (default, {})):
        with pytest.raises(ConfigError, match=f"^{makes} 6 policy ranks, {rest}"):
            require_batches(arguments(**six), {"vllm.num_engines": 6}, decided)
    with pytest.raises(ConfigError, match="No number of ranks divides them; change the batch sizes"):
        require_batches(arguments(**six, train__batch_size=100, train__micro_batch_size=3), {}, {})


def test_a_checkpoint_is_loaded_by_as_many_ranks_as_saved_it() -> None:
    requests = role_requests(arguments(actor__num_gpus_per_node=8))
    require_saved_ranks(requests, {"policy": 8})
    with pytest.raises(
        ConfigError,
        match=r"^actor.num_gpus_per_node=8: makes 8 policy ranks, but 16 ranks saved the checkpoint .* make 16 ranks.$",
    ):
        require_saved_ranks(requests, {"policy": 16})


def test_critic_with_more_ranks_is_refused_with_token_batches() -> None:
    """OpenRLHF makes a batch for each policy rank, and could not give one to each critic rank."""
    ranks = {"actor__num_gpus_per_node": 2, "critic__num_gpus_per_node": 4}
    by_tokens = arguments("critic", train__dynamic_batch_enable=True, **ranks)
    with pytest.raises(ConfigError, match=r"num_gpus_per_node=4: makes 4 critic ranks, but .* policy ranks, 2\."):
        require_batches(by_tokens, {"critic.num_gpus_per_node": 4}, {})
    require_batches(arguments("critic", **ranks), {}, {})
    given = {"actor.num_nodes": 1, "actor.num_gpus_per_node": 1}
    for dynamic, count in ((True, 1), (False, 2)):  # counts that are left out fit
        found = sized("1x8", "split", "critic", given=given, train__dynamic_batch_enable=dynamic)
        assert found["critic.num_nodes"] * found["critic.num_gpus_per_node"] == count


@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 8)),
    mode=st.sampled_from(["split", "colocate"]),
    train_batch=st.sampled_from([16, 96, 250, 256]),
)
def test_what_is_sized_fits(shape: tuple[int, int], mode: str, train_batch: int) -> None:
    sizes = {"train__batch_size": train_batch, "rollout__batch_size": train_batch, "rollout__n_samples_per_prompt": 4}
    found = sized(f"{shape[0]}x{shape[1]}", mode, **sizes)
    nodes_used, gpus, engines, tensor_parallel = counts(found)
    assert nodes_used * gpus in Batching.of(arguments(**sizes)).even_counts()
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
    assert "train.colocate_all" not in mode_flags("auto", {"train.async_enable": True})
    sharing = {"train.colocate_actor_ref": True, "train.colocate_critic_reward": True}
    assert mode_flags("split", {}) == sharing
    for unable in ({"actor.optim": "muon"}, {"ds.zero_stage": 0}):
        assert mode_flags("colocate", {**given, **unable}) == {**colocated, "ds.enable_sleep": False}
