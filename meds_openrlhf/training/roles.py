"""OpenRLHF's models as roles: how many GPUs each has, with which role it shares them, and which ranks share samples."""

from __future__ import annotations

from types import SimpleNamespace

from meds_openrlhf.placement.plan import RoleRequest


def role_requests(args: SimpleNamespace) -> list[RoleRequest]:
    """Return the resources that OpenRLHF's arguments request, and which roles share GPUs."""
    all_together = args.train.colocate_all
    with_policy = "policy" if all_together else None
    # Engines of an asynchronous run generate while the policy trains, so they never share its GPUs.
    engines_with = "policy" if all_together and not args.train.async_enable else None
    requests = [
        RoleRequest("policy", args.actor.num_nodes, args.actor.num_gpus_per_node),
        RoleRequest("engines", args.vllm.num_engines or 0, args.vllm.tensor_parallel_size, engines_with),
    ]
    if args.algo.kl.init_coef > 0:
        shares = "policy" if all_together or args.train.colocate_actor_ref else None
        requests.append(RoleRequest("reference", args.ref.num_nodes, args.ref.num_gpus_per_node, shares))
    if args.critic.model_name_or_path:
        requests.append(RoleRequest("critic", args.critic.num_nodes, args.critic.num_gpus_per_node, with_policy))
    if not args.reward.remote_url:
        shares = with_policy or (
            "critic" if args.critic.model_name_or_path and args.train.colocate_critic_reward else None
        )
        requests.append(RoleRequest("reward", args.reward.num_nodes, args.reward.num_gpus_per_node, shares))
    return requests


def duplicates(args: SimpleNamespace) -> int:
    """Return how many ranks get the same samples: those of ring attention and of DeepSpeed's tensor parallelism."""
    count: int = args.ds.ring_attn_size * args.ds.tensor_parallel_size
    return count


def data_parallel_ranks(args: SimpleNamespace) -> int:
    """Return the number of policy ranks that get different samples."""
    ranks: int = args.actor.num_nodes * args.actor.num_gpus_per_node
    return ranks // duplicates(args)
