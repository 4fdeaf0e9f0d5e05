"""A matrix product as tuning sees it: batch × (m×k · k×n), element types, and along what the factors are contiguous."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import cast, ceil_div, index, product, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Buffer, Cast, Dim, Expr, Kernel, Load, Reduce, Var
from taskmap.ir.target import Target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, compute_type
from taskmap.ir.visit import substitute, walk_exprs
from taskmap.schedules.common.convolution_geometry import find_convolution, is_matrix_product
from taskmap.schedules.common.space import Config, likely, read_types, sizes_text, types_text, unreadable
from taskmap.schedules.cpu.matmul.config import MatmulConfig, Sizes, default, read_config, space, validity
from taskmap.schedules.cpu.matmul.cost import cycles
from taskmap.schedules.cpu.matmul.template import anchor_of, packed_panels, schedule_matmul

__all__ = ["MatmulProblem", "find_matmul", "read_matmul"]

NAME = "cpu.matmul"
_SHAPES = re.compile(r"(\??[1-9]\d{0,11})x(\??[1-9]\d{0,11})x(\??[1-9]\d{0,11})x(\??[1-9]\d{0,11})")
_NAMES = ("batch", "m", "n", "k")
_ANY = Var("any")
_LAYOUT = re.compile(r"a=([mk]|computed) b=([nk]|computed|packed([1-9]\d{0,4}))")
_LARGEST = 1 << 34
"""Elements of a factor that tuning accepts; text from elsewhere may ask for any number."""


@dataclass(frozen=True, slots=True)
class MatmulProblem:
    """out[b, i, j] = sum over s of A[b, i, s] · B[b, s, j].

    types: element types of A, B and the output. a: the axis along which A is contiguous, "k" or "m", or "computed"
    where it is fused. b: "n", "k", "computed", or "packed32" for panels of 32 columns. free: sizes that are known only
    when the kernel runs; those that stand here are what they are likely to be.
    """

    batch: int
    m: int
    n: int
    k: int
    types: tuple[DType, DType, DType]
    a: str = "k"
    b: str = "n"
    free: tuple[str, ...] = ()

    template = NAME

    @property
    def shapes(self) -> str:
        """Batch, m, n and k; a question mark before one that is known only when the kernel runs."""
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
        """The width of B's panels, where it lies in such."""
        return int(self.b.removeprefix("packed")) if self.b.startswith("packed") else None

    @property
    def sizes(self) -> Sizes:
        """As configurations see them."""
        m, n, k, batch = (_ANY if name in self.free else getattr(self, name) for name in ("m", "n", "k", "batch"))
        k, batch = static_size(k), static_size(batch)
        return Sizes(m, n, k, batch, self.accumulate.bytes, packed=self.packed)

    @property
    def likely(self) -> MatmulProblem:
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
        batch, m, n, k = (dims.get(name, getattr(self, name)) for name in _NAMES)
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

    def default(self, target: Target) -> MatmulConfig:
        """The configuration that is used untuned."""
        return default(self.sizes, target)

    def configs(self, target: Target) -> tuple[Config, ...]:
        """At most 200 valid configurations, the default first."""
        return space(self.sizes, target)

    def cycles(self, config: Config, target: Target) -> float:
        """Cycles by the cost model."""
        assert isinstance(config, MatmulConfig)
        return cycles(config, self.likely.sizes, target)

    def read(self, text: str, target: Target) -> MatmulConfig | None:
        """The configuration with this text, if it is valid here."""
        config = read_config(text)
        return config if config is not None and validity(config, self.sizes, target) is None else None

    def kernel(self, task: Task, config: Config, target: Target) -> Kernel:
        """The template's kernel. Raises ScheduleError where ``config`` does not fit."""
        assert isinstance(config, MatmulConfig)
        kernel = schedule_matmul(task, target, config)
        if kernel is None:
            raise ScheduleError(f"{task.name!r} is not a matrix product")
        return kernel


def find_matmul(task: Task, target: Target, hints: Mapping[Var, int]) -> MatmulProblem | None:
    """The product that anchors a task; None where there is none, where nothing hints at a symbolic size, and where it
    is summed along several axes."""
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
    if left is None or right is None:
        return None
    width = packed_panels(task, c)
    simplifier = Simplifier()
    for v, extent in (*c.batch, *c.m, *c.n, *c.k):
        simplifier.bind(v, extent)
    b = f"packed{width}" if width else _along(right, {"n": c.n[-1][0], "k": summed}, task, simplifier)
    a = _along(left, {"k": summed, "m": c.m[-1][0]}, task, simplifier)
    return MatmulProblem(batch, m, n, k, (left.buffer.dtype, right.buffer.dtype, stage.out.dtype), a, b, free)


def read_matmul(shapes: str, dtypes: str, layout: str) -> MatmulProblem:
    """The problem with these texts. Raises ScheduleError for texts that say none."""
    sizes, where = _SHAPES.fullmatch(shapes), _LAYOUT.fullmatch(layout)
    types = read_types(dtypes)
    if sizes is None or where is None or len(types) != 3 or not all(t.is_float for t in types):
        raise unreadable(NAME, f"{shapes} {dtypes} {layout}")
    batch, m, n, k = (int(s.removeprefix("?")) for s in sizes.groups())
    free = tuple(name for name, text in zip(_NAMES, sizes.groups(), strict=True) if text.startswith("?"))
    if where[3] is not None and (batch != 1 or "batch" in free):
        raise unreadable(NAME, f"{shapes} {dtypes} {layout}")
    if batch * max(m * n, m * k, n * k) > _LARGEST:
        raise ScheduleError(
            f"a product of {shapes} is too large to be tuned", why=f"an operand has more than {_LARGEST:g} elements."
        )
    return MatmulProblem(batch, m, n, k, (types[0], types[1], types[2]), where[1], where[2], free)


def _stored(name: str, dtype: DType, shape: tuple[Dim, Dim, Dim], turned: bool) -> Buffer:
    outer, rows, columns = shape
    return Buffer(name, dtype, (outer, rows, columns), strides=(rows * columns, 1, rows) if turned else None)


def _read(e: Expr, summed: Var) -> Load | None:
    """The load of a factor that runs along the sum."""
    while isinstance(e, Cast):
        e = e.a
    if isinstance(e, Load):
        return e
    return next((x for x in walk_exprs(e) if isinstance(x, Load) and summed in walk_exprs(x)), None)


def _along(read: Load, axes: dict[str, Var], task: Task, simplifier: Simplifier) -> str:
    """The axis, of those given, along which neighbours are neighbours in memory."""
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
