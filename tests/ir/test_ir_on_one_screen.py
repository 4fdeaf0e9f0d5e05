"""docs/ir-on-one-screen.md lists every node of the tensor IR, its fields and their types, as the classes have them."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from enum import Enum
from typing import TypeGuard

import pytest

from taskmap.ir import expressions as expression_nodes
from taskmap.ir import nodes, recurrence
from taskmap.ir.nodes import Expr, Stmt
from tests.following import ROOT

PAGE = ROOT / "docs" / "ir-on-one-screen.md"
GENERAL = {Expr: ("dtype", "lanes"), Stmt: ("source",)}
"""The fields that all nodes of a kind have; the table's head lists them once."""


def test_the_page_matches_the_classes(request: pytest.FixtureRequest) -> None:
    written = PAGE.read_text(encoding="utf-8")
    head, opened, rest = written.partition("```text\n")
    _, closed, tail = rest.partition("```\n")
    right = head + opened + screen() + closed + tail
    if request.config.getoption("--update-golden"):
        PAGE.write_text(right, encoding="utf-8")
        return
    assert written == right, "the IR has changed: run pytest --update-golden and read the difference"


def test_it_fits_on_one_screen() -> None:
    lines = screen().splitlines()
    assert 35 <= len(lines) <= 60
    assert max(map(len, lines)) <= 120


def test_no_node_is_left_out() -> None:
    shown = screen()
    public = [name for name in nodes.__all__ if isinstance(getattr(nodes, name), type)]
    assert [name for name in (*public, "Recurrence") if name not in shown.split()] == []


def screen() -> str:
    """The whole IR: expressions, statements, and their parts."""
    known: list[object] = [*vars(expression_nodes).values(), *vars(nodes).values(), recurrence.Recurrence]
    kinds = list(dict.fromkeys(kind for kind in known if _is_ours(kind)))
    expressions = [kind for kind in kinds if issubclass(kind, Expr) and kind is not Expr]
    statements = [kind for kind in kinds if issubclass(kind, Stmt) and kind is not Stmt]
    rest = [kind for kind in kinds if not issubclass(kind, (Expr, Stmt, Enum))]
    enums = [kind for kind in kinds if issubclass(kind, Enum)]
    lines = ["Expr            dtype: DType, lanes: int, and:", *map(_line, expressions), ""]
    lines += ["Stmt            source: SourceLocation | None, and:", *map(_line, statements), ""]
    lines += [*map(_line, rest), ""]
    lines += [f"{kind.__name__:15} {' | '.join(member.name for member in kind)}" for kind in enums]
    lines += [f"{name:15} {value}" for name, value in ALIASES.items()]
    return "\n".join(lines) + "\n"


ALIASES = {"Body": "tuple[Stmt, ...]", "Dim": "int | Expr"}


def test_the_aliases_are_those_of_the_ir() -> None:
    assert nodes.Body == tuple[Stmt, ...]
    assert int | Expr == nodes.Dim


def _is_ours(kind: object) -> TypeGuard[type]:
    return inspect.isclass(kind) and kind.__module__ in (expression_nodes.__name__, nodes.__name__, recurrence.__name__)


def _line(kind: type) -> str:
    general = next((names for base, names in GENERAL.items() if issubclass(kind, base)), ())
    own = [f for f in dataclasses.fields(kind) if f.name not in general and f.name != "uid"]
    indent = "" if not issubclass(kind, (Expr, Stmt)) else "    "
    text = ", ".join(f"{f.name}: {f.type}".replace(" ", "\N{NO-BREAK SPACE}") for f in own)
    head = f"{indent}{kind.__name__:{15 - len(indent)}} "
    wrapped = textwrap.fill(text, 120, initial_indent=head, subsequent_indent=" " * 18) or head.rstrip()
    return wrapped.replace("\N{NO-BREAK SPACE}", " ")
