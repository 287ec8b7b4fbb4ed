"""The roles of a run: how many GPUs OpenRLHF's arguments request for each of them, and which share GPUs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

# The sections of OpenRLHF's flags that count the ranks of the models that DeepSpeed runs.
SECTIONS = {"policy": "actor", "reference": "ref", "critic": "critic", "reward": "reward"}
ENGINES, TENSOR_PARALLEL = "vllm.num_engines", "vllm.tensor_parallel_size"
# All flags that count GPUs.
COUNTS = (
    *(f"{section}.{count}" for section in SECTIONS.values() for count in ("num_nodes", "num_gpus_per_node")),
    *(ENGINES, TENSOR_PARALLEL),
)


def value_of(args: SimpleNamespace, flag: str) -> Any:
    """Return the value of a flag such as ``actor.num_nodes``."""
    section, _, name = flag.partition(".")
    return getattr(getattr(args, section), name)


@dataclass(frozen=True)
class RoleRequest:
    """A role's request for equal blocks of GPUs, each on one node, and the role whose GPUs it shares, if any."""

    role: str
    blocks: int
    block_gpus: int
    shares_with: str | None = None

    @property
    def gpus(self) -> int:
        """The total number of GPUs."""
        return self.blocks * self.block_gpus

    @property
    def flag(self) -> str:
        """The flag that a user lowers to make the role smaller."""
        return ENGINES if self.role == "engines" else f"{SECTIONS[self.role]}.num_gpus_per_node"


def role_requests(args: SimpleNamespace) -> list[RoleRequest]:
    """Return what each role of a run requests; engines whose number is not set yet request none."""
    sections = {"policy": args.actor, "engines": args.vllm}
    if args.algo.kl.init_coef > 0:
        sections["reference"] = args.ref
    if args.algo.advantage.estimator == "gae":  # OpenRLHF makes a critic for it, and for no other
        sections["critic"] = args.critic
    if not (args.reward.remote_url or args.train.agent_func_path):
        sections["reward"] = args.reward
    shared = _hosts(args, sections)

    def request(role: str, section: SimpleNamespace) -> RoleRequest:
        if role == "engines":
            return RoleRequest(role, section.num_engines or 0, section.tensor_parallel_size, shared.get(role))
        return RoleRequest(role, section.num_nodes, section.num_gpus_per_node, shared.get(role))

    return [request(role, section) for role, section in sections.items()]


def _hosts(args: SimpleNamespace, roles: Collection[str]) -> dict[str, str]:
    """Return for every role without GPUs of its own the role whose GPUs it uses."""
    if args.train.colocate_all:
        # Engines of an asynchronous run generate while the policy trains, so they never share its GPUs.
        apart = {"policy", "engines"} if args.train.async_enable else {"policy"}
        return {role: "policy" for role in roles if role not in apart}
    pairs = {
        "reference": ("policy", args.train.colocate_actor_ref),
        "reward": ("critic", args.train.colocate_critic_reward),
    }
    return {role: host for role, (host, shares) in pairs.items() if shares and role in roles and host in roles}


def engines_share_gpus(args: SimpleNamespace) -> bool:
    """Return whether the policy's ranks hand their weights over to engines on the same GPUs."""
    return bool(args.train.colocate_all and not args.train.async_enable)


def grouped(roles: Collection[str], hosts: Mapping[str, str]) -> list[list[str]]:
    """Return the roles that share GPUs, each group beginning with the role whose GPUs they are."""
    return [[role, *(guest for guest in roles if hosts.get(guest) == role)] for role in roles if role not in hosts]
