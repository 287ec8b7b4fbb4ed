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
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _extent(node, {}, 1)[0] > most_nodes:
            raise ValueError(f"it has more than {most_nodes:,} keys and values")
        return _constructed(loader, node)
    except RecursionError:
        raise ValueError(f"it has more than {MOST_DEPTH} levels") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _constructed(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    try:
        return loader.construct_document(node)
    except _MISFITS as error:
        raise ValueError(f"a value does not fit its type: {error}") from error


def _extent(node: yaml.Node, known: dict[int, tuple[int, int]], depth: int) -> tuple[int, int]:
    """The numbers of nodes and of levels in ``node``, aliases expanded; ``known`` are those of nodes, by id."""
    if known.get(id(node)) == (0, 0):
        raise ValueError("it has an alias of what contains it")
    if id(node) not in known:
        known[id(node)] = 0, 0  # until all that is in it is known
        inside = [_extent(inner, known, depth + 1) for inner in _inside(node)]
        known[id(node)] = 1 + sum(nodes for nodes, _ in inside), 1 + max((levels for _, levels in inside), default=0)
    if depth + known[id(node)][1] > MOST_DEPTH + 1:
        raise ValueError(f"it has more than {MOST_DEPTH} levels")
    return known[id(node)]


def _inside(node: yaml.Node) -> list[yaml.Node]:
    """The keys and values, or items, of a node. Raises ValueError for repeated keys, and numbers of any length."""
    if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and len(node.value) > MOST_DIGITS:
        raise ValueError(f"it has a number of {len(node.value)} digits")
    if isinstance(node, yaml.MappingNode):
        keys = Counter((key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for (tag, name), count in keys.items():
            if count > 1 and tag != _MERGE:
                raise ValueError(f"it has the key {name!r} twice")
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
