"""Guides, README and examples use names of the declared public interface only: those in ``__all__`` of their module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[1]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCK = re.compile(r"^```python(?! entry)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPTED = re.compile(r"^ *(?:>>>|\.\.\.) ?(.*)$", re.MULTILINE)
SPOKEN = re.compile(r"`(taskmap(?:\.\w+)+)[`(]")
ADDED = ("taskmap.graph.ops.arithmetic", "ldexp")  # by a guide itself
Use = tuple[str, str]
"""A module, and what is taken of it; "" for the module itself."""


def sources(text: str) -> Iterator[str]:
    """The Python of a page: its blocks, the code after prompts, and the dotted names in its sentences."""
    for block in BLOCK.findall(text):
        if ">>>" not in block:
            yield dedent(block)
    yield "\n".join(line for line in PROMPTED.findall(text) if line.startswith(("import ", "from ")))
    yield "\n".join(["import taskmap", *SPOKEN.findall(text)])


def uses(source: str) -> Iterator[Use]:
    """The names of taskmap in Python code: imports, and attributes of imported modules."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _ours(node.module or ""):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (str(node.module), alias.name) if not _is_module(inner) else (inner, "")
                modules |= {alias.asname or alias.name: inner} if _is_module(inner) else {}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _ours(alias.name):
                    yield alias.name, ""
                    modules |= {alias.asname: alias.name} if alias.asname else {"taskmap": "taskmap"}
    inner_nodes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner_nodes:
            first, *rest = ast.unparse(node).split(".")
            if first in modules and all(part.isidentifier() for part in rest):
                yield _resolved(modules[first], rest)


def added(text: str) -> set[str]:
    """The names that a page itself adds to taskmap's files, in the form of ``undeclared``."""
    files = re.findall(r"^```python file=([\w/]+)\.py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found = [(f"taskmap.{file.replace('/', '.')}", ast.parse(block)) for file, block in files if "/" in file]
    return {f"{module}: {n.name}" for module, tree in found for n in tree.body if isinstance(n, ast.FunctionDef)}


def _ours(module: str) -> bool:
    return module.split(".")[0] == "taskmap"


def _is_module(name: str) -> bool:
    """True if a module has that name, and no public name of its package does."""
    package, _, last = name.rpartition(".")
    if not package:
        return True
    owner = import_module(package)
    if last in getattr(owner, "__all__", ()):
        return False
    return hasattr(owner, "__path__") and find_spec(name) is not None


def _resolved(module: str, rest: list[str]) -> Use:
    for n, part in enumerate(rest):
        inner = f"{module}.{part}"
        if not _is_module(inner):
            return module, rest[n]
        module = inner
    return module, ""


def undeclared(source: str) -> list[str]:
    """The uses that ``__all__`` of the module does not allow, or whose module has no ``__all__``."""
    wrong = []
    for module, name in uses(source):
        declared = getattr(import_module(module), "__all__", None)
        if declared is None or (name and name not in declared):
            wrong.append(f"{module}: {name or 'no __all__'}")
    return sorted(set(wrong))


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.name)
def test_the_names_of_a_page_are_public(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = {name for source in sources(text) for name in undeclared(source)}
    assert sorted(found - added(text)) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.name)
def test_the_names_of_an_example_are_public(example: Path) -> None:
    assert undeclared(example.read_text(encoding="utf-8")) == []


def listed() -> list[str]:
    """The modules that docs/architecture.md declares to be public."""
    section = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## The public interface")[2]
    return re.findall(r"`(taskmap(?:\.\w+)*)`", section.partition("\n## ")[0])


def test_the_modules_of_the_public_interface_are_those_that_guides_use() -> None:
    texts = [source for page in GUIDES for source in sources(page.read_text(encoding="utf-8"))]
    texts += [example.read_text(encoding="utf-8") for example in EXAMPLES]
    used = {module for text in texts for module, name in uses(text) if (module, name) != ADDED}
    assert used <= set(listed())


@pytest.mark.parametrize("module", listed())
def test_public_names_exist(module: str) -> None:
    declared = import_module(module).__all__
    assert len(set(declared)) == len(declared)
    assert [name for name in declared if not hasattr(import_module(module), name)] == []


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("from taskmap.ir import repeat", []),
        ("from taskmap import build as b, errors\nerrors.InputError", []),
        ("from taskmap.ir.script.read import _builtin", ["taskmap.ir.script.read: _builtin"]),
        ("from taskmap.ir.nodes import hash_once", ["taskmap.ir.nodes: hash_once"]),
        ("import taskmap\ntaskmap.import_module('os')", ["taskmap: import_module"]),
        ("import taskmap.ir.analysis.simplify as s", ["taskmap.ir.analysis.simplify: no __all__"]),
        ("import taskmap\nprint(taskmap.ir.repeat(2), taskmap.ir.nothing.more)", ["taskmap.ir: nothing"]),
        ("import taskmap.errors as e\ne.TaskmapError, e.Other", ["taskmap.errors: Other"]),
    ],
)
def test_undeclared_names_are_found(source: str, wrong: list[str]) -> None:
    assert undeclared(source) == wrong
