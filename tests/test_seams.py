"""docs/openrlhf.md names every place at which this package depends on what OpenRLHF does inside."""

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "meds_openrlhf"
PAGE = (REPOSITORY / "docs/openrlhf.md").read_text()
TREES = {path: ast.parse(path.read_text()) for path in sorted((PACKAGE / "training").rglob("*.py"))}


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Names in a module that come from OpenRLHF, with their whole path."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "openrlhf":
            found |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        if isinstance(node, ast.Import):
            found |= {name.asname or name.name: name.name for name in node.names if name.name.startswith("openrlhf")}
    return found


def theirs(expression: ast.expr, names: dict[str, str]) -> str | None:
    """The class of OpenRLHF that a base class names, also inside ``plain_class``."""
    if isinstance(expression, ast.Call):
        expression = expression.args[0]
    root = expression.value if isinstance(expression, ast.Attribute) else expression
    return ast.unparse(expression).split(".")[-1] if isinstance(root, ast.Name) and root.id in names else None


def subclasses() -> set[str]:
    classes = [
        (node, imported_names(tree))
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    return {name for node, names in classes for base in node.bases if (name := theirs(base, names))}


def replaced_names() -> set[str]:
    calls = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    of_us = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "replaced"]
    return {word.arg for call in of_us for word in call.keywords if word.arg}


def adapted_modules() -> set[str]:
    """Modules that are adapted on a machine without CUDA, and those that are named as texts."""
    texts = [node.value for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return {text for text in texts if isinstance(text, str) and re.fullmatch(r"openrlhf(\.\w+)+", text)}


def foreign_private_names() -> set[str]:
    """Attributes with an underscore that nothing of this package defines."""
    own, used = set(), set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                own.add(node.target.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
            elif path in TREES and isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                used.add(node.attr)
    return {name for name in used - own if not name.startswith("__")}


@pytest.mark.parametrize(
    "found", [subclasses, replaced_names, adapted_modules, foreign_private_names], ids=lambda found: found.__name__
)
def test_a_seam_is_on_the_page(found: object) -> None:
    names = found()  # type: ignore[operator]
    assert names
    assert sorted(name for name in names if f"`{name}`" not in PAGE) == []


def test_an_import_is_on_the_page() -> None:
    names = {path.split(".")[-1] for tree in TREES.values() for path in imported_names(tree).values()}
    assert sorted(name for name in names if f"`{name}`" not in PAGE) == []
