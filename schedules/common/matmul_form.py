"""The canonical form of a matrix product: batch × (m×k · k×n), element types, and the operands' contiguous axes.

The problems that tuning knows on each device extend this form with the configurations of the device's template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from taskmap.ir.analysis.contraction import Contraction, find_contraction
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import cast, ceil_div, index, product, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Buffer, Cast, Dim, Expr, Load, Reduce, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, compute_type, i16
from taskmap.ir.visit import substitute, walk_exprs
from taskmap.schedules.common.convolution_geometry import find_convolution, is_matrix_product
from taskmap.schedules.common.space import likely, read_types, sizes_text, types_text, unreadable

_SHAPES = re.compile(r"(\??[1-9]\d{0,11})x(\??[1-9]\d{0,11})x(\??[1-9]\d{0,11})x(\??[1-9]\d{0,11})")
_NAMES = ("batch", "m", "n", "k")
_LAYOUT = re.compile(r"a=([mk]|computed) b=([nk]|computed|packed([1-9]\d{0,4}))")
_LARGEST = 1 << 34
"""Elements of an operand that tuning accepts; text from elsewhere may ask for any number."""
_Form = TypeVar("_Form", bound="MatmulForm")


@dataclass(frozen=True, slots=True)
class MatmulForm:
    """out[b, i, j] = sum over s of A[b, i, s] · B[b, s, j].

    types: element types of A, B and the output. a: the axis along which A is contiguous, "k" or "m", or "computed"
    if it is fused. b: "n", "k", "computed", or "packed32" for panels of 32 columns. free: sizes known only when the
    kernel runs; the form holds likely values for them.
    """

    batch: int
    m: int
    n: int
    k: int
    types: tuple[DType, DType, DType]
    a: str = "k"
    b: str = "n"
    free: tuple[str, ...] = ()

    template: ClassVar[str]

    @property
    def shapes(self) -> str:
        """Batch, m, n and k; a question mark before a size that is known only when the kernel runs."""
        return sizes_text((getattr(self, name) for name in _NAMES), (name in self.free for name in _NAMES))

    @property
    def dtypes(self) -> str:
        """Of A, B and the output."""
        return types_text(self.types)

    @property
    def layout(self) -> str:
        """Of A and B."""
        return f"a={self.a} b={self.b}"

    @property
    def operations(self) -> float:
        """Two for each term of each sum."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def packed(self) -> int | None:
        """The width of B's panels, or None if B is not packed."""
        return int(self.b.removeprefix("packed")) if self.b.startswith("packed") else None

    @property
    def likely(self: _Form) -> _Form:
        """The same product with all sizes known."""
        return replace(self, free=())

    @property
    def accumulate(self) -> DType:
        """The type of the sums."""
        return compute_type(self.types[0])

    def dims(self) -> tuple[int, ...]:
        """Values of the task's symbolic sizes."""
        return tuple(getattr(self, name) for name in self.free)

    def task(self) -> Task:
        """The product alone, on arrays as ``layout`` says."""
        dims = {name: Var(name) for name in self.free}
        sizes: dict[str, Dim] = {name: getattr(self, name) for name in _NAMES}
        sizes.update(dims)
        batch, m, n, k = (sizes[name] for name in _NAMES)
        a = _stored("a", self.types[0], (batch, m, k), self.a == "m")
        if self.packed:
            b = Buffer("b", self.types[1], (ceil_div(n, self.packed), k, self.packed))
        else:
            b = _stored("b", self.types[1], (batch, k, n), self.b == "k")
        out = Buffer("out", self.types[2], (batch, m, n))
        z, i, j, s = Var("z"), Var("i"), Var("j"), Var("s")
        right = b[j // self.packed, s, j % self.packed] if self.packed else b[z, s, j]
        terms = cast(a[z, i, s], self.accumulate) * cast(right, self.accumulate)
        body = cast(Reduce("sum", ((s, index(k)),), terms, self.accumulate), self.types[2])
        return Task("matmul", (a, b), (Stage(out, (z, i, j), body, "matmul"),), (out,), tuple(dims.values()), 0)

    @classmethod
    def find(cls: type[_Form], task: Task, hints: Mapping[Var, int]) -> _Form | None:
        """The product that anchors a task. None if there is none, if ``hints`` give no value for a symbolic size, or if
        it is summed along several axes."""
        found = anchor_of(task)
        if found is None:
            return None
        stage, c = found
        conv = find_convolution(task)
        if not c.reduce.dtype.is_float or "correlation" in dict(stage.attrs) or (conv and not is_matrix_product(conv)):
            return None
        extents = [product([d for _, d in axes]) for axes in (c.batch, c.m, c.n, c.k)]
        sizes = [likely(d, hints) for d in extents]
        if sum(static_size(d) != 1 for _, d in c.k) != 1 or not all(sizes):
            return None
        batch, m, n, k = (s or 0 for s in sizes)
        free = tuple(name for name, d in zip(_NAMES, extents, strict=True) if static_size(d) is None)
        summed = next(v for v, d in c.k if static_size(d) != 1)
        left, right = _read(c.a, summed), _read(c.b, summed)
        if left is None or right is None or not (left.buffer.dtype.is_float and right.buffer.dtype.is_float):
            return None
        if packed_group(task, c) > 1:
            return None
        width = packed_panels(task, c)
        simplifier = Simplifier()
        for v, extent in (*c.batch, *c.m, *c.n, *c.k):
            simplifier.bind(v, extent)
        b = f"packed{width}" if width else _along(right, {"n": c.n[-1][0], "k": summed}, task, simplifier)
        a = _along(left, {"k": summed, "m": c.m[-1][0]}, task, simplifier)
        return cls(batch, m, n, k, (left.buffer.dtype, right.buffer.dtype, stage.out.dtype), a, b, free)

    @classmethod
    def parse(cls: type[_Form], shapes: str, dtypes: str, layout: str) -> _Form:
        """The problem that these texts describe. Raises ScheduleError if they describe none."""
        sizes, where = _SHAPES.fullmatch(shapes), _LAYOUT.fullmatch(layout)
        types = read_types(dtypes)
        if sizes is None or where is None or len(types) != 3 or not all(t.is_float for t in types):
            raise unreadable(cls.template, f"{shapes} {dtypes} {layout}")
        batch, m, n, k = (int(s.removeprefix("?")) for s in sizes.groups())
        free = tuple(name for name, text in zip(_NAMES, sizes.groups(), strict=True) if text.startswith("?"))
        if where[3] is not None and (batch != 1 or "batch" in free):
            raise unreadable(cls.template, f"{shapes} {dtypes} {layout}")
        if batch * max(m * n, m * k, n * k) > _LARGEST:
            raise ScheduleError(
                f"a product of {shapes} is too large to be tuned",
                why=f"an operand has more than {_LARGEST:g} elements.",
            )
        return cls(batch, m, n, k, (types[0], types[1], types[2]), where[1], where[2], free)


def anchor_of(task: Task) -> tuple[Stage, Contraction] | None:
    """The first stage of a task (its anchor, if it has one) that is a contraction, with that contraction; else None."""
    stages = [task.stages[task.anchor]] if task.anchor is not None else task.stages
    for stage in stages:
        found = find_contraction(stage.axes, stage.shape, stage.body)
        if found is not None:
            return stage, found
    return None


def packed_panels(task: Task, c: Contraction) -> int | None:
    """The width of the panels in which B is packed, or the tensors from which it is computed; None if it is not packed.
    Reads beyond the last column of a packed B stay inside it."""
    if len(c.n) != 1:
        return None
    column, last = c.n[0][0], -1 if packed_group(task, c) == 1 else -2
    loads = [e for e in walk_exprs(c.b) if isinstance(e, Load) and column in walk_exprs(e)]
    place = {e: -2 if e.dtype == i16 and e.buffer.rank == 4 else last for e in loads}  # codes lie in pairs of words
    widths = {static_size(e.buffer.shape[place[e]]) if e.buffer.shape else None for e in loads}
    if len(widths) != 1 or any(e.buffer in task.producers for e in loads):
        return None
    (width,) = widths
    packed = width is not None and all(
        e.indices[0] == column // width and e.indices[place[e]] == column % width for e in loads
    )
    return width if packed else None


def packed_group(task: Task, c: Contraction) -> int:
    """The number of neighbours along the sum that a packed B stores together, as one instruction multiplies them."""
    b = c.b
    while isinstance(b, Cast):
        b = b.a
    if not isinstance(b, Load) or len(c.k) != 1 or len(b.indices) != 4 or b.buffer in task.producers:
        return 1
    size, k = static_size(b.buffer.shape[-1]), c.k[0][0]
    grouped = size is not None and size > 1 and b.indices[1] == k // size and b.indices[-1] == k % size
    return size if grouped and size is not None else 1


def _stored(name: str, dtype: DType, shape: tuple[Dim, Dim, Dim], turned: bool) -> Buffer:
    outer, rows, columns = shape
    return Buffer(name, dtype, (outer, rows, columns), strides=(rows * columns, 1, rows) if turned else None)


def _read(e: Expr, summed: Var) -> Load | None:
    """The load, in an operand, that varies along the sum."""
    while isinstance(e, Cast):
        e = e.a
    if isinstance(e, Load):
        return e
    return next((x for x in walk_exprs(e) if isinstance(x, Load) and summed in walk_exprs(x)), None)


def _along(read: Load, axes: dict[str, Var], task: Task, simplifier: Simplifier) -> str:
    """The one of the given axes along which the operand is contiguous in memory, or "computed"."""
    while (stage := task.producers.get(read.buffer)) is not None:
        if not isinstance(stage.body, Load):
            return "computed"
        there = dict(zip(stage.axes, read.indices, strict=True))
        read = replace(stage.body, indices=tuple(substitute(i, there) for i in stage.body.indices))
    strides: tuple[Dim, ...] = read.buffer.strides or tuple(
        product(read.buffer.shape[d + 1 :]) for d in range(len(read.buffer.shape))
    )
    address: Expr = index(0)
    for i, s in zip(read.indices, strides, strict=True):
        address = address + i * s
    terms = simplifier.poly(address)
    return next((name for name, v in axes.items() if terms.get((v,)) == 1), "computed")
