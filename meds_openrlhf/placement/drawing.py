"""Formats a plan as plain text: roles, counts, memory, and a map of the GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from meds_openrlhf.placement.inventory import GB, Node, describe_nodes, names_of, plural
from meds_openrlhf.placement.plan import Group, RoleRequest
from meds_openrlhf.placement.report import PlanReport

LETTERS = {"policy": "P", "engines": "E", "reference": "R", "critic": "C", "reward": "W"}
FREE, IN_USE = "·", "x"


def draw(report: PlanReport, title: str) -> str:
    """Return the whole page, without trailing spaces."""
    memory = "" if report.gpu_memory_gb is None else f", {report.gpu_memory_gb:g} GB per GPU"
    parts = [f"{title} on {describe_nodes(report.plan.nodes)}{memory}", *_tables(report)]
    return "\n".join(line.rstrip() for line in "\n\n".join(parts).splitlines()) + "\n"


def _tables(report: PlanReport) -> Iterator[str]:
    models = [
        f"{found.name}, {found.shape.parameters / 1e9:.2f} B parameters ({found.source})" if found.shape else found.name
        for found in dict.fromkeys(report.recipe.models.values())
    ]
    unknown = [["memory", f"unknown: {report.unknown}"]] if report.unknown else []
    yield _aligned([["mode", report.sizing.mode], ["model", "; ".join(models)], *unknown])
    yield _aligned(_roles(report))
    yield _map(report)
    yield _aligned(_totals(report))


def _roles(report: PlanReport) -> list[list[str]]:
    rows = [["role", "ranks", "GPUs", "GB per GPU, estimated"]]
    for group in report.plan.groups:
        rows += [_role(report, group, member) for member in group.members]
        if len(group.members) > 1:
            rows.append(["  at the peak", "", "", _used(report.peak_gb(group), report.gpu_memory_gb)])
    return rows


def _role(report: PlanReport, group: Group, member: RoleRequest) -> list[str]:
    is_engines = member.role == "engines"
    gpus = str(len(group.nodes)) if member is group.members[0] else f"those of {group.roles[0]}"
    ranks = f"{member.blocks} x TP {member.block_gpus}" if is_engines and member.block_gpus > 1 else str(member.blocks)
    found = report.footprints.get(member.role)
    memory = _used(found.peak / GB if found else None, report.gpu_memory_gb if len(group.members) == 1 else None)
    return [member.role, ranks if is_engines else str(member.gpus), gpus, memory]


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
    return f"{_aligned(rows)}\n  {'   '.join(symbols)}"


def _node(report: PlanReport, node: Node) -> list[str]:
    groups, shards = report.plan.groups, report.plan.shards.count(node)
    ours, in_use = sum(group.nodes.count(node) for group in groups), int(node.gpus - node.free_gpus)
    cells = [cell for group in groups for cell in _cells(group, node)]
    gpus = [*cells, *[FREE] * (int(node.gpus) - in_use - ours), *[IN_USE] * in_use]
    note = f" ({plural(shards, 'shard')})" if shards else ""
    cpus = f"{ours + shards} of {node.free_cpus:g}{note}"
    return [" ".join(gpus) or "none", cpus, _used(report.on_node_gb(node), node.memory_gb)]


def _cells(group: Group, node: Node) -> Iterator[str]:
    """Yield one cell per GPU, with the GPUs of an engine joined into one cell: ``E``, ``E─E``, ``PE─PE``."""
    letters = "".join(LETTERS[role] for role in group.roles)
    joined = next((member.block_gpus for member in group.members if member.role == "engines"), 1)
    for _ in range(group.nodes.count(node) // joined):
        yield "─".join([letters] * joined)


def _totals(report: PlanReport) -> list[list[str]]:
    plan = report.plan
    gpus, cpus = sum(node.gpus for node in plan.nodes), sum(node.cpus for node in plan.nodes)
    total = f"{plan.gpus} of {plural(gpus, 'GPU')}, {plan.cpus} of {plural(cpus, 'CPU')}"
    rows = [["total", f"{total} (one per GPU and shard, {plan.controller_cpus} for controllers)"]]
    if report.sequences is not None:
        held = f"its KV cache holds {report.sequences:.0f} sequences of {report.recipe.max_len} tokens"
        rows.append(["engine", f"{held}, {report.engine_limits.max_num_seqs} run at a time"])
    if report.idle:
        rows.append(["idle", report.idle])
    if in_use := int(gpus - sum(node.free_gpus for node in plan.nodes)):
        rows.append(["in use", f"{plural(in_use, 'GPU')}, by others: `meds train` waits for them, this plan does not"])
    return [*rows, *(["too full", line] for line in report.overfull)]


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in rows)
