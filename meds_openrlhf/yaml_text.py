"""Reading YAML that others wrote, which may refer to itself, repeat keys, or expand to more than memory holds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import yaml

from meds_openrlhf.json_text import MOST_DIGITS

MOST_NODES = 10_000  # with every alias expanded
MOST_DEPTH = 50
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MERGE = "tag:yaml.org,2002:merge"  # of the key <<, which may be repeated
# What the constructors of PyYAML raise for explicit tags that do not fit, `!!bool maybe`.
_MISFITS = (ValueError, LookupError, TypeError, AttributeError, OverflowError)


def parse_yaml(text: str, most_nodes: int = MOST_NODES) -> Any:
    """``yaml.safe_load``, which raises ValueError for all that is not YAML, or not a tree of a bounded size.

    That is an alias of what contains it, a key that is given twice, more than ``most_nodes`` keys and values with
    every alias expanded, more than `MOST_DEPTH` levels, and numbers of more than `MOST_DIGITS` characters.
    """
    try:
        loader = _Loader(text)
        loader.most_nodes = most_nodes
        node = loader.get_single_node()
        if node is None:
            return None
        _extent(node, {}, 1, most_nodes)
        return loader.construct_document(node)
    except _RefusedError as error:
        raise ValueError(str(error)) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    except _MISFITS as error:
        raise ValueError(f"a value does not fit its type: {error}") from error


class _RefusedError(Exception):
    """The message says why."""


class _Loader(yaml.SafeLoader):
    """Counts nodes and levels while it reads, so that what is refused costs no more than what is read."""

    most_nodes, _nodes, _level = MOST_NODES, 0, 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Read the next node. Raises _RefusedError."""
        self._nodes += 1
        self._level += 1
        _require_bounds(self._nodes, self._level, self.most_nodes)
        node = super().compose_node(parent, index)
        self._level -= 1
        return node


def _require_bounds(nodes: int, levels: int, most_nodes: int) -> None:
    if nodes > most_nodes:
        raise _RefusedError(f"it has more than {most_nodes:,} keys and values")
    if levels > MOST_DEPTH:
        raise _RefusedError(f"it has more than {MOST_DEPTH} levels")


def _extent(node: yaml.Node, known: dict[int, tuple[int, int]], depth: int, most_nodes: int) -> tuple[int, int]:
    """The numbers of nodes and of levels in ``node``, aliases expanded; ``known`` are those of nodes, by id."""
    if known.get(id(node)) == (0, 0):
        raise _RefusedError("it has an alias of what contains it")
    if id(node) not in known:
        known[id(node)] = 0, 0  # until all that is in it is known
        inside = [_extent(inner, known, depth + 1, most_nodes) for inner in _inside(node)]
        known[id(node)] = 1 + sum(nodes for nodes, _ in inside), 1 + max((levels for _, levels in inside), default=0)
    nodes, levels = known[id(node)]
    _require_bounds(nodes, depth + levels - 1, most_nodes)
    return nodes, levels


def _inside(node: yaml.Node) -> list[yaml.Node]:
    """The keys and values, or items, of a node. Raises _RefusedError for repeated keys, and numbers of any length."""
    if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and len(node.value) > MOST_DIGITS:
        raise _RefusedError(f"it has a number of {len(node.value)} digits")
    if isinstance(node, yaml.MappingNode):
        keys = Counter((key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for (tag, name), count in keys.items():
            if count > 1 and tag != _MERGE:
                raise _RefusedError(f"it has the key {name!r} twice")
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
