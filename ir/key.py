"""The canonical text of a task or a kernel: equal texts mean that one kernel serves both.

Everything that can change the generated code is in it: types, shapes, strides, offsets, scopes, layouts, owners,
bodies, labels, attributes, the anchor, the outputs, the launch. Names of variables, buffers and kernels, notes and
source locations are not: variables and buffers are numbered in order of first appearance. Equal subexpressions are
written once, so the text stays linear in the size of the DAG.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from enum import Enum
from typing import Any

from taskmap.ir.errors import TypeMismatchError
from taskmap.ir.layout import Layout
from taskmap.ir.mapping import TaskMapping
from taskmap.ir.nodes import Buffer, Expr, Kernel, Stmt, TensorMap, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType
from taskmap.ir.visit import children

_PLAIN = (bool, int, float, str, bytes, type(None))
# What a mapping and a layout mean; how they were written does not count.
_MEANING: dict[type, tuple[str, ...]] = {
    TaskMapping: ("task_shape", "parts"),
    Layout: ("shape", "modes", "size", "swizzle"),
    Buffer: ("dtype", "shape", "scope", "strides", "offset", "layout", "owner"),
    Var: ("dtype", "lanes"),
    Task: ("inputs", "stages", "outputs", "dims", "anchor"),
    Stage: ("out", "axes", "body", "label", "attrs"),
    Kernel: ("buffers", "outputs", "dims", "body", "grid", "threads", "cluster", "min_blocks", "maps"),
    TensorMap: ("buffer", "box", "swizzle", "tensor"),
}


class _Canon:
    """Writes each distinct object once, as a numbered line, and refers to it by its number."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.number: dict[str, int] = {}
        self.seen: dict[int, str] = {}
        self.kept: list[object] = []  # keeps what is in seen alive, so that no id is given twice

    def ref(self, item: Any) -> str:
        """The text that stands for ``item`` inside another line."""
        if isinstance(item, _PLAIN):
            return repr(item)
        if isinstance(item, DType):
            return item.name
        if isinstance(item, Enum):
            return item.name
        if isinstance(item, (tuple, list)):
            return f"({','.join(self.refs(item))})"
        if isinstance(item, dict):
            return f"{{{','.join(f'{self.ref(k)}:{self.ref(v)}' for k, v in item.items())}}}"
        if isinstance(item, Expr):
            self._define_deep(item)
        elif id(item) not in self.seen:
            self._remember(item)
        return self.seen[id(item)]

    def refs(self, items: Iterable[Any]) -> list[str]:
        return [self.ref(i) for i in items]

    def _define_deep(self, expr: Expr) -> None:
        """Operands first, without recursion: a fused chain may be deeper than Python's stack."""
        stack = [expr]
        while stack:
            waiting = [] if id(stack[-1]) in self.seen else [k for k in children(stack[-1]) if id(k) not in self.seen]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            item = stack.pop()
            if id(item) not in self.seen:
                self._remember(item)

    def _remember(self, item: Any) -> None:
        self.kept.append(item)
        self.seen[id(item)] = self._define(item)

    def _define(self, item: Any) -> str:
        if not dataclasses.is_dataclass(item):
            raise TypeMismatchError(
                f"{item!r} cannot be part of a structural key",
                hint="Use numbers, strings, tuples, IR nodes and frozen dataclasses of them as attributes.",
            )
        kind = type(item)
        fields = _MEANING.get(kind)
        if fields is None:
            fields = tuple(f.name for f in dataclasses.fields(item) if f.compare and f.name != "source")
        text = f"{kind.__name__}({','.join(self.refs(getattr(item, name) for name in fields))})"
        if kind in (Var, Buffer):
            text += f" #{len(self.lines)}"
        if text not in self.number:
            self.number[text] = len(self.lines)
            self.lines.append(text)
        return f"%{self.number[text]}"

    def text(self, *roots: Any) -> str:
        last = self.refs(roots)
        return "\n".join([*self.lines, *last])


def task_key(task: Task) -> str:
    """The canonical text of a task. Raises TypeMismatchError for an attribute that has no canonical form."""
    return _Canon().text(task)


def kernel_key(kernel: Kernel) -> str:
    """The canonical text of a kernel."""
    return _Canon().text(kernel)


def structure(item: Expr | Stmt | tuple[Stmt, ...]) -> str:
    """The canonical text of an expression or a body; free variables are numbered as they come."""
    return _Canon().text(item)
