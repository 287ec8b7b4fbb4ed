"""A plan with its memory estimate: the page of `meds plan` and the warnings of `meds train`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from textwrap import indent
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.placement.batching import Batching, listed
from meds_openrlhf.placement.engine_limits import EngineLimits
from meds_openrlhf.placement.inventory import GB, Node, describe_nodes, names_of
from meds_openrlhf.placement.memory_estimate import Footprint, footprints, together
from meds_openrlhf.placement.model_shape import FoundShape
from meds_openrlhf.placement.plan import Group, Plan
from meds_openrlhf.placement.roles import RoleRequest
from meds_openrlhf.terminal import aligned, counted

LETTERS = {"policy": "P", "engines": "E", "reference": "R", "critic": "C", "reward": "W"}
FREE, IN_USE = "·", "x"
FEW = 4  # responses of a mini-batch for a rank: with fewer, most ranks wait


@dataclass(frozen=True)
class PlanReport:
    """A plan with each role's footprint, or the reason why it is `unknown`, and the limits of an engine."""

    plan: Plan
    mode: str
    args: SimpleNamespace  # OpenRLHF's, with all counts
    models: Mapping[str, FoundShape]  # by role
    limits: EngineLimits

    @cached_property
    def unknown(self) -> str:
        """Why there are no footprints; empty if there are."""
        models = dict.fromkeys(self.models.values())
        unknown = "; ".join(f"{found.name}: {found.unknown}" for found in models if found.shape is None)
        return unknown or ("Ray names no known accelerator type" if self.plan.gpu_memory_gb is None else "")

    @cached_property
    def footprints(self) -> Mapping[str, Footprint]:
        """The memory of a rank of each role."""
        memory, members = self.plan.gpu_memory_gb, [member for group in self.plan.groups for member in group.members]
        ranks = {member.role: member.gpus for member in members}
        return {} if memory is None else footprints(self.args, self.models, ranks, memory * GB)

    def peak_gb(self, group: Group) -> float | None:
        """Return the peak memory of a group's roles on one GPU in GB; one role works while the others rest."""
        return together([self.footprints[role] for role in group.roles]) / GB if self.footprints else None

    def on_node_gb(self, node: Node) -> float | None:
        """Return what sleeping and offloaded roles put into a node's memory, in GB; None if it cannot be estimated."""
        if not self.footprints:
            return None
        groups = [(group, group.nodes.count(node)) for group in self.plan.groups]
        return sum(ranks * self.footprints[role].on_node for group, ranks in groups for role in group.roles) / GB

    @property
    def overfull(self) -> list[str]:
        """One line for every group or node whose memory does not suffice, and for engines with too small a cache."""
        lines, memory = [], self.plan.gpu_memory_gb
        for group in self.plan.groups:
            used = self.peak_gb(group)
            if used is not None and memory is not None and used > memory:
                where = f"{' + '.join(group.roles)} on a GPU"
                lines.append(f"{where}: about {used:.0f} GB of {memory:g} GB. {self._advice(group)}")
        for node in self.plan.nodes:
            used = self.on_node_gb(node)
            if used is not None and node.memory_gb is not None and used > node.memory_gb:
                needs = f"sleeping and offloaded states on {node.name}: about {used:.0f} GB of {node.memory_gb:.0f} GB"
                lines.append(f"{needs}. Use fewer ranks per node, mode split, or no ds.adam_offload")
        if self.limits.held is not None and self.limits.held < 1:
            advice = "Raise vllm.tensor_parallel_size or vllm.gpu_memory_utilization, or lower data.max_len"
            lines.append(f"the KV cache of an engine is too small for {self.args.data.max_len} tokens. {advice}")
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return the plan for programs: GPUs by node, memory in GB (None: unknown); without ``problems`` it fits."""
        roles = {
            member.role: {
                "gpus": dict(Counter(node.name for node in group.nodes)),
                "tensor_parallel": member.block_gpus if member.role == "engines" else 1,
                "shares_with": [role for role in group.roles if role != member.role],
                "gb_per_gpu": self.footprints[member.role].peak / GB if self.footprints else None,
            }
            for group in self.plan.groups
            for member in group.members
        }
        return {
            "mode": self.mode,
            "gpus": self.plan.gpus,
            "cpus": self.plan.cpus,
            "gpu_memory_gb": self.plan.gpu_memory_gb,
            "roles": roles,
            "nodes": {node.name: {"gb": self.on_node_gb(node), "of": node.memory_gb} for node in self.plan.nodes},
            "engine_sequences": self.limits.max_num_seqs,
            "problems": [*([f"memory unknown: {self.unknown}"] if self.unknown else []), *self.overfull],
        }

    def _advice(self, group: Group) -> str:
        if group.roles == ("engines",):
            return "Lower vllm.gpu_memory_utilization"
        size = "max_tokens_per_gpu" if self.args.train.dynamic_batch_enable else "micro_batch_size"
        share = ", vllm.gpu_memory_utilization" if "engines" in group.roles else ""
        return f"Lower train.{size}, rollout.{size}{share} or data.max_len, set ds.adam_offload, or use more ranks"


def draw(report: PlanReport, title: str) -> str:
    """Return the whole page, without trailing spaces."""
    memory = "" if report.plan.gpu_memory_gb is None else f", {report.plan.gpu_memory_gb:g} GB per GPU"
    models = [
        f"{found.name}, {found.shape.parameters / 1e9:.2f} B parameters" if found.shape else found.name
        for found in dict.fromkeys(report.models.values())
    ]
    facts = [["mode", report.mode], ["model", "; ".join(models)]]
    facts += [["memory", f"unknown: {report.unknown}"]] if report.unknown else []
    head = f"{title} on {describe_nodes(report.plan.nodes)}{memory}"
    tables = [aligned(facts), aligned(_roles(report)), _map(report), aligned(_totals(report))]
    return "\n\n".join([head, *(indent(table, "  ") for table in tables)]) + "\n"


def _roles(report: PlanReport) -> list[list[str]]:
    rows, total = [["role", "ranks", "GPUs", "GB per GPU, estimated"]], report.plan.gpu_memory_gb
    for group in report.plan.groups:
        is_alone = len(group.members) == 1
        rows += [_role(report, group, member, total if is_alone else None) for member in group.members]
        rows += [] if is_alone else [["  at the peak", "", "", _used(report.peak_gb(group), total)]]
    return rows


def _role(report: PlanReport, group: Group, member: RoleRequest, total: float | None) -> list[str]:
    gpus = str(len(group.nodes)) if member is group.members[0] else f"those of {group.roles[0]}"
    is_wide = member.role == "engines" and member.block_gpus > 1
    ranks = f"{member.blocks} x TP {member.block_gpus}" if is_wide else str(member.gpus)
    found = report.footprints.get(member.role)
    return [member.role, ranks, gpus, _used(found.peak / GB if found else None, total)]


def _used(used: float | None, total: float | None) -> str:
    if used is None:
        return "unknown"
    return f"{used:3.0f}" if total is None else f"{used:3.0f} of {total:.0f}"


def _map(report: PlanReport) -> str:
    """Draw every node's GPUs, with adjacent equal nodes in one line and the ranks of an engine joined."""
    rows = [["nodes", "GPUs", "CPUs", "GB of memory, estimated"]]
    for row, equal in groupby(report.plan.nodes, key=lambda node: _node(report, node)):
        rows.append([names_of(list(equal)), *row])
    symbols = [f"{LETTERS[role]} {role}" for group in report.plan.groups for role in group.roles]
    drawn = {symbol for row in rows[1:] for symbol in row[1].split()}
    symbols += [f"{symbol} {name}" for symbol, name in ((FREE, "free"), (IN_USE, "in use")) if symbol in drawn]
    return f"{aligned(rows)}\n{'   '.join(symbols)}"


