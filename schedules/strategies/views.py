"""Operands as buffers with one dimension for each group of merged axes: those that lie in memory unchanged, and those
that are computed, in the order in which they are best computed."""

from __future__ import annotations

from itertools import accumulate

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.polynomial import Poly
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import index, static_size
from taskmap.ir.lower.flatten import address
from taskmap.ir.nodes import Buffer, Dim
from taskmap.ir.task import Task
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common.access import accesses, step_along
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.source import source_of
from taskmap.schedules.strategies.product import Axes, ProductOperand


def view_of(task: Task, factor: ProductOperand) -> tuple[Buffer, Buffer] | None:
    """(input, view): the input of the task that holds the factor, and the same memory with the factor's dimensions.

    None for a factor that is computed, is read at computed addresses, or has axes that do not merge in memory.
    """
    simplifier = Simplifier()
    for v, n in (pair for group in factor.axes for pair in group):
        simplifier.bind(v, n)
    cond, read = source_of(task, simplifier, lambda values: values.expand(factor.expr, {})) or (None, None)
    if read is None or cond is not None or read.buffer not in task.inputs or read.buffer.layout is not None:
        return None
    terms = simplifier.poly(address(read.buffer, read.indices))
    strides: list[Dim] = []
    for group in factor.axes:
        stride = _stride(terms, group)
        if stride is None:
            return None
        strides.append(stride)
    axes = {v for group in factor.axes for v, _ in group}
    rest = {m: c for m, c in terms.items() if not axes.intersection(m)}
    if any(axes.intersection(walk_exprs(a)) for m in rest for a in m):
        return None
    view = Buffer(read.buffer.name, read.buffer.dtype, factor.shape, strides=tuple(strides), offset=_dim(rest))
    return read.buffer, view


def computed_buffer(task: Task, factor: ProductOperand) -> Buffer:
    """A buffer that stands for a factor in no memory. Its strides say along which axis the producers of its elements
    read neighbours in memory: threads that share it out follow them."""
    pairs = [pair for group in factor.axes for pair in group]

    def element(values: Inliner) -> None:
        values.expand(factor.expr, {})

    walks = accesses(task, [v for v, _ in pairs], [n for _, n in pairs], (), element)
    ends = list(accumulate(len(group) for group in factor.axes))
    gains = [
        sum(w.step(end - 1) == 1 for w in walks) if group else 0 for end, group in zip(ends, factor.axes, strict=True)
    ]
    fast = max(range(len(gains)), key=lambda d: (gains[d], d))
    return factor.buffer(fast)


def _stride(terms: Poly, group: Axes) -> Dim | None:
    """The stride of merged axes, each of which steps over those inside it."""
    inner: Poly = {}
    expected: Poly | None = None
    for v, n in reversed([(v, n) for v, n in group if static_size(n) != 1]):
        step = step_along(terms, v)
        if step is None or (expected is not None and step != expected):
            return None
        inner = step if expected is None else inner
        expected = poly.multiply(step, poly.to_poly(index(n)))
    return _dim(inner)


def _dim(terms: Poly) -> Dim:
    known = poly.constant_value(terms)
    return poly.to_expr(terms) if known is None else known
