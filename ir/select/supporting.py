"""Supporting rules: parts and rearrangements of vectors, and rows of a product in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from random import Random

from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MatMulSpec, MoveSpec
from taskmap.ir.select.address import Poly, plus
from taskmap.ir.select.egraph import EGraph, Node
from taskmap.ir.select.instances import base, dot, index, lanes, value, wide
from taskmap.ir.select.rule import Rule
from taskmap.ir.select.terms import Term, broadcast, cast, ramp
from taskmap.ir.types import DType, bf16, f32, i8, i32

_LISTED = 2048
_RUNS = 16
"""The most contiguous runs from which a vector is put together."""


def push(g: EGraph, node: Node) -> Iterator[int]:
    """pick(f(x, y)) = f(pick(x), pick(y)) for what works lane by lane, and so for part"""
    for inner in g.nodes(node.args[0]):
        if inner.op in ("load", "cast", "add", "sub", "mul"):
            yield g.add(inner.op, inner.data, tuple(g.add(node.op, node.data, (x,)) for x in inner.args))
        elif inner.op == "broadcast" and g.facts(inner.args[0]).lanes == 1:
            count = len(node.data[0]) if node.op == "pick" else node.data[1]
            yield g.add("broadcast", (count,), inner.args)


def compose(g: EGraph, node: Node) -> Iterator[int]:
    """pick(p; pick(q; x)) = pick(q[p]; x), and pick of all lanes in order = x"""
    order: tuple[int, ...] = node.data[0]
    if order == tuple(range(g.facts(node.args[0]).lanes)):
        yield node.args[0]
    for inner in g.nodes(node.args[0], "pick"):
        yield g.add("pick", (tuple(inner.data[0][lane] for lane in order),), inner.args)


def joined_loads(g: EGraph, node: Node) -> Iterator[int]:
    """concat(load(i), load(j)) = load(concat(i, j)), of one buffer"""
    first, *rest = ([(n.data, n.args[0]) for n in g.nodes(x, "load")] for x in node.args)
    for data, at in first:
        others = [next((i for d, i in found if d == data), None) for found in rest]
        if None not in others:
            yield g.add("load", data, (g.add("concat", (), (at, *(o for o in others if o is not None))),))


def contiguous_runs(g: EGraph, node: Node) -> Iterator[int]:
    """load(i) = pick(concat(load(a run of i), load(the next run), ...))"""
    layout = g.facts(node.args[0]).layout
    if layout is None or not 1 < layout.lanes <= _LISTED or len(layout.digits) < 2:
        return
    rows = layout.rows()
    runs = _runs(rows)
    if not 1 <= len(runs) <= min(_RUNS, len(rows) // 2) or len({len(run) for run in runs}) > 1:
        return
    places = {row: lane for lane, row in enumerate(row for run in runs for row in run)}
    order = tuple(places[row] for row in rows)
    if len(runs) == 1 and order == tuple(range(len(rows))):
        return
    width = len(runs[0])
    first = {row: lane for lane, row in reversed(list(enumerate(rows)))}
    parts = [g.add("load", node.data, (g.add("pick", (tuple(first[r] for r in run),), node.args),)) for run in runs]
    whole = parts[0] if len(parts) == 1 else g.add("concat", (), tuple(parts))
    assert g.facts(whole).lanes == width * len(runs)
    yield g.add("pick", (order,), (whole,))


def _runs(rows: Sequence[Poly]) -> list[list[Poly]]:
    """Addresses in runs of neighbours, each address once."""
    known = set(rows)
    runs: list[list[Poly]] = []
    for row in dict.fromkeys(rows):
        if plus(row, _ONE, -1) in known:
            continue
        run = [row]
        while (following := plus(run[-1], _ONE)) in known:
            run.append(following)
        runs.append(run)
    return runs


_ONE: Poly = (((), 1),)


def columns_in_pieces(entries: tuple[Instruction, ...]) -> Rule:
    """The rule that divides a product into as many whole pieces of an instruction's width as fit, and the rest."""

    def pieces(g: EGraph, node: Node) -> Iterator[int]:
        """dot(c, a, b) = concat(each(t, n; dot(part t of c, a, b)), dot(the rest of c, a, b)), and so for copy"""
        n = g.facts(node.args[0]).lanes
        k = node.data[0] if node.op == "dot" else 1
        to = node.data if node.op == "copy" else ()
        found = _widths(entries, node.op, k, to + tuple(g.facts(x).dtype for x in node.args))
        widths = [w for w in found if w <= n]
        for at, width in enumerate(widths):
            if width < n and all(wider % width for wider in widths[:at]):  # else the wider ones need fewer pieces
                yield _divided(g, node, k, n, width)

    def instance(rng: Random) -> Term:
        n = rng.randint(2, 11)
        if rng.random() < 0.3:
            return Term("copy", (f32,), (value(rng, n, rng.choice([f32, bf16])),))
        c, a, k = rng.choice([(f32, f32, 1), (f32, bf16, 2), (i32, i8, 4)])
        return dot(rng, n, k, c, a, a)

    return Rule("columns-in-pieces", "supporting", "dot copy", pieces, instance)


