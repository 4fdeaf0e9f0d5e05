"""Weights of few bits stay narrow in memory and are widened in registers, where few rows are multiplied with them.

    w = (q - zero[group]) · scale[group], q constant bytes, or two numbers of four bits in each
    sum over k of x[k] · w[n, k]    ->    the same, with w's expression of q inside the sum
    q of at most four bits          ->    codes in pairs of words (``ir.analysis.codes``), where pairs are multiplied

A product of few rows takes as long as reading its weights. A weight computed from constants would be computed once
and read as floats; here the constants behind it are read, each stored in the order of the sum, the columns of a panel
together. A widened weight has the type of the sum and is not rounded to a narrower one: a sum is at least as exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeGuard

from taskmap.graph.analysis.classify import definition, is_contraction, is_injective, redefined
from taskmap.graph.build import define
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.passes.base import GraphPass, rewrite_known
from taskmap.ir.analysis.codes import BITS, TERMS, affine, code_of, integers
from taskmap.ir.analysis.contraction import BYTES, Contraction, find_contraction, unconverted
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import (
    binary,
    call,
    cast,
    ceil_div,
    const,
    load,
    minimum,
    product,
    reduce,
    select,
    static_size,
    unary,
)
from taskmap.ir.nodes import Binary, Buffer, Cast, Const, Dim, Expr, ExprLike, Load, Select, Var
from taskmap.ir.task import formal
from taskmap.ir.types import DType, bf16, compute_type, f32, i16, i32, significant_bits, u8
from taskmap.ir.visit import map_expr, replace_buffers, substitute, walk_exprs

_MOST_ROWS = 8
"""With more rows, the time to widen weights exceeds that to read them."""
_SMALLEST = 1 << 12
_DEEPEST = 16
_SHORT = 12
_RUNS = (256, 128, 64, 32, 16, 8, 4, 2)
"""Neighbouring terms of a sum that may share an element: of a scale, or of a byte."""


@dataclass(frozen=True, slots=True)
class NarrowWeights(GraphPass):
    """Weights computed from constant bytes are computed inside products of few rows. width: of the panels of such
    a product of rows × columns. fused: the target has multiply-adds. pairs: it multiplies pairs of bf16."""

    width: Callable[[Dim, Dim, DType], int]
    fused: bool = False
    pairs: bool = False
    name = "narrow-weights"
    before = "weights computed from bytes are computed once, and kept as floats"
    after = "products of few rows read the bytes"
    why_here = "before weights are packed, because these are packed here"

    def run(self, graph: Graph) -> Graph:
        """The same graph with such products."""
        constant = set(graph.computed_once())

        def visit(now: Node, was: Node) -> Node:
            if was in constant:
                constant.add(now)
                return now
            return self._narrow(now, constant) or now

        return rewrite_known(graph, visit)

    def _narrow(self, node: Node, constant: set[Node]) -> Node | None:
        if not node.is_compute or not node.dtype.is_float or not is_contraction(definition(node)):
            return None
        d = definition(node)
        c = find_contraction(d.axes, node.shape, d.body)
        read = None if c is None else _read(c.b)
        if c is None or read is None or len(c.k) != 1 or len(c.n) != 1 or c.batch:
            return None
        rows = static_size(product([extent for _, extent in c.m]))
        position = next((i for i, f in enumerate(d.inputs) if f is read.buffer), None)
        if position is None or rows is None or rows > _MOST_ROWS:
            return None
        weight = node.inputs[position]
        sizes = [static_size(extent) for _, extent in (*c.k, *c.n)]
        if weight not in constant or None in sizes or (sizes[0] or 0) * (sizes[1] or 0) < _SMALLEST:
            return None
        if not _leads_to_bytes(weight, 0):
            return None
        width = self.width(rows, c.n[0][1], node.dtype)
        rewriting = _Rewriting(c, (sizes[0] or 0, sizes[1] or 0), width)
        inside = rewriting.element(weight, read.indices, 0)
        if 2 * rewriting.bytes > (sizes[0] or 0) * (sizes[1] or 0) * compute_type(weight.dtype).bytes:
            return None
        inside = _unrounded(cast(inside, c.b.dtype), self.fused)
        if self.pairs and unconverted(c.a).dtype == bf16 and c.reduce.dtype == f32:
            inside = rewriting.in_codes(inside)
        return rewriting.product(node, position, inside)


def _read(factor: Expr) -> Load | None:
    while isinstance(factor, Cast):
        factor = factor.a
    return factor if isinstance(factor, Load) and factor.dtype.is_float else None


def _leads_to_bytes(node: Node, depth: int) -> bool:
    """True if ``node`` is computed element by element from a tensor of bytes."""
    if not node.is_compute or depth > _DEEPEST or not is_injective(definition(node)):
        return False
    return any((n.dtype in BYTES and not n.is_compute) or _leads_to_bytes(n, depth + 1) for n in node.inputs)


@dataclass(slots=True)
class _Rewriting:
    """The expression of a weight in terms of constants, which are stored anew; sizes: terms and columns."""

    c: Contraction
    sizes: tuple[int, int]
    width: int
    held: dict[tuple[Node, tuple[Expr, ...]], tuple[Buffer, Node, int]] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of the constants."""
        nodes = (node for _, node, _ in self.held.values())
        return sum((static_size(product(n.shape)) or 0) * n.dtype.bytes for n in nodes)

    def element(self, node: Node, where: Sequence[Expr], depth: int) -> Expr:
        """The element of a constant at ``where``, indices in terms of the product's axes."""
        if not _leads_to_bytes(node, depth):
            return self.constant(node, tuple(where))
        d = definition(node)
        source = dict(zip(d.inputs, node.inputs, strict=True))
        body = substitute(d.body, dict(zip(d.axes, where, strict=True)))

        def one(e: Expr) -> Expr | None:
            if isinstance(e, Load):
                return self.element(source[e.buffer], e.indices, depth + 1)
            return cast(_widened(e.a), e.dtype) if isinstance(e, Cast) and e.a.dtype == u8 else None

        return map_expr(body, one)

    def constant(self, node: Node, where: tuple[Expr, ...]) -> Expr:
        """A load of a constant, stored with one element for each run of terms that share it."""
        (terms, columns), k, n = self.sizes, self.c.k[0][0], self.c.n[0][0]
        used = {v for i in where for v in walk_exprs(i) if isinstance(v, Var)}
        if not used:
            run = terms
        else:
            run = next((r for r in (terms, *_RUNS) if r <= terms and self._shared(where, r)), 1)
        key = (node, where)
        if key not in self.held:
            stored = _stored(node, where, (k, n), (terms, columns), run, self.width if n in used else 1)
            self.held[key] = formal(f"w{len(self.held)}", stored.shape, stored.dtype), stored, run
        buffer, _, run = self.held[key]
        group = k // run if run < terms else const(0, k.dtype)
        return load(buffer, (n // self.width, group, n % self.width) if n in used else (group,))

    def in_codes(self, weight: Expr) -> Expr:
        """A weight with its integers as codes, in words in the place of the bytes; ``weight`` itself unless it is
        affine in an integer of four bits that is computed from one tensor of bytes."""
        terms, k, n = self.sizes[0], self.c.k[0][0], self.c.n[0][0]
        held = {key: e for key, e in self.held.items() if e[0].dtype in BYTES}
        integer = next((e for e in walk_exprs(weight) if _widens_bytes(e)), None)
        if len(held) != 1 or integer is None or any(run % TERMS and run < terms for run in self._shared_runs()):
            return weight
        ((key, (read, bytes_node, _)),) = held.items()
        found, written = integers(integer.a), affine(weight, integer)
        if found is None or found[1] - found[0] >= 1 << BITS or written is None or terms % TERMS:
            return weight
        low = found[0]

        def element(f: Buffer) -> Callable[..., ExprLike]:
            def at(panel: Expr, step: Expr, column: Expr, half: Expr) -> Expr:
                word: Expr = const(0, i32)
                for pair in range(TERMS // 2):
                    place = {k: step * TERMS + 2 * pair + half, n: panel * self.width + column}
                    code = replace_buffers(substitute(integer.a, place), {read: f}) - const(low, i32)
                    word = word + binary("shl", code, const(BITS * pair, i32))
                return cast(word, i16)

            return at

        shape = (bytes_node.shape[0], terms // TERMS, self.width, 2)
        words = replace(define("codes", [bytes_node], shape, element, i16), origin=bytes_node.origin)
        formal_words = formal(read.name, words.shape, i16)
        self.held[key] = formal_words, words, 1
        code = code_of(formal_words, (n // self.width, k, n % self.width))
        return written.moved(-low).of(cast(code, f32))

    def _shared_runs(self) -> list[int]:
        return [run for read, _, run in self.held.values() if read.dtype not in BYTES]

    def _shared(self, where: tuple[Expr, ...], run: int) -> bool:
        """True if each aligned run of ``run`` terms reads one element."""
        k = self.c.k[0][0]
        group, place = Var("group"), Var("place")
        simplifier = Simplifier()
        simplifier.bind(group, -(-self.sizes[0] // run))
        simplifier.bind(place, run)
        simplifier.bind(self.c.n[0][0], self.sizes[1])
        moved = (simplifier(substitute(i, {k: group * run + place})) for i in where)
        return not any(v is place for i in moved for v in walk_exprs(i))

    def product(self, node: Node, position: int, inside: Expr) -> Node:
        """``node`` with the factor at ``position`` replaced by an expression of the constants."""
        d = definition(node)
        kept = [i for i in range(len(d.inputs)) if i != position]
        inputs = (*(d.inputs[i] for i in kept), *(b for b, _, _ in self.held.values()))
        sources = (*(node.inputs[i] for i in kept), *(n for _, n, _ in self.held.values()))
        terms = map_expr(self.c.reduce.body, lambda e: inside if e is self.c.b else None)
        body = _with_sum(d.body, self.sum_of(terms))
        return redefined(node, sources, replace(d, inputs=inputs, body=body))

    def sum_of(self, terms: Expr) -> Expr:
        """The sum: a loop for each length of a run of terms that share an element, so what they share is read outside,
        and the place in a byte is constant in an unrolled loop."""
        ((k, extent),) = self.c.k
        runs = sorted({run for _, _, run in self.held.values() if 1 < run < self.sizes[0] and self.sizes[0] % run == 0})
        if not runs:
            return reduce("sum", [(k, extent)], terms)
        counts = [n // m for m, n in pairwise((1, *runs, self.sizes[0]))]  # of the innermost loop first
        axes = [(Var("k" if n == len(runs) else "place"), count) for n, count in enumerate(counts)]
        at: Expr = const(0, k.dtype)
        for axis, count in reversed(axes):
            at = at * count + axis
        return reduce("sum", [axes[0], *reversed(axes[1:])], substitute(terms, {k: at}))  # the innermost first


def _widens_bytes(e: Expr) -> TypeGuard[Cast]:
    """True for an integer of 32 bits, computed from a byte, as a float."""
    if not isinstance(e, Cast) or e.dtype != f32 or e.a.dtype != i32:
        return False
    return any(isinstance(x, Load) and x.dtype in BYTES for x in walk_exprs(e))


def _with_sum(body: Expr, total: Expr) -> Expr:
    """A sum, or a conversion of one, with another sum."""
    return cast(_with_sum(body.a, total), body.dtype) if isinstance(body, Cast) else total


def _unrounded(e: Expr, fused: bool) -> Expr:
    """A weight in the type of the sum, of which no step is rounded to a narrower float. fused: a scaled difference is a
    multiply-add."""
    if isinstance(e, Binary) and e.op in ("add", "sub", "mul", "div"):
        a, b = _unrounded(e.a, fused), _unrounded(e.b, fused)
        return _product(a, b) if fused and e.op == "mul" else binary(e.op, a, b)
    if isinstance(e, Select):
        return select(e.cond, _unrounded(e.a, fused), _unrounded(e.b, fused))
    rounded = e.a if isinstance(e, Cast) and isinstance(e.a, Cast) and compute_type(e.a.dtype) == e.dtype else None
    if isinstance(rounded, Cast) and (rounded.a.dtype == e.dtype or rounded.a.dtype.is_int):
        return _unrounded(cast(rounded.a, e.dtype), fused)
    return e


def _product(a: Expr, b: Expr) -> Expr:
    """(q - zero) · scale as q · scale - zero · scale, whose second product is exact and the same for a whole group."""
    for difference, scale in ((a, b), (b, a)):
        if isinstance(difference, Binary) and difference.op == "sub" and difference.dtype == f32:
            zero = difference.b
            if _is_short(zero) and _is_short(scale):
                return call("fma", difference.a, scale, unary("neg", zero * scale))
    return binary("mul", a, b)


def _is_short(e: Expr) -> bool:
    """True if the product of two such numbers is exact in f32: of at most twelve bits."""
    if isinstance(e, Const):
        return e.value == int(e.value) and abs(e.value) < 1 << _SHORT
    return isinstance(e, Cast) and isinstance(e.a, Load) and significant_bits(e.a.dtype) <= _SHORT


def _stored(
    node: Node, where: tuple[Expr, ...], axes: tuple[Var, Var], sizes: tuple[int, int], run: int, width: int
) -> Node:
    """A constant with one element for each run of terms: [panels, runs, width], or [runs] without columns (width 1)."""
    (k, n), (terms, columns) = axes, sizes
    by_column = any(v is n for i in where for v in walk_exprs(i))
    runs = -(-terms // run)

    def element(f: Buffer) -> Callable[..., ExprLike]:
        def at(*place: Expr) -> ExprLike:
            if not by_column:
                return load(f, [substitute(i, {k: place[0] * run}) for i in where])
            panel, group, lane = place
            column = minimum(panel * width + lane, columns - 1)
            return load(f, [substitute(i, {k: group * run, n: column}) for i in where])

        return at

    shape = (ceil_div(columns, width), runs, width) if by_column else (runs,)
    made = define("copy", [node], shape, element, node.dtype)  # a view would be read through, in the old order
    return replace(made, origin=node.origin)


def _widened(e: Expr) -> Expr:
    """An expression of u8 computed in i32: vectors of bytes have no shifts."""
    if isinstance(e, Binary) and e.op in ("shr", "and", "or", "xor"):
        return binary(e.op, _widened(e.a), _widened(e.b))
    if isinstance(e, Select):
        return select(e.cond, _widened(e.a), _widened(e.b))
    if isinstance(e, Const):
        return const(e.value, i32)
    if isinstance(e, Cast) and e.a.dtype == i32:
        return binary("and", e.a, const(255, i32))
    return cast(e, i32)
