"""Do the tests notice small faults? Puts them into the core one at a time and runs the tests of the room.

    python -m tests.mutation --sample 300

Each fault (a comparison turned, a number changed by one, an argument left out) is tried in a process forked from one
that has the heavy libraries imported already; no file is changed. Faults that change no behaviour are listed in
equivalent_mutants.txt, each with the reason. The exit code is 1 where fewer than 95 % of the others are noticed. Tools
that do the same import everything for every fault, or leave out decorated functions, which are the compiled ones here.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "meds_openrlhf"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
WANTED = 0.95

STEP = ("batches", "experience", "policy", "update")  # of training/step, and what else tests them:
BESIDE = ("step/test_advantages.py",)
# Beside the test of the same name; they need Ray, or are about other processes.
LEFT_OUT = ("test_crash.py", "test_distributed.py", "test_format2.py")
OF_RAY = {"test_pool.py": ("pool.py",)}

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div, ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Pow: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One fault: ``number`` counts those of its file."""

    file: str
    line: int
    text: str  # of that line
    before: str
    after: str
    number: int

    def __str__(self) -> str:
        return f"{self.file} | {self.text} | {self.before} | {self.after}"


# ── faults ──


def _variants(node: ast.AST) -> Iterator[ast.AST]:
    """The node with one small fault, in every way that there is for its kind."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            yield _changed(node, ops=[*node.ops[:place], COMPARISONS[type(operator)](), *node.ops[place + 1 :]])
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in ARITHMETIC:
        yield _changed(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call) and node.keywords:
        yield _changed(node, keywords=node.keywords[:-1])
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)) and not isinstance(node.test, (ast.Compare, ast.BoolOp)):
        yield _changed(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()  # a call for its effect
    elif isinstance(node, (ast.Break, ast.Continue)):
        yield ast.Continue() if isinstance(node, ast.Break) else ast.Break()


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    vars(changed).update(fields)
    return changed


class _Changing(ast.NodeTransformer):
    """Walks a module, and makes the fault with the number ``wanted``; without one it counts them all."""

    def __init__(self, wanted: int | None) -> None:
        self.wanted, self.found = wanted, list[tuple[int, str, str]]()

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.arg) or (isinstance(node, ast.Call) and ast.unparse(node.func) == "dataclass"):
            return node
        if isinstance(node, ast.AnnAssign):
            return _changed(node, value=self.visit(node.value) if node.value else None)
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        chosen = None
        for variant in _variants(node):
            if len(self.found) == self.wanted:
                chosen = variant
            before, after = (ast.unparse(one).splitlines()[0] for one in (node, ast.fix_missing_locations(variant)))
            self.found.append((getattr(node, "lineno", 0), before, after))
        if chosen is not None:
            return ast.copy_location(chosen, node)
        return self.generic_visit(node)


def mutants_of(file: Path) -> list[Mutant]:
    """All faults of a file."""
    walk, source = _Changing(None), file.read_text()
    walk.visit(ast.parse(source))
    name, lines = str(file.relative_to(REPOSITORY)), source.splitlines()
    found = enumerate(walk.found)
    return [Mutant(name, line, lines[line - 1].strip(), before, after, n) for n, (line, before, after) in found]


# ── trying them ──


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports one module of the project with a fault in it."""

    def __init__(self, mutant: Mutant) -> None:
        self._path = REPOSITORY / mutant.file
        self._name = mutant.file.removesuffix(".py").replace("/", ".")
        self._number = mutant.number

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == self._name else None

    def get_filename(self, _name: str) -> str:
        return str(self._path)

    def get_data(self, _path: str) -> bytes:
        return self._path.read_bytes()

    def source_to_code(self, data: bytes, path: str, **_: object) -> object:  # type: ignore[override]
        tree = _Changing(self._number).visit(ast.parse(data))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def tests_of(file: str) -> list[str]:
    """The tests of the file's room, that of the same name first."""
    room, name = REPOSITORY / "tests" / Path(file).parent.relative_to("meds_openrlhf"), Path(file).name
    if "training" in file:
        tests = [room / f"test_{module}.py" for module in sorted(STEP, key=lambda module: f"{module}.py" != name)]
        return [str(path) for path in [*tests, *(room.parent / path for path in BESIDE)]]
    found = [one for one in sorted(room.glob("test_*.py")) if one.name not in LEFT_OUT]
    found = [one for one in found if one.name not in OF_RAY or name in OF_RAY[one.name]]
    return [str(path) for path in sorted(found, key=lambda path: path.name != f"test_{name}")]


