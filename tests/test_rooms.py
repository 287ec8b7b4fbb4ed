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
        for path in sorted((PACKAGE / room).rglob("*.py")) or [PACKAGE / f"{room}.py"]:
            yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text())


def imports_of(tree: ast.Module) -> set[str]:
    nodes = list(ast.walk(tree))
    froms = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return froms | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}


def docstrings_of(tree: ast.Module) -> set[int]:
    found = (node.body[0] for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list) and node.body)
    return {id(first.value) for first in found if isinstance(first, ast.Expr)}


def test_features_memory_and_shaping_know_nothing_of_openrlhf() -> None:
    """Neither its modules nor its flags; a docstring may explain what a caller does."""
    for name, tree in modules("features", "memory", "shaping"):
        assert not [imported for imported in imports_of(tree) if imported.split(".")[0] == "openrlhf"], name
        assert not [imported for imported in imports_of(tree) if imported.startswith("meds_openrlhf.training")], name
        documented = docstrings_of(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
                assert not OPENRLHF_FLAG.search(re.sub(r"meds\.[\w.]+", "", node.value)), (name, node.value)
                assert not OPENRLHF.search(node.value), (name, node.value)
            if isinstance(node, (ast.Name, ast.Attribute)):
                assert not OPENRLHF.search(node.id if isinstance(node, ast.Name) else node.attr), name


def test_memory_and_features_know_no_room_that_uses_them() -> None:
    below = {"adapters", "arrow_files", "columns", "config", "files", "json_text", "locks", "paths", "features"}
    for room, known in (("features", below), ("memory", {*below, "memory"})):
        for name, tree in modules(room):
            inside = {imported.split(".")[1] for imported in imports_of(tree) if imported.startswith("meds_openrlhf.")}
            assert inside <= known, name


def test_shaping_knows_nothing_but_settings() -> None:
    for name, tree in modules("shaping"):
        inside = {imported.split(".")[1] for imported in imports_of(tree) if imported.startswith("meds_openrlhf.")}
        assert inside <= {"config", "shaping"}, name


def test_the_rooms_of_training_know_each_other_one_way() -> None:
    """run knows all; start knows the loop, which is what it starts; the ways into OpenRLHF know nobody."""
    ways = "openrlhf"
    below = {ways: set[str](), "control": {ways}, "step": {ways, "control"}}
    below |= {"loop": {ways, "control", "step"}, "start": {ways, "control", "step", "loop"}}
    for room, known in below.items():
        for name, tree in modules(f"training/{room}"):
            inside = {one.split(".")[2] for one in imports_of(tree) if one.startswith("meds_openrlhf.training.")}
            assert inside <= {room, *known}, name


def test_training_alone_imports_openrlhf() -> None:
    for name, tree in modules("runtime"):
        inside = {imported.split(".")[1] for imported in imports_of(tree) if imported.startswith("meds_openrlhf.")}
        assert inside <= {"runtime", "adapters", "config", "files", "json_text"}, name
    users = {"cli/train.py"}
    rooms = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name not in ("training", "__pycache__")]
    found = {name for name, tree in modules(*rooms) if any(".training" in imported for imported in imports_of(tree))}
    assert found == users
    outside = {one.split(".")[0] for _, tree in modules(*rooms) for one in imports_of(tree)}
    assert "openrlhf" not in outside


def test_one_module_imports_trl_and_none_imports_it() -> None:
    found = {str(path.relative_to(PACKAGE)): imports_of(ast.parse(path.read_text())) for path in PACKAGE.rglob("*.py")}
    users = [name for name, imported in found.items() if "trl" in {module.split(".")[0] for module in imported}]
    assert users == ["trl.py"]
    assert not [name for name, imported in found.items() if "meds_openrlhf.trl" in imported]


def test_runs_are_read_in_one_room_that_no_room_below_knows() -> None:
    below = {"columns", "config", "data", "features", "memory", "rollouts", "step_log"}
    for name, tree in modules("runs"):
        inside = {imported.split(".")[1] for imported in imports_of(tree) if imported.startswith("meds_openrlhf.")}
        assert inside <= {"runs", "files", "paths", *below}, name
    for name, tree in modules(*below, "rewards", "shaping", "placement", "tracking", "training"):
        assert not [imported for imported in imports_of(tree) if imported.startswith("meds_openrlhf.runs")], name
