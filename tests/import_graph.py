"""The imports between the files of the packages, as a graph: its circles, and its order inside each package."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("ir", "graph", "schedules", "backend", "taskmap")
_VERSION = ("taskmap", "__version__")
Graph = Mapping[str, Iterable[str]]


def module_of(path: Path) -> str:
    """The dotted name of a file of a package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "taskmap" else ("taskmap", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    """Every module to its file. ``rglob`` does not follow the links inside taskmap/."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {module_of(path): path for path in paths if not _is_linked(path)}


def _is_linked(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return parts[0] == "taskmap" and parts[1] in PACKAGES[:-1]


def imported(source: str, module: str, *, is_package: bool) -> Iterator[str]:
    """The dotted names that a module's source imports, for types and lazily too; `from a import b` counts as a.b.

    The version does not count, nor a bare `import taskmap`: they load nothing else.
    """
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name != "taskmap")
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names if (base, alias.name) != _VERSION)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("lazily", "import_module")):
            if isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)


def late_and_typed(tree: ast.Module) -> tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]:
    """The functions that a module loads by ``lazily``, and what it imports for types: names to (module, name)."""
    late, typed = dict[str, tuple[str, str]](), dict[str, tuple[str, str]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                if isinstance(line, ast.ImportFrom) and line.module is not None:
                    typed |= {alias.asname or alias.name: (line.module, alias.name) for alias in line.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name = ast.unparse(target)
            if ast.unparse(node.value.func) == "lazily" and not name.startswith("_repr") and name != "__repr__":
                where, function = map(ast.literal_eval, node.value.args)
                late[name] = where, function
    return late, typed


def import_graph() -> dict[str, set[str]]:
    """Every module of ours to those that it imports."""
    known = modules()
    return {
        module: {
            found
            for name in imported(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
            if (found := _longest(name, known)) is not None and found != module
        }
        for module, path in known.items()
    }


def _longest(name: str, known: Mapping[str, Path]) -> str | None:
    """The module that a dotted name leads into."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def units(graph: Graph, package: str) -> dict[str, set[str]]:
    """The imports between the parts of a package: its files ("name"), its folders ("name/") and "__init__"."""
    folders = {m[len(package) + 1 :].split(".")[0] for m in graph if m.startswith(f"{package}.") and m.count(".") > 0}
    deep = {name for name in folders if any(m.startswith(f"{package}.{name}.") for m in graph)}

    def unit(module: str) -> str | None:
        if module == package:
            return "__init__"
        if not module.startswith(f"{package}."):
            return None
        first = module[len(package) + 1 :].split(".")[0]
        if package == "taskmap" and first in PACKAGES[:-1]:
            return None
        return f"{first}/" if first in deep else first

    found: dict[str, set[str]] = {}
    for module, others in graph.items():
        if (here := unit(module)) is not None:
            found.setdefault(here, set()).update(u for o in others if (u := unit(o)) is not None and u != here)
    return found


def circles(graph: Graph) -> list[list[str]]:
    """The groups of two or more nodes that reach each other (strongly connected components, by Tarjan, 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in number:
            visit(node)
    return sorted(found)


def upward(parts: Graph, floors: Iterable[str]) -> list[str]:
    """The imports between parts of a package that do not go down, for floors listed from bottom to top."""
    place = {name: i for i, floor in enumerate(floors) for name in floor.split()}
    missing = [name for name in parts if name not in place]
    return [f"{name} has no floor" for name in missing] + sorted(
        f"{a} imports {b}"
        for a, others in parts.items()
        for b in others
        if a in place and b in place and place[b] >= place[a]
    )
