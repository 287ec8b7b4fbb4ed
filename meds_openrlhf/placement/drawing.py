"""Formats a plan as plain text: roles, counts, memory, and a map of the GPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from meds_openrlhf.placement.inventory import Node, describe_nodes, plural, smallest_gpu_memory
from meds_openrlhf.placement.memory_estimate import GB
from meds_openrlhf.placement.plan import Group, Plan, RoleRequest
from meds_openrlhf.placement.report import PlanReport

LETTERS = {"policy": "P", "engines": "E", "reference": "R", "critic": "C", "reward": "W"}
FREE, IN_USE = "·", "x"
WITHOUT_OTHERS = "meds train counts theirs in for a new run, and waits"
IMAGINED = re.compile(r"node (\d+)")


def draw(report: PlanReport, title: str) -> str:
    """Return the whole page, without trailing spaces."""
    parts = [
        f"{title} on {_describe(report.plan.nodes)}",
        _facts(report),
        _table(report),
        _map(report),
        _totals(report),
    ]
    lines = "\n\n".join(parts).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _describe(nodes: Sequence[Node]) -> str:
    memory = smallest_gpu_memory(list(nodes))
    note = "" if memory is None else f", {memory:g} GB per GPU"
    return f"{describe_nodes(list(nodes))}{note}"


def _facts(report: PlanReport) -> str:
    found = dict.fromkeys(report.recipe.models.values())
    models = [
        f"{model.name}, {model.shape.parameters / 1e9:.2f} B parameters ({model.source})" if model.shape else model.name
        for model in found
    ]
    rows = [("mode", f"{report.sizing.mode}, {report.sizing.why}"), ("model", "; ".join(models))]
    if report.unknown:
        rows.append(("memory", f"unknown: {report.unknown}"))
    return _aligned([list(row) for row in rows])


def _table(report: PlanReport) -> str:
    rows = [["role", "ranks", "GPUs", "nodes", "GB per GPU, estimated"]]
    for group in report.plan.groups:
        for member in group.members:
            rows.append(_role_row(report, group, member))
        if len(group.members) > 1:
            rows.append(["  at the peak", "", "", "", _of_memory(report, report.peak_gb(group))])
    if report.plan.shards:
        rows.append(["memory", plural(len(report.plan.shards), "shard"), "CPUs", _nodes_label(report.plan.shards), ""])
    return _aligned(rows)


def _role_row(report: PlanReport, group: Group, member: RoleRequest) -> list[str]:
    owner = member is group.members[0]
    ranks = str(member.gpus)
    if member.role == "engines":
        ranks = str(member.blocks) if member.block_gpus == 1 else f"{member.blocks} x TP {member.block_gpus}"
    gpus = str(len(group.nodes)) if owner else f"those of {group.roles[0]}"
    found = report.footprints.get(member.role)
    alone = len(group.members) == 1
    memory = _of_memory(report, found.peak / GB if found else None, of=alone)
    if member.role == "engines" and report.sequences is not None:
        memory += f"   KV cache: {report.sequences:.0f} sequences of {report.recipe.max_len} tokens"
        memory += f"; {report.engine_limits.max_num_seqs} run at a time"
    return [member.role, ranks, gpus, _nodes_label(group.nodes), memory]


def _of_memory(report: PlanReport, used: float | None, of: bool = True) -> str:
    if used is None:
        return "unknown"
    return f"{used:3.0f} of {report.gpu_memory_gb:g}" if of and report.gpu_memory_gb is not None else f"{used:3.0f}"


def _map(report: PlanReport) -> str:
    """Draw every node's GPUs, with adjacent equal nodes in one line and the ranks of an engine joined."""
    plan = report.plan
    used = Counter(node for group in plan.groups for node in group.nodes)
    shards = Counter(plan.shards)
    drawn = [
        (node, (_gpus(plan, node), used[node] + shards[node], _free_cpus(node), shards[node], _held(report, node)))
        for node in plan.nodes
    ]
    rows = [["nodes", "GPUs", "CPUs", "GB of memory, estimated"]]
    for (gpus, cpus, of, count, memory), equal in groupby(drawn, key=lambda row: row[1]):
        note = f" ({plural(count, 'shard')})" if count else ""
        rows.append([_nodes_label([node for node, _ in equal]), gpus, f"{cpus} of {of}{note}", memory])
    return f"{_aligned(rows)}\n  {_legend(plan)}"


def _held(report: PlanReport, node: Node) -> str:
    used = report.on_node_gb(node)
    if used is None:
        return "unknown"
    return f"{used:.0f}" if node.memory_gb is None else f"{used:.0f} of {node.memory_gb:.0f}"


def _free_cpus(node: Node) -> str:
    return f"{node.cpus:g}" if node.free_cpus == node.cpus else f"{node.free_cpus:g} free"


def _gpus(plan: Plan, node: Node) -> str:
    cells = [cell for group in plan.groups for cell in _cells(group, node)]
    in_use = int(node.gpus - node.free_gpus)
    unused = int(node.gpus) - in_use - sum(1 for group in plan.groups for place in group.nodes if place == node)
    return " ".join([*cells, *[FREE] * unused, *[IN_USE] * in_use]) or "none"


def _cells(group: Group, node: Node) -> Iterator[str]:
    """Yield one cell per GPU, with the GPUs of an engine joined into one cell: ``E``, ``E─E``, ``PE─PE``."""
    letters = "".join(LETTERS[role] for role in group.roles)
    joined = next((member.block_gpus for member in group.members if member.role == "engines"), 1)
    for _ in range(group.nodes.count(node) // joined):
        yield "─".join([letters] * joined)


def _legend(plan: Plan) -> str:
    present = [role for group in plan.groups for role in group.roles]
    entries = [f"{LETTERS[role]} {role}" for role in present]
    taken = Counter(node for group in plan.groups for node in group.nodes)
    if any(int(node.free_gpus) > taken[node] for node in plan.nodes):
        entries.append(f"{FREE} free")
    if any(node.free_gpus < node.gpus for node in plan.nodes):
        entries.append(f"{IN_USE} in use")
    return "   ".join(entries)


def _totals(report: PlanReport) -> str:
    plan = report.plan
    gpus, cpus = sum(node.gpus for node in plan.nodes), sum(node.cpus for node in plan.nodes)
    total = f"{plan.gpus} of {plural(gpus, 'GPU')}, {plan.cpus} of {plural(cpus, 'CPU')}"
    rows = [["total", f"{total} (one per GPU and shard, {plan.controller_cpus} for controllers)"]]
    if report.idle:
        rows.append(["idle", report.idle])
    if report.spread_thin:
        rows.append(["thin", report.spread_thin])
    in_use = int(gpus - sum(node.free_gpus for node in plan.nodes))
    if in_use:
        rows.append(["in use", f"others hold {plural(in_use, 'GPU')}; the plan is for the rest. {WITHOUT_OTHERS}"])
    rows += [["too full", line] for line in report.overfull]
    return _aligned(rows)


def _nodes_label(nodes: Sequence[Node]) -> str:
    """Return ``0-3, 5`` for imagined nodes; for real nodes up to two addresses, or the first and last of more."""
    names = list(dict.fromkeys(node.name for node in nodes))
    found = [IMAGINED.fullmatch(name) for name in names]
    if all(found):
        return _ranges(sorted(int(match[1]) for match in found if match))
    if len(names) <= 2:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)})"


def _ranges(numbers: list[int]) -> str:
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in rows)
