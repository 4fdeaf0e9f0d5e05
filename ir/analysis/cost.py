"""Lower bounds on a task's cost: the operations of its definitions and the bytes of its inputs and outputs.

Both follow from the expressions alone, so they hold for every schedule: a schedule that computes or reads something
twice does not change them, and their ratio to measured time says how good it is (the axes of the roofline model:
Williams, Waterman and Patterson, CACM 2009).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from math import prod

from taskmap.ir import nodes as ir
from taskmap.ir.construct import index, static_size
from taskmap.ir.errors import InputError
from taskmap.ir.recurrence import Recurrence
from taskmap.ir.task import Stage, Task
from taskmap.ir.visit import children, substitute

Sizes = Mapping[ir.Var, int]
Axis = tuple[int, int]
"""An axis, by its extent and its number among the visible axes of that extent."""
_ARITHMETIC = (ir.Unary, ir.Binary, ir.Compare, ir.Select, ir.Call, ir.Reduce)
_REDUCTIONS = (ir.Reduce, ir.Scatter, Recurrence)
_NO_SIZES: Sizes = {}


def operations(task: Task, sizes: Sizes = _NO_SIZES) -> int:
    """The arithmetic operations of a task; ``sizes`` are the values of its symbolic sizes.

    A multiply-add counts as two; a comparison, a selection and a function of ``ir.functions`` as one each; conversions
    and index arithmetic, masks of padding included, as zero. Within a stage equal subexpressions count together, once
    per point of the axes that they depend on: the maximum in a softmax once per row, the scores of an attention once
    although both the sum and the product with the values need them. Raises InputError for an unknown size.
    """
    return sum(stage_operations(stage, sizes) for stage in task.stages)


def stage_operations(stage: Stage, sizes: Sizes = _NO_SIZES) -> int:
    """The operations of one stage of a task; see ``operations``."""
    parts = _Parts(stage, sizes)
    counted: set[int] = set()
    total = 0
    for e in _values(stage.body):
        if isinstance(e, _ARITHMETIC) and parts.on_data[id(e)] and parts.number[id(e)] not in counted:
            counted.add(parts.number[id(e)])
            total += parts.points(e.body if isinstance(e, ir.Reduce) else e, e.axes if isinstance(e, ir.Reduce) else ())
        elif isinstance(e, ir.Scatter) and e.op != "last":
            total += parts.points(e.body, e.axes)
    return total


def bytes_moved(task: Task, sizes: Sizes = _NO_SIZES) -> int:
    """The fewest bytes a task reads and writes: each element of its outputs, and the elements read of its inputs.

    A slice or a gather reads no more elements than it has points. Raises InputError for an unknown size.
    """
    reads = dict.fromkeys(task.inputs, 0)
    for stage in task.stages:
        parts = _Parts(stage, sizes)
        seen: set[int] = set()
        for e in parts.expressions:
            if isinstance(e, ir.Load) and e.buffer in reads and parts.number[id(e)] not in seen:
                seen.add(parts.number[id(e)])
                reads[e.buffer] += parts.points(e) * e.buffer.dtype.bytes
    outputs = sum(buffer_bytes(b, sizes) for b in task.outputs)
    return outputs + sum(min(buffer_bytes(b, sizes), read) for b, read in reads.items())


def buffer_bytes(buffer: ir.Buffer, sizes: Sizes = _NO_SIZES) -> int:
    """The bytes of a buffer's elements; those that share memory, along an axis of stride 0, count once."""
    strides = buffer.strides or (1,) * buffer.rank
    return buffer.dtype.bytes * prod(
        known_size(n, sizes) for n, stride in zip(buffer.shape, strides, strict=True) if static_size(stride) != 0
    )


def known_size(size: ir.Dim, sizes: Sizes = _NO_SIZES) -> int:
    """The value of a size. Raises InputError if it depends on variables other than those in ``sizes``."""
    known = static_size(size)
    if known is None and isinstance(size, ir.Expr):
        known = static_size(substitute(size, {v: index(n) for v, n in sizes.items()}))
    if known is None:
        raise InputError(f"the value of the size {size!r} is not known", hint="Pass the values of all symbolic sizes.")
    return known