@lru_cache(maxsize=1024)
def _widths(entries: tuple[Instruction, ...], op: str, k: int, types: tuple[DType, ...]) -> tuple[int, ...]:
    """The numbers of lanes that an entry computes, or that two entries move, for operands of these types; widest
    first."""
    if op == "copy":
        to_from = [{e.columns for e in entries if e.spec == MoveSpec(e.columns, t)} for t in types]
        return tuple(sorted(to_from[0] & to_from[1], reverse=True))
    specs = [e.spec for e in entries if isinstance(e.spec, MatMulSpec)]
    return tuple(sorted({x.m * x.n for x in specs if (x.c, x.a, x.b) == types and k % x.k == 0}, reverse=True))


def _divided(g: EGraph, node: Node, k: int, n: int, width: int) -> int:
    count, rest = divmod(n, width)
    scale = (1, k, k) if node.op == "dot" else (1,)
    step = f"t{width}" if count > 1 else ""

    def parts(start: int, size: int, step: str, count: int) -> int:
        cut = [g.add("part", (start * s, size * s, step, count), (x,)) for s, x in zip(scale, node.args, strict=True)]
        return g.add(node.op, node.data, tuple(cut))

    first = parts(0, width, step, count)
    if count > 1:
        first = g.add("each", (step, count), (first,))
    return g.add("concat", (), (first, parts(n - rest, rest, "", 1))) if rest else first


def _lane_order(rng: Random, n: int) -> tuple[int, ...]:
    return tuple(rng.randrange(n) for _ in range(rng.randint(1, 6)))


def _picked(rng: Random) -> Term:
    n = lanes(rng)
    x = rng.choice([value(rng, n), wide(rng, n, f32), cast(f32, value(rng, n, i8)), broadcast(value(rng, 1), n)])
    if rng.random() < 0.5:
        return Term("pick", (_lane_order(rng, n),), (x,))
    width = rng.randint(1, n)
    return Term("part", (rng.randint(0, n - width), width, "", 1), (x,))


def _composed(rng: Random) -> Term:
    n = lanes(rng)
    inner = Term("pick", (_lane_order(rng, n),), (value(rng, n),))
    return Term("pick", (_lane_order(rng, inner.type[1]),), (inner,))


def _joined(rng: Random) -> Term:
    x = value(rng, lanes(rng))
    return Term("concat", (), (x, Term("load", x.data, (index(rng, lanes(rng)),))))


def _woven(rng: Random) -> Term:
    stride = rng.randint(20, 40)
    x = value(rng, 1, bf16)
    return Term("load", x.data, (ramp(ramp(base(rng), stride, 2), 1, rng.randint(2, 9)),))


SUPPORTING: tuple[Rule, ...] = (
    Rule("lane-by-lane", "supporting", "pick part", push, _picked),
    Rule("pick-of-pick", "supporting", "pick", compose, _composed),
    Rule("neighbouring-loads", "supporting", "concat", joined_loads, _joined),
    Rule("contiguous-runs", "supporting", "load", contiguous_runs, _woven),
)  # fmt: skip
