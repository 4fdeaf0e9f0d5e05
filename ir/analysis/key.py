"""The canonical text of a task or a kernel: with equal texts, one kernel serves both.

The text contains everything that can change the generated code: types, shapes, strides, offsets, scopes, layouts,
owners, bodies, labels, attributes, the anchor, the outputs, the launch. It leaves out names of variables, buffers and
kernels, notes and source locations: variables and buffers are numbered in order of first appearance. Equal
subexpressions are written once, so the text stays linear in the size of the DAG.

A number stands for a variable only if something inside binds it: an axis, a loop, a Let, or the sizes that a task or a
kernel takes as arguments. A *free* variable has its meaning outside, so it counts by identity: ``x / n`` and ``x / m``
get the same text and are still not interchangeable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from taskmap.ir.algebra.layout import Layout
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.errors import TypeMismatchError, VerifyError
from taskmap.ir.nodes import Buffer, Expr, For, Kernel, Let, MappedFor, Reduce, Scatter, Stmt, TensorMap, Var
from taskmap.ir.recurrence import Recurrence
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType
from taskmap.ir.visit import children
from taskmap.ir.workers import BLOCKS, MULTIPROCESSORS, THREAD

_PLAIN = (bool, int, float, str, bytes, type(None))
_EXACT = frozenset(_PLAIN)
# The fields that determine the meaning of a mapping or a layout; the way they were written does not count.
_MEANING: dict[type, tuple[str, ...]] = {
    TaskMapping: ("task_shape", "parts"),
    Layout: ("shape", "modes", "size", "swizzle"),
    Buffer: ("dtype", "shape", "scope", "strides", "offset", "layout", "owner"),
    Var: ("dtype", "lanes"),
    Task: ("inputs", "stages", "outputs", "dims", "anchor"),
    Stage: ("out", "axes", "body", "label", "attrs"),
    Kernel: ("buffers", "outputs", "dims", "body", "launch"),
    TensorMap: ("buffer", "box", "swizzle", "tensor"),
}
_BINDS: dict[type, Callable[[Any], Iterable[Var]]] = {
    Reduce: lambda e: (var for var, _ in e.axes),
    Scatter: lambda e: (var for var, _ in e.axes),
    Recurrence: lambda e: (var for var, _ in e.bound),
    For: lambda s: (s.var,),
    MappedFor: lambda s: s.vars,
    Let: lambda s: (s.var,),
    Stage: lambda s: s.axes,
    Task: lambda t: t.dims,
    Kernel: lambda k: k.dims,
}
_WORKERS = frozenset({THREAD, *BLOCKS, MULTIPROCESSORS})
"""Variables defined by the launch, with one meaning everywhere."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The canonical text of an item, and its free variables in the order of their numbers. Two items in one scope are
    interchangeable if both are equal."""

    text: str
    free: tuple[Var, ...]


_known_fields: dict[type, tuple[str, ...] | None] = {**_MEANING}


def _fields(kind: type) -> tuple[str, ...] | None:
    """The fields that count; None if ``kind`` is not a dataclass."""
    if kind not in _known_fields:
        found = dataclasses.is_dataclass(kind)
        names = [f.name for f in dataclasses.fields(kind) if f.compare and f.name != "source"] if found else []
        _known_fields[kind] = tuple(names) if found else None
    return _known_fields[kind]


class _Canon:
    """Writes each distinct object once, as a numbered line, and refers to it by its number."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.number: dict[str, int] = {}
        self.seen: dict[int, str] = {}
        self.kept: list[object] = []  # keeps the objects in `seen` alive, so that no id is reused
        self.used: dict[Var, None] = {}
        self.bound: set[Var] = set()

    def ref(self, item: Any) -> str:
        """The text that refers to ``item`` inside another line."""
        kind = type(item)
        if kind in _EXACT:
            return repr(item)
        if kind is tuple:
            return f"({','.join([self.ref(i) for i in item])})"
        known = self.seen.get(id(item))
        if known is not None:
            return known
        if isinstance(item, _PLAIN):
            return repr(item)
        if isinstance(item, (tuple, list)):
            return f"({','.join([self.ref(i) for i in item])})"
        if isinstance(item, Expr):
            self._define_deep(item)
            return self.seen[id(item)]
        if isinstance(item, (DType, Enum)):
            return item.name
        if isinstance(item, dict):
            return f"{{{','.join(f'{self.ref(k)}:{self.ref(v)}' for k, v in item.items())}}}"
        self._remember(item)
        return self.seen[id(item)]

    def refs(self, items: Iterable[Any]) -> list[str]:
        return [self.ref(i) for i in items]

    def _define_deep(self, expr: Expr) -> None:
        """Operands first, without recursion: a fused chain may be deeper than Python's stack."""
        stack, seen = [expr], self.seen
        while stack:
            item = stack[-1]
            if id(item) not in seen:
                waiting = [k for k in children(item) if id(k) not in seen]
                if waiting:
                    stack.extend(reversed(waiting))
                    continue
                self._remember(item)
            stack.pop()

    def _remember(self, item: Any) -> None:
        self.kept.append(item)
        self.seen[id(item)] = self._define(item)

    def _define(self, item: Any) -> str:
        if isinstance(item, Var):
            if item in _WORKERS:
                return f"{item.name}@launch"
            self.used[item] = None
        self.bound.update(_BINDS[type(item)](item) if type(item) in _BINDS else ())
        kind = type(item)
        fields = _fields(kind)
        if fields is None:
            raise TypeMismatchError(
                f"{item!r} cannot be part of a structural key",
                hint="Use numbers, strings, tuples, IR nodes and frozen dataclasses of them as attributes.",
            )
        text = f"{kind.__name__}({','.join([self.ref(getattr(item, name)) for name in fields])})"
        if kind in (Var, Buffer):
            text += f" #{len(self.lines)}"
        if text not in self.number:
            self.number[text] = len(self.lines)
            self.lines.append(text)
        return f"%{self.number[text]}"

    def text(self, *roots: Any) -> str:
        last = self.refs(roots)
        return "\n".join([*self.lines, *last])

    @property
    def free(self) -> tuple[Var, ...]:
        """The variables in the text that nothing in it binds."""
        return tuple(v for v in self.used if v not in self.bound)


