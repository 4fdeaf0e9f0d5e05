"""Random kernels for property tests: every one is well-formed, writes all of its output, and stays in bounds."""

from __future__ import annotations

from hypothesis import strategies as st

from taskmap.ir.builder import Builder
from taskmap.ir.construct import cast, compare, maximum, minimum, select, unary
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel, LoopKind, Scope, Var
from taskmap.ir.types import f32, i64

ROWS, COLS = 6, 8
KINDS = (LoopKind.SERIAL, LoopKind.PARALLEL, LoopKind.UNROLLED)


@st.composite
def index_exprs(draw: st.DrawFn, loops: tuple[Expr, ...], extent: int) -> Expr:
    """An index below ``extent``, of arithmetic on loop variables."""
    a, b = draw(st.sampled_from(loops)), draw(st.sampled_from(loops))
    scale, shift = draw(st.integers(-3, 3)), draw(st.integers(-5, 5))
    value = draw(st.sampled_from([a * scale + b + shift, a // 2 + b % 3, minimum(a, b) + shift, maximum(a * b, shift)]))
    clamped = maximum(minimum(value, extent - 1), 0)
    return draw(st.sampled_from([value % extent, clamped]))


@st.composite
def values(draw: st.DrawFn, source: Buffer, loops: tuple[Expr, ...], depth: int) -> Expr:
    """An f32 value of loads of ``source``."""
    if depth == 0 or draw(st.booleans()):
        rows, cols = draw(index_exprs(loops, ROWS)), draw(index_exprs(loops, COLS))
        return source[rows, cols]
    a = draw(values(source, loops, depth - 1))
    b = draw(values(source, loops, depth - 1))
    i = cast(draw(st.sampled_from(loops)), f32)
    whole = cast(cast(a, i64), f32)
    chosen = select(compare("lt", loops[0], 2), a, i)
    choices = [a + b, a - b * 0.5, minimum(a, b), unary("neg", a), a * i, select(a < b, a, b), chosen, whole]
    return draw(st.sampled_from(choices))


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    """A kernel on x: f32[rows, 8], y: f32[rows, 8], with ``rows`` symbolic or 6."""
    sizes: list[Dim] = [ROWS, Var("rows")]
    size = draw(st.sampled_from(sizes))
    x, y = Buffer("x", f32, (ROWS, COLS)), Buffer("y", f32, (size, COLS))
    b = Builder()
    with b.loop("i", size, draw(st.sampled_from(KINDS[:2]))) as i:
        tile = b.allocate("tile", f32, (COLS,), Scope.LOCAL)
        with b.loop("k", COLS, draw(st.sampled_from((*KINDS, LoopKind.VECTOR)))) as k:
            b.store(tile, k, draw(values(x, (i, k), 3)))
        with b.loop("j", COLS, draw(st.sampled_from(KINDS))) as j:
            t = b.let("t", tile[draw(index_exprs((i, j), COLS))] + draw(values(x, (i, j), 2)))
            with b.when(draw(st.sampled_from([i < j, compare("eq", i % 2, 0), t > 0.0]))):
                b.store(y, (i, j), t * 2.0)
            with b.otherwise():
                b.store(y, (i, j), draw(values(x, (i, j), 2)))
    return Kernel("random", (x, y), (y,), (size,) if isinstance(size, Var) else (), b.body())
