"""Which room knows which: the arrows between them run one way."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import meds_openrlhf

PACKAGE = Path(meds_openrlhf.__file__).parent
OPENRLHF_FLAG = re.compile(r"\b(actor|algo|ckpt|critic|data|ds|eval|logger|ref|reward|rollout|train|vllm)\.[a-z_]+")
OPENRLHF = re.compile(r"(?<!meds[-_])openrlhf", re.IGNORECASE)


def modules(*rooms: str) -> Iterator[tuple[str, ast.Module]]:
    for room in rooms:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text())


def imports_of(tree: ast.Module) -> set[str]:
    nodes = list(ast.walk(tree))
    froms = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return froms | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}


def docstrings_of(tree: ast.Module) -> set[int]:
    found = (node.body[0] for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list) and node.body)
    return {id(one.value) for one in found if isinstance(one, ast.Expr)}


def test_features_memory_and_shaping_know_nothing_of_openrlhf() -> None:
    """Neither its modules nor its flags; a docstring may explain what a caller does."""
    for name, tree in modules("features", "memory", "shaping"):
        assert not [one for one in imports_of(tree) if one.split(".")[0] == "openrlhf"], name
        assert not [one for one in imports_of(tree) if one.startswith("meds_openrlhf.training")], name
        documented = docstrings_of(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
                assert not OPENRLHF_FLAG.search(re.sub(r"meds\.[\w.]+", "", node.value)), (name, node.value)
                assert not OPENRLHF.search(node.value), (name, node.value)
            if isinstance(node, (ast.Name, ast.Attribute)):
                assert not OPENRLHF.search(node.id if isinstance(node, ast.Name) else node.attr), name


def test_the_driver_knows_the_training_and_not_the_other_way_round() -> None:
    for name, tree in modules("training"):
        if not name.startswith("training/driver/"):
            assert not [one for one in imports_of(tree) if one.startswith("meds_openrlhf.training.driver")], name


def test_only_the_training_imports_openrlhf() -> None:
    rooms = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name not in ("training", "__pycache__")]
    users = [name for name, tree in modules(*rooms) if any(one.split(".")[0] == "openrlhf" for one in imports_of(tree))]
    assert users == []