def task_key(task: Task) -> str:
    """The canonical text of a task. Raises TypeMismatchError for an attribute without a canonical form, and VerifyError
    for a symbolic size that is not one of the task's."""
    return _closed(_structure_of(task), f"the task {task.name!r}")


def kernel_key(kernel: Kernel) -> str:
    """The canonical text of a kernel. Raises VerifyError for a variable that nothing in the kernel defines."""
    return _closed(_written(kernel), f"the kernel {kernel.name!r}")


def structure(item: Expr | Stmt | tuple[Stmt, ...] | Task) -> Structure:
    """The structure of an expression, of a body, or of a task that refers to sizes defined outside it."""
    return _structure_of(item) if isinstance(item, Task) else _written(item)


def _structure_of(task: Task) -> Structure:
    """The structure of a task, which planning and compiling both need: it is written once."""
    known = task.written
    if isinstance(known, Structure):
        return known
    made = _written(task)
    object.__setattr__(task, "written", made)
    return made


def _written(item: Expr | Stmt | tuple[Stmt, ...] | Task | Kernel) -> Structure:
    canon = _Canon()
    text = canon.text(item)
    return Structure(text, canon.free)


def _closed(written: Structure, what: str) -> str:
    """The text of a self-contained item: one text then has one meaning, in any process."""
    if written.free:
        raise VerifyError(
            f"{what} names {', '.join(v.name for v in written.free)}, which it does not take",
            why="its key would equal that of an item that names other sizes",
        )
    return written.text
