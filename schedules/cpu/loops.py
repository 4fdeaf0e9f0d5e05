"""Loop shapes that every CPU schedule uses: vector loops with their tail, and enough parallel iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from taskmap.ir.builder import Builder
from taskmap.ir.construct import constant_dim, index, product
from taskmap.ir.nodes import Dim, Expr, LoopKind
from taskmap.schedules.values import Values


def vector_loop(
    b: Builder,
    name: str,
    extent: Dim,
    lanes: int,
    values: Values,
    body: Callable[[Expr, Values, int, Expr], None],
    kind: LoopKind = LoopKind.SERIAL,
) -> None:
    """body(i, values, width, lane) for i in [0, extent), ``lanes`` at a time; the rest in halving widths, or one by one
    when the extent is symbolic. The body stands in a vector loop of ``width`` over ``lane``, or in none (1 and 0)."""
    size = constant_dim(extent)
    done: Dim = 0
    width = lanes
    while width > 1:
        if size is None or size - int(done) >= width:  # type: ignore[arg-type]  # done is an int while size is known
            blocks: Dim = index(extent) // width if size is None else (size - int(done)) // width  # type: ignore[arg-type]
            with b.loop(name, blocks, kind if done == 0 else LoopKind.SERIAL) as i:
                values.bind(i, blocks)
                inner = values.nested()
                with b.loop(f"{name}_lane", width, LoopKind.VECTOR) as lane:
                    inner.bind(lane, width)
                    body(i * width + lane + done, inner, width, lane)
            done = done + blocks * width
        if size is None:
            break
        width //= 2
    rest = (index(extent) - done) if size is None else size - int(done)  # type: ignore[call-overload]
    if constant_dim(rest) == 0:
        return
    with b.loop(f"{name}_tail", rest) as i:
        values.bind(i, lanes if size is None else rest)
        body(i + done, values.nested(), 1, index(0))


@contextmanager
def parallel_grid(
    b: Builder, names: Sequence[str], extents: Sequence[Dim], values: Values, parallel: bool, enough: int
) -> Iterator[tuple[Expr, ...]]:
    """Nested loops, the outer ones collapsed into one parallel loop until it has ``enough`` iterations."""
    if not extents:
        yield ()
        return
    fused = 1
    while fused < len(extents) and (constant_dim(product(extents[:fused])) or enough) < enough:
        fused += 1
    total = product(extents[:fused])
    with b.loop("task", total, LoopKind.PARALLEL if parallel else LoopKind.SERIAL) as t:
        values.bind(t, total)
        outer: list[Expr] = []
        for d in range(fused):
            inner = product(extents[d + 1 : fused])
            position = index(t) // inner if d + 1 < fused else index(t)
            outer.append(values.simplifier(position % extents[d] if d else position))
        with b.grid(list(names[fused:]), [index(e) for e in extents[fused:]]) as rest:
            for v, e in zip(rest, extents[fused:], strict=True):
                values.bind(v, e)
            yield (*outer, *rest)
