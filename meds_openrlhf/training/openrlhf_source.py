"""Access to parts of OpenRLHF to extend: modules without their packages, classes without Ray, and replaced names.

Importing OpenRLHF's packages imports DeepSpeed and vLLM, which takes many seconds.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


@cache
def module_alone(name: str) -> ModuleType:
    """Import the OpenRLHF module ``name`` without its packages; it must not import other parts of OpenRLHF."""
    spec = importlib.util.spec_from_file_location(name, _file_of(name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_main_block(name: str, provided: dict[str, Any]) -> None:
    """Run the ``__main__`` block of the module ``name`` with the names ``provided`` in place of its imports.

    Of the other imports, only those from the standard library are executed.
    """
    exec(_main_block(name, frozenset(provided)), {"__name__": "__main__", **provided})


def plain_class(actor_class: Any) -> Any:
    """Return the class that ``@ray.remote`` decorated; Ray does not allow subclassing the decorated class."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Temporarily set attributes of ``owner`` to ``values``.

    OpenRLHF looks up the classes that it creates by name, so a replaced name makes it use a class of this package.
    """
    originals = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)


@cache
def _main_block(name: str, provided: frozenset[str]) -> CodeType:
    tree = ast.parse(_file_of(name).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
    above = [node for node in tree.body if _imported_package(node) in sys.stdlib_module_names]
    kept = [node for node in (*above, *block.body) if not _bound_names(node) & provided]
    return compile(ast.Module(kept, type_ignores=[]), name, "exec")


def _file_of(name: str) -> Path:
    package, *rest = name.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(spec.submodule_search_locations[0], *rest).with_suffix(".py")


def _imported_package(node: ast.stmt) -> str | None:
    """Return the package that an import statement imports from, or None for other statements."""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0]
    return node.names[0].name.partition(".")[0] if isinstance(node, ast.Import) else None


def _bound_names(node: ast.stmt) -> set[str]:
    """Return the names that an import statement binds; empty for other statements."""
    imports = isinstance(node, ast.Import | ast.ImportFrom)
    return {alias.asname or alias.name for alias in node.names} if imports else set()  # type: ignore[attr-defined]
