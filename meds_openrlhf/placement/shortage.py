"""Describes in one line what a run needs and what is free, before it starts and while it waits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.inventory import Node, plural
from meds_openrlhf.placement.packing import Demand

MOST_KINDS, MOST_NAMES = 4, 3  # of nodes in a message


class Shortage(ConfigError):
    """The cluster is too small for the run, or too much of it is in use.

    ``text`` describes what is lacking, ``advice`` what the user can do.
    """

    def __init__(self, cluster: str, text: str, advice: str) -> None:
        self.cluster = cluster
        self.text = text
        self.advice = advice
        super().__init__("cluster", cluster, f"does not fit the run, which {text}; {advice}")

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        return ConfigError, (self.field, self.value, self.hint)


@dataclass(frozen=True)
class Need:
    """Blocks of GPUs for one or more roles."""

    owner: str
    demand: Demand

    @property
    def gpus(self) -> int:
        """The total number of GPUs."""
        return self.demand.count * self.demand.size

    def __str__(self) -> str:
        count, size = self.demand.count, self.demand.size
        if size == 1:
            return f"{plural(count, 'GPU')} for {self.owner}"
        if count == 1:
            return f"{size} GPUs on one node for {self.owner}"
        return f"{count} blocks of {size} GPUs on one node each for {self.owner}"


def describe_shortage(needs: Sequence[Need], cpus: int, nodes: Sequence[Node]) -> str:
    """Return what is needed beside what is free on ``nodes``.

    For example ``needs 8 GPUs on one node for policy + engines and 17 CPUs; free are 7 GPUs and 128 CPUs on node 0``.
    """
    wanted = [", ".join(map(str, needs))] if needs else []
    return f"needs {' and '.join([*wanted, plural(cpus, 'CPU')])}; {_free(nodes)}"


def some_of(names: Sequence[str]) -> str:
    """List names, of many only the first."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _free(nodes: Sequence[Node]) -> str:
    """List free resources, those of the emptiest nodes first; nodes with equally many are grouped."""
    alike: dict[tuple[int, int], list[str]] = {}
    for node in sorted(nodes, key=lambda node: (-int(node.free_gpus), -node.room_for_cpus)):
        alike.setdefault((int(node.free_gpus), node.room_for_cpus), []).append(node.name)
    if not alike:
        return "there are no nodes"
    kinds = []
    for (gpus, cpus), names in list(alike.items())[:MOST_KINDS]:
        each = "each of " if len(names) > 1 else ""
        kinds.append(f"{plural(gpus, 'GPU')} and {plural(cpus, 'CPU')} on {each}{some_of(names)}")
    others = sum(map(len, list(alike.values())[MOST_KINDS:]))
    return f"free are {'; '.join(kinds)}" + (f"; less on {plural(others, 'node')}" if others else "")
