"""The list of messages at the end of the page docs/troubleshooting.md, read from the package's source (see mkdocs.yml).

A message is what `ConfigError(field, value, hint)` prints without the value, or the text of another error that the
command line prints in one line. What is known only while the program runs stands as <name>.
"""

import ast
import html
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

# Folders of the package, or files of its cli/.
ROOMS = {
    "Configuration and overrides": ("config",),
    "Training: meds train": ("training", "train"),
    "Placement: meds plan": ("placement", "plan"),
    "Jobs: meds submit": ("jobs", "submit"),
    "Data: meds data": ("data",),
    "Features": ("features",),
    "Memory: meds memory": ("memory",),
    "Evaluation: meds eval": ("evaluation", "eval"),
    "The atlas of other trainers' runs: meds atlas": ("dumps", "atlas"),
    "Report and tracking: meds report, meds track": ("report", "tracking", "track"),
}
OTHER = "Any command"
NO_FIELD = "Lines without a field"
WITHOUT_FIELD = re.compile(r"(Memory\w+|Run\w+|EvaluationLost|FeatureFunction|FolderInUse)(Error|Failed)")
_PLAIN = {"strerror": "reason", "getcwd": "folder", "cwd": "folder", "splitlines": "reason"}
_MOST = 6  # texts of one expression


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add the list to its page."""
    if page.file.src_uri != "troubleshooting.md":
        return markdown
    return f"{markdown}\n{listing(Path(config.config_file_path).parent / 'meds_openrlhf')}"


def listing(package: Path) -> str:
    """Return the list as Markdown: a part for each room, in it a heading for each field, below it its messages."""
    modules = {path.relative_to(package.parent): ast.parse(path.read_text("utf-8")) for path in package.rglob("*.py")}
    rooms: dict[str, dict[str, set[str]]] = {room: {} for room in (*ROOMS, OTHER)}
    for path, module in modules.items():
        for node in [node for node in module.body if isinstance(node, ast.ImportFrom) and node.module]:
            source = modules.get(Path(f"{str(node.module).replace('.', '/')}.py"), ast.Module([], []))
            module.body += [part for part in source.body if isinstance(part, ast.Assign)]  # constants
        folder = path.stem if path.parts[1] == "cli" else path.parts[1]
        fields = rooms[next((room for room, folders in ROOMS.items() if folder in folders), OTHER)]
        for field, message in _messages(module):
            if re.search(r"\w", re.sub("<.*?>", "", message)):  # more than what another error says
                fields.setdefault(re.sub("^<.*?>$", "Any setting", field), set()).add(message)
    lines = []
    for room, fields in rooms.items():
        lines += [f"## {room}"] if fields else []
        for field in sorted(fields, key=lambda name: (name == NO_FIELD, name.lstrip("-"))):
            items = [re.sub("`(.+?)`", r"<code>\1</code>", html.escape(item, False)) for item in sorted(fields[field])]
            lines += [
                f"### {html.escape(field, False)}",
                "<ul>" + "".join(f"<li>{item}</li>\n" for item in items) + "</ul>",
            ]
    return "\n\n".join(lines)


def _messages(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield field and message of each error that a module makes."""
    calls = list(_calls(module, _Scope(module, None, ast.Pass(), {})))
    for place, call in calls:
        kind = _name_of(call.func)
        if kind not in ("ConfigError", "Shortage") and not WITHOUT_FIELD.fullmatch(kind):
            continue
        for scope in _scopes(place, call, calls):
            texts = [scope.texts(argument) for argument in call.args]
            if kind == "ConfigError" and len(texts) == 3:
                yield from itertools.product(texts[0], texts[2])
            elif kind == "Shortage":
                yield from (("cluster", f"does not fit the run, which {text}") for text in texts[1])
            elif len(texts) == 1:
                yield from ((NO_FIELD, text) for text in texts[0])