def begin(mutant: Mutant | None, file: str) -> int:
    """Fork a process that runs the tests with the fault; without one, with none."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silent, descriptor)
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # compiling the faulty code would take longer than its tests
    import pytest

    if mutant is not None:
        sys.meta_path.insert(0, _Mutated(mutant))
    quiet = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist"]
    code = pytest.main([*quiet, *tests_of(file)])
    os._exit(int(code))


def run_all(mutants: list[Mutant], processes: int) -> dict[Mutant, bool]:
    """Whether each was noticed; pytest's timeout ends a test that hangs."""
    waiting, running = list(reversed(mutants)), dict[int, Mutant]()
    noticed: dict[Mutant, bool] = {}
    while waiting or running:
        while waiting and len(running) < processes:
            mutant = waiting.pop()
            running[begin(mutant, mutant.file)] = mutant
        child, status = os.wait()
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what it has started
        mutant = running.pop(child)
        noticed[mutant] = status != 0
        print(f"{len(noticed)}/{len(mutants)} {'noticed' if status else 'not noticed'}: {mutant}", flush=True)
    return noticed


def core_files() -> list[Path]:
    """The files that faults are put into."""
    rooms = [path for room in ("features", "memory", "shaping") for path in sorted((PACKAGE / room).glob("*.py"))]
    rooms = [path for path in rooms if path.name not in ("stored.py", "replay.py")]  # they read what the core wrote
    return [*rooms, *(PACKAGE / "training/step" / f"{name}.py" for name in STEP)]


def main() -> int:
    """Try faults and report those that nobody noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, metavar="N", help="faults to try, drawn at random (all)")
    parser.add_argument("--files", nargs="+", type=Path, help="instead of the whole core")
    arguments = parser.parse_args()
    files = [path.absolute() for path in arguments.files or core_files()]
    # A line is a fault that changes no behaviour and, behind the last bar, the reason.
    known = {line.rpartition(" | ")[0] for line in EQUIVALENT.read_text().splitlines()}
    mutants = [mutant for file in files for mutant in mutants_of(file) if str(mutant) not in known]
    if arguments.sample is not None and arguments.sample < len(mutants):
        mutants = random.Random(0).sample(mutants, arguments.sample)
    _import_libraries()
    rooms = {frozenset(tests_of(mutant.file)): mutant.file for mutant in mutants}
    for file in rooms.values():
        if os.waitpid(begin(None, file), 0)[1]:
            print(f"{file}: its tests fail without any fault", file=sys.stderr)
            return 2
    noticed = run_all(mutants, os.cpu_count() or 1)
    survivors = sorted((one for one, seen in noticed.items() if not seen), key=lambda one: (one.file, one.line))
    for mutant in survivors:
        print(f"nobody noticed, line {mutant.line}: {mutant}")
    share = 1 - len(survivors) / max(len(noticed), 1)
    print(f"{len(noticed) - len(survivors)} of {len(noticed)} noticed, {share:.1%}")
    return 0 if share >= WANTED else 1


def _import_libraries() -> None:
    """What every test imports, but nothing of what faults are put into."""
    from meds_openrlhf.training.host import cpu

    if not cpu.has_cuda():
        cpu.install()
    import hdbscan  # noqa: F401
    import hypothesis  # noqa: F401
    import openrlhf.trainer.ppo_utils.experience_maker
    import openrlhf.trainer.ray.ppo_actor  # noqa: F401
    import pyarrow  # noqa: F401
    import pytest  # noqa: F401

    imported = [name for name in sys.modules if name.startswith(("meds_openrlhf.memory", "meds_openrlhf.features"))]
    assert not imported, f"a fault in these would not be seen: {imported}"


if __name__ == "__main__":
    sys.exit(main())