class _Parts:
    """Facts about every part of a stage's body, by identity.

    ``number`` is equal for parts that compute the same function: axes are named by extent, not by variable, so the sum
    over j of f(i, j) and the element f(i, k) share f. ``on_data``: whether a part's value depends on tensor values.
    """

    def __init__(self, stage: Stage, sizes: Sizes) -> None:
        self.expressions = list(_children_first(stage.body))
        self.number: dict[int, int] = {}
        self.on_data: dict[int, bool] = {}
        self._free: dict[int, frozenset[ir.Var]] = {}
        # A recurrence's state changes from step to step.
        loops = [e for e in self.expressions if isinstance(e, Recurrence)]
        self._changing = {b: frozenset((e.step,)) for e in loops for b in e.own}
        for e in self.expressions:
            self._free[id(e)] = self._free_of(e)
            # A padding mask selects by index: that the masked value is data does not make it an operation.
            asked = (e.cond,) if isinstance(e, ir.Select) else children(e)
            self.on_data[id(e)] = isinstance(e, ir.Load) or any(self.on_data[id(part)] for part in asked)
        self._axes: dict[ir.Var, Axis] = {}
        self._name(zip(stage.axes, stage.shape, strict=True), set(), sizes)
        for e in reversed(self.expressions):
            if isinstance(e, _REDUCTIONS):
                self._name(_bound(e), {self._axes[v] for v in self._free[id(e)] if v in self._axes}, sizes)
        numbers: dict[object, int] = {}
        for e in self.expressions:
            self.number[id(e)] = numbers.setdefault(self._key(e), len(numbers))

    def points(self, e: ir.Expr, axes: Iterable[tuple[ir.Var, ir.Dim]] = ()) -> int:
        """The number of points of the axes that ``e`` depends on, together with ``axes``."""
        used = {self._axes[v] for v in (*self._free[id(e)], *(v for v, _ in axes)) if v in self._axes}
        return prod(extent for extent, _ in used)

    def _free_of(self, e: ir.Expr) -> frozenset[ir.Var]:
        if isinstance(e, ir.Var):
            return frozenset((e,))
        found = frozenset[ir.Var]().union(*(self._free[id(part)] for part in children(e)))
        if isinstance(e, ir.Load):
            return found | self._changing.get(e.buffer, frozenset())
        return found - {v for v, _ in _bound(e)} if isinstance(e, _REDUCTIONS) else found

    def _name(self, axes: Iterable[tuple[ir.Var, ir.Dim]], taken: set[Axis], sizes: Sizes) -> None:
        """Name axes that become visible together; ``taken`` holds the names of those already visible."""
        for v, size in axes:
            extent = known_size(size, sizes)
            self._axes[v] = next((extent, i) for i in count() if (extent, i) not in taken)
            taken.add(self._axes[v])

    def _key(self, e: ir.Expr) -> object:
        parts = tuple(self.number[id(part)] for part in children(e))
        match e:
            case ir.Var():
                return (ir.Var, self._axes.get(e, e))
            case ir.Const():
                return (ir.Const, repr(e.value), e.dtype)
            case ir.Load():
                return (ir.Load, id(e.buffer), parts)
            case ir.Reduce():
                return (ir.Reduce, e.op, tuple(self._axes[v] for v, _ in e.axes), parts)
            case _:
                return (type(e), getattr(e, "op", getattr(e, "name", "")), e.dtype, parts)


def _bound(e: ir.Reduce | ir.Scatter | Recurrence) -> tuple[tuple[ir.Var, ir.Dim], ...]:
    return e.bound if isinstance(e, Recurrence) else e.axes


def _children_first(root: ir.Expr) -> Iterator[ir.Expr]:
    """Every part of ``root``, once, after its own parts."""
    done: set[int] = set()
    stack = [(root, False)]
    while stack:
        e, ready = stack.pop()
        if id(e) in done:
            continue
        if ready:
            done.add(id(e))
            yield e
            continue
        stack.append((e, True))
        stack.extend((part, False) for part in children(e))


def _values(root: ir.Expr) -> Iterator[ir.Expr]:
    """The parts of ``root`` that compute values, as opposed to the indices at which tensors are read."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        e = stack.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        yield e
        if isinstance(e, (ir.Unary, ir.Binary, ir.Compare, ir.Select, ir.Cast, ir.Call)):
            stack.extend(children(e))
        elif isinstance(e, ir.Reduce):
            stack.append(e.body)
        elif isinstance(e, ir.Scatter):
            stack += [e.initial, e.body]
        elif isinstance(e, Recurrence):
            stack += e.values