@dataclass(frozen=True)
class _Scope:
    """What names stand for at a statement: ``given``, else what the function assigns before it, else the module."""

    module: ast.Module
    function: ast.FunctionDef | None
    statement: ast.stmt
    given: Mapping[str, list[str]]

    def texts(self, node: ast.expr) -> list[str]:
        """Return the texts that an expression may have, at most `_MOST`."""
        found: Iterable[str] = [f"<{_name_of(node)}>"]
        match node:
            case ast.Constant():
                found = [str(node.value)]
            case ast.FormattedValue():
                found = self.texts(node.value)
            case ast.JoinedStr(values=parts):
                found = map("".join, itertools.product(*map(self.texts, parts)))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                found = map("".join, itertools.product(self.texts(left), self.texts(right)))
            case ast.IfExp(body=first, orelse=second):
                found = self.texts(first) + self.texts(second)
            case ast.Call(func=ast.Attribute(value=template, attr="format")):
                found = [re.sub(r"\{\w*\}", "<reason>", text) for text in self.texts(template)]
            case ast.Call(func=ast.Name(id=name)):  # a function of the module: what it returns
                homes = [node for node in self.module.body if isinstance(node, ast.FunctionDef) and node.name == name]
                ends = [(home, end) for home in homes for end in ast.walk(home) if isinstance(end, ast.Return)]
                scopes = [(_Scope(self.module, home, end, {}), end.value) for home, end in ends if end.value]
                found = [text for scope, value in scopes for text in scope.texts(value)] or found
            case ast.Name(id=name) if name in self.given:
                found = self.given[name]
            case ast.Name(id=name):
                inner = replace(self, given={**self.given, name: [f"<{name}>"]})  # in `x = x + ...` too
                found = [text for value in self.assigned(name) for text in inner.texts(value)] or found
        return list(itertools.islice(found, _MOST))

    def assigned(self, name: str) -> list[ast.expr]:
        """Return what a name was last assigned, in all branches."""
        found: list[ast.expr] = []
        nodes = [*ast.walk(self.function)] if self.function else []
        blocks = [getattr(node, field, []) for node in nodes for field in ("body", "orelse", "finalbody")]
        around = [block for block in blocks if isinstance(block, list) and self.statement in _within(block)]
        for node, value in reversed(_assignments([other for other in nodes if isinstance(other, ast.stmt)], name)):
            if node.lineno < self.statement.lineno:
                found.append(value)
                if any(node in block for block in around):
                    break
        found = found or [value for _, value in _assignments(self.module.body, name)]
        return [value for value in found if not isinstance(value, ast.Constant) or value.value]


_Located = tuple[_Scope, ast.Call]


def _within(block: list[ast.stmt]) -> list[ast.AST]:
    return [node for statement in block for node in ast.walk(statement)]


def _assignments(statements: list[ast.stmt], name: str) -> list[tuple[ast.Assign, ast.expr]]:
    """Return the statements that assign to a name, in the order of the lines, and what each assigns."""
    found = []
    for node in [node for node in statements if isinstance(node, ast.Assign)]:
        target, value = node.targets[0], node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts))
        found += [(node, given) for to, given in pairs if isinstance(to, ast.Name) and to.id == name]
    return sorted(found, key=lambda pair: pair[0].lineno)


def _scopes(place: _Scope, call: ast.Call, calls: list[_Located]) -> Iterator[_Scope]:
    """Yield the scopes of a call: one for each turn of its loop over a literal, or for each call of its function."""
    names = {node.id for argument in call.args for node in ast.walk(argument) if isinstance(node, ast.Name)}
    around = place.function or place.module
    loops = [node for node in ast.walk(around) if isinstance(node, ast.For) and place.statement in ast.walk(node)]
    given: list[dict[str, list[str]]] = []
    for loop in loops:
        targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        if names & {_name_of(target) for target in targets}:
            rows = [row.elts if isinstance(row, ast.Tuple) else [row] for row in _rows(place, loop.iter)]
            given += [{_name_of(name): place.texts(value) for name, value in zip(targets, row)} for row in rows]
    parameters = [param.arg for param in place.function.args.args if param.arg != "self"] if place.function else []
    if place.function and names & {*parameters} and not given:
        callers = [caller for caller in calls if _name_of(caller[1].func) == place.function.name.strip("_")]
        for outer, by in callers:
            given.append({name: outer.texts(value) for name, value in zip(parameters, by.args)})
    yield from (replace(place, given=values) for values in given or [{}])


def _rows(scope: _Scope, node: ast.expr) -> list[ast.expr]:
    """Return what a loop over a literal, or the name of one, goes through; nothing for other loops."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value  # of a dictionary's items()
    if isinstance(node, ast.Name):
        node = next(iter(scope.assigned(node.id)), node)
    return [child for child in (*getattr(node, "keys", []), *getattr(node, "elts", [])) if child]


def _calls(node: ast.AST, scope: _Scope) -> Iterator[_Located]:
    """Yield every call below ``node``, with the scope that it is in."""
    for child in ast.iter_child_nodes(node):
        inner = replace(scope, statement=child) if isinstance(child, ast.stmt) else scope
        if isinstance(child, ast.Call):
            yield inner, child
        yield from _calls(child, replace(inner, function=child) if isinstance(child, ast.FunctionDef) else inner)


def _name_of(node: ast.expr) -> str:
    """Return a word of an expression that says what it is."""
    match node:
        case ast.Name(id=name):
            return name.strip("_")
        case ast.Attribute(value=value, attr=name):
            return _name_of(value) if name.startswith("__") else _PLAIN.get(name, name.strip("_"))
        case ast.Call(func=function, args=arguments):
            named = [argument for argument in arguments if not isinstance(argument, ast.Constant)]
            of_a_call = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call)
            return _name_of(named[0] if named else getattr(function, "value", function) if of_a_call else function)
    inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return _name_of(inner[0]) if inner else "value"
