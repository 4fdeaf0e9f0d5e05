"""What a task costs at least: the operations of its definitions and the bytes of its inputs and outputs.

Both follow from the expressions alone, so they hold for every schedule: a schedule that computes or reads something
twice does not change them, and the ratio to measured time says how good it is (the axes of the roofline model,
Williams, Waterman and Patterson, CACM 2009).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from taskmap.ir.construct import constant_dim, index
from taskmap.ir.errors import InputError
from taskmap.ir.nodes import Binary, Buffer, Call, Cast, Compare, Dim, Expr, Load, Reduce, Select, Unary, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.visit import children, substitute, walk_exprs

Sizes = Mapping[Var, int]
_ARITHMETIC = (Unary, Binary, Compare, Select, Call, Reduce)
_NO_SIZES: Sizes = {}


def operations(task: Task, sizes: Sizes = _NO_SIZES) -> int:
    """The arithmetic operations of a task, where ``sizes`` are the values of its symbolic sizes.

    A multiply-add is two; a comparison, a selection and a function of ``ir.functions`` are one each; conversions and
    the arithmetic of indices, masks of padding included, are none. A part of an expression counts once for each point
    of the axes that it depends on: the maximum in a softmax, once a row. Raises InputError for a size that is unknown.
    """
    return sum(stage_operations(stage, sizes) for stage in task.stages)


def stage_operations(stage: Stage, sizes: Sizes = _NO_SIZES) -> int:
    """The operations of one stage of a task; see ``operations``."""
    extents = _extents(stage, sizes)
    depends = _Dependence()
    total = 0
    for e in _values(stage.body):
        if isinstance(e, _ARITHMETIC) and depends.on_data(e):
            axes = {v for v, _ in e.axes} | depends.variables(e.body) if isinstance(e, Reduce) else depends.variables(e)
            total += prod(extents[v] for v in axes if v in extents)
    return total


def bytes_moved(task: Task, sizes: Sizes = _NO_SIZES) -> int:
    """The bytes that a task reads and writes at least: each element of its outputs, and of its inputs those it reads.

    A slice or a gather reads no more elements than it has points. Raises InputError for a size that is unknown.
    """
    outputs = sum(buffer_bytes(b, sizes) for b in task.outputs)
    reads = dict.fromkeys(task.inputs, 0)
    for stage in task.stages:
        extents = _extents(stage, sizes)
        depends = _Dependence()
        for e in walk_exprs(stage.body):
            if isinstance(e, Load) and e.buffer in reads:
                points = prod(extents[v] for v in depends.variables(e) if v in extents)
                reads[e.buffer] += points * e.buffer.dtype.bytes
    return outputs + sum(min(buffer_bytes(b, sizes), read) for b, read in reads.items())


def buffer_bytes(buffer: Buffer, sizes: Sizes = _NO_SIZES) -> int:
    """The bytes of a buffer's elements; those that share memory, along an axis of stride 0, count once."""
    strides = buffer.strides or (1,) * buffer.rank
    return buffer.dtype.bytes * prod(
        known_size(n, sizes) for n, stride in zip(buffer.shape, strides, strict=True) if constant_dim(stride) != 0
    )


def known_size(size: Dim, sizes: Sizes) -> int:
    """The value of a size. Raises InputError when it depends on more than ``sizes``."""
    known = constant_dim(size)
    if known is None and isinstance(size, Expr):
        known = constant_dim(substitute(size, {v: index(n) for v, n in sizes.items()}))
    if known is None:
        raise InputError(f"the value of the size {size!r} is not known", hint="Pass the values of all symbolic sizes.")
    return known


class _Dependence:
    """Which variables an expression depends on, and whether it depends on data at all; each node is looked at once."""

    def __init__(self) -> None:
        self._variables: dict[int, frozenset[Var]] = {}
        self._data: dict[int, bool] = {}

    def variables(self, e: Expr) -> frozenset[Var]:
        """The variables that ``e`` depends on; those that a Reduce binds are its own."""
        self._visit(e)
        return self._variables[id(e)]

    def on_data(self, e: Expr) -> bool:
        """Whether a tensor is read for the value of ``e``."""
        self._visit(e)
        return self._data[id(e)]

    def _visit(self, root: Expr) -> None:
        for e in _children_first(root, self._variables):
            parts = children(e)
            found = frozenset((e,)) if isinstance(e, Var) else frozenset[Var]()
            for part in parts:
                found |= self._variables[id(part)]
            if isinstance(e, Reduce):
                found -= {v for v, _ in e.axes}
            self._variables[id(e)] = found
            # A mask of padding selects by indices: that the masked value is data makes it no operation.
            asked = (e.cond,) if isinstance(e, Select) else parts
            self._data[id(e)] = isinstance(e, Load) or any(self._data[id(part)] for part in asked)


def _children_first(root: Expr, done: Mapping[int, object]) -> Iterable[Expr]:
    stack = [(root, False)]
    while stack:
        e, ready = stack.pop()
        if id(e) in done:
            continue
        if ready:
            yield e
            continue
        stack.append((e, True))
        stack.extend((part, False) for part in children(e))


def _values(root: Expr) -> Iterable[Expr]:
    """The expressions under ``root`` that compute values: not the indices at which tensors are read."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        e = stack.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        yield e
        if isinstance(e, (Unary, Binary, Compare, Select, Cast, Call)):
            stack.extend(children(e))
        elif isinstance(e, Reduce):
            stack.append(e.body)


def _extents(stage: Stage, sizes: Sizes) -> dict[Var, int]:
    """How many values each axis of the stage and each summed axis takes."""
    extents = {v: known_size(n, sizes) for v, n in zip(stage.axes, stage.shape, strict=True)}
    for e in walk_exprs(stage.body):
        if isinstance(e, Reduce):
            extents.update((v, known_size(n, sizes)) for v, n in e.axes)
    return extents