def _node(report: PlanReport, node: Node) -> list[str]:
    """Return a node's GPUs, a cell each or one for those of an engine (``E─E``), its CPUs, and its memory."""
    cells, ours = [], 0
    for group in report.plan.groups:
        letters = "".join(LETTERS[role] for role in group.roles)
        joined = next((member.block_gpus for member in group.members if member.role == "engines"), 1)
        cells += ["─".join([letters] * joined)] * (group.nodes.count(node) // joined)
        ours += group.nodes.count(node)
    shards = report.plan.shards.count(node)
    in_use = min(int(node.gpus - node.free_gpus), int(node.gpus) - ours)  # others, beside those the run waits for
    cells += [FREE] * (int(node.gpus) - in_use - ours) + [IN_USE] * in_use
    note = f" ({counted(shards, 'shard')})" if shards else ""
    cpus = f"{ours + shards} of {node.cpus if report.plan.waits else node.free_cpus:g}{note}"
    return [" ".join(cells) or "none", cpus, _used(report.on_node_gb(node), node.memory_gb)]


def _totals(report: PlanReport) -> list[list[str]]:
    plan, batching = report.plan, Batching.of(report.args)
    gpus, cpus = sum(node.gpus for node in plan.nodes), sum(node.cpus for node in plan.nodes)
    total = f"{plan.gpus} of {counted(gpus, 'GPU')}, {plan.cpus} of {counted(cpus, 'CPU')}"
    rows = [["total", f"{total} (one per GPU and shard, {plan.controller_cpus} for controllers)"]]
    if report.limits.held is not None:
        held = f"its KV cache holds {report.limits.held:.0f} sequences of {report.args.data.max_len} tokens"
        rows.append(["engine", f"{held}, {report.limits.max_num_seqs} run at a time"])
    free = int(sum(node.free_gpus for node in plan.nodes))
    if free > plan.gpus:
        counts = f"the batches ({batching}) divide among {listed(batching.even_counts(report.models))} ranks"
        rows.append(["idle", f"{free - plan.gpus} of {counted(free, 'free GPU')} are not used; {counts}"])
    policy = next(len(group.nodes) for group in plan.groups if "policy" in group.roles)
    each = batching.train_batch / batching.parallel(policy)
    if each < FEW:
        share = f"a policy rank gets {each:g} of a mini-batch's {batching.train_batch} responses"
        rows.append(["few", f"{share}, and idles until the longest ends; raise train.batch_size"])
    if gpus > free:
        waits = "the run waits for what it needs of them" if plan.waits else "not in this plan"
        rows.append(["in use", f"{counted(gpus - free, 'GPU')}, by others; {waits}"])
    return [*rows, *(["too full", line] for line in report.overfull)]
