"""Recovers attention: one that a model writes out becomes one operator, so the scores are never stored.

    bmm(softmax(mask(scale * bmm(q, kᵀ))), v)    ->    attention(q, k, v, masks)

The pattern is matched on expressions: two products, a softmax between them, and around the first product only numbers,
masks and conversions. Composing indices looks through views, flattened batches and shared key heads. The new node keeps
the scores as they were written, so a mask acts exactly as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from taskmap.graph.analysis.classify import definition
from taskmap.graph.analysis.inlining import is_anchor
from taskmap.graph.build import define, elementwise, reindex
from taskmap.graph.nodes import Graph, Node, Origin
from taskmap.graph.passes.attention_scores import (
    Scores,
    SoftmaxPattern,
    UnlikeError,
    behind_guard,
    find_softmax,
    unrounded,
)
from taskmap.graph.passes.base import GraphPass, rewrite
from taskmap.graph.passes.duplicates import NO_DUPLICATES
from taskmap.graph.passes.elements import Elements, bare, depends, load_depends
from taskmap.graph.passes.views import FoldViews, changes_nothing
from taskmap.ir.analysis.contraction import find_contraction
from taskmap.ir.analysis.positions import flatten, unravel
from taskmap.ir.construct import call, cast, const, eq, index, product, reduce, select, static_size
from taskmap.ir.nodes import Binary, Buffer, Call, Const, Dim, Expr, ExprLike, Load, Reduce, Var
from taskmap.ir.types import bf16, f16, f32
from taskmap.ir.visit import replace_buffers, substitute, walk_exprs

LARGEST_HEAD = 256
"""Beyond this head size a block of queries, keys and sums no longer fits a core's cache, and matrix products win."""


@dataclass(frozen=True, slots=True)
class RecoverAttention(GraphPass):
    """Two matrix products with a softmax between them, which nothing else reads, become one attention.

    Two cases stay as they are: f64, whose results users compare digit by digit, and keys and values that are both
    constant, which make a layer. Half types are computed in f32 throughout. A row in which minus infinity masks every
    key is NaN, as in the written form, and not zero, as in PyTorch's own attention. The exception is a model that
    replaces NaN weights by zero, the form in which PyTorch's own attention is exported; NaNs in the queries or keys
    then propagate to the result.

    Attention pays from ``queries`` and ``keys`` on, where these sizes are known: a block's keys are rearranged once for
    all its queries, and the scores of few keys stay in the cache anyway. Measured on one core of an AVX-512 machine
    with heads of 32 and 64, relative to two products and a softmax: 8 queries and 512 keys take 2.3 times as long, 32
    queries 0.8 times; 49 queries and 49 keys take 1.8 times as long, 64 and 64 take 0.7 times.
    """

    queries: int = 32
    keys: int = 64

    name = "recover-attention"
    before = "views are single, numbers are in expressions, and duplicates are merged"
    after = "a softmax between two matrix products, whose weights nothing else reads, is in an attention"
    why_here = "after duplicates, because a softmax is recognised by two reads of one value; before any fusion"
    requires = (NO_DUPLICATES,)

    def run(self, graph: Graph) -> Graph:
        """The graph with every attention recovered."""
        if not any(map(_has_exponential, graph.nodes())):
            return graph
        readers = {n.id: {u.id for u in users} for n, users in graph.users().items()}
        for output in graph.outputs:
            if output is not None:
                readers[output.id].add(-1)
        once = {n.id for n in graph.computed_once()}
        found: list[Node] = []
        # Weights are computed from exponentials without another product: other products are not matched.
        behind: set[Node] = set()

        def visit(node: Node) -> Node:
            weighted = any(n in behind for n in node.inputs)
            if node.is_compute and not is_anchor(node) and (weighted or _has_exponential(node)):
                behind.add(node)
            made = self._recovered(node, readers, once) if weighted else None
            if made is None:
                return node
            found.append(made)
            return made

        rewritten = rewrite(graph, visit)
        return FoldViews().run(rewritten) if found else graph

    def _recovered(self, node: Node, readers: dict[int, set[int]], once: set[int]) -> Node | None:
        try:
            pattern = _find(node)
        except UnlikeError:
            return None
        if pattern is None or {pattern.k.id, pattern.v.id} <= once:
            return None
        queries, keys = (static_size(n) for n in pattern.grid.shape[2:])
        if (queries is not None and queries < self.queries) or (keys is not None and keys < self.keys):
            return None
        ids = {n.id for n in pattern.inside}
        if any(not readers.get(i, {-1}) <= ids | {node.id} for i in ids):
            return None
        return pattern.attention(node)


def _has_exponential(node: Node) -> bool:
    """True if a node takes exponentials, as every written-out softmax does."""
    return node.define is not None and any(
        isinstance(e, Call) and e.name == "exp" for e in walk_exprs(node.define.body)
    )


def _find(node: Node) -> _Pattern | None:
    """The attention whose result ``node`` is; None, or UnlikeError, when there is no such attention."""
    if not node.is_compute or len(node.inputs) != 2 or node.dtype not in (f32, f16, bf16):
        return None
    made = definition(node)
    if find_contraction(made.axes, made.shape, made.body) is None:
        return None
    elements = Elements()
    outer = bare(elements.body(node))
    if (
        not isinstance(outer, Reduce)
        or not isinstance(outer.body, Binary)
        or outer.dtype != f32
        or len(outer.axes) != 1
    ):
        return None
    factors = (outer.body.a, outer.body.b)
    for weights, values in (factors, factors[::-1]):
        inside: set[Node] = set()
        guard: set[Node] = set()
        p, v = elements.behind_casts(weights, inside), elements.behind_views(values)
        if p is None or v is None:
            continue
        softmax = find_softmax(elements, elements.nodes[p.buffer])
        if softmax is None:
            p = behind_guard(elements, p, guard)
            softmax = None if p is None else find_softmax(elements, elements.nodes[p.buffer])
        if softmax is not None and p is not None:
            return _match(elements, node, softmax, p, v, outer.axes[0][0], inside, guard)
    return None


def _match(
    elements: Elements,
    node: Node,
    softmax: SoftmaxPattern,
    p: Load,
    v: Load,
    summed: Var,
    inside: set[Node],
    guard: set[Node],
) -> _Pattern:
    """The attention with weights ``p`` and values ``v``, at the axes of ``node`` and ``summed``.

    ``guard`` holds the nodes that replace NaN weights by zero; it may be empty.
    """
    axes, shape = definition(softmax.node).axes, softmax.node.shape
    one = static_size(shape[-2]) == 1
    scores = Scores(elements, None if one else axes[-2], axes[-1])
    score = scores.read(softmax.x)
    if score is None or scores.product is None or scores.q is None or scores.k is None or scores.depth is None:
        raise UnlikeError
    if any(static_size(n) != 1 and not load_depends(scores.product, a) for a, n in zip(axes, shape, strict=True)):
        raise UnlikeError  # one product serves many scores; an attention would recompute it for each of them
    inside |= softmax.inside | scores.inside
    if any(n.dtype not in (f32, f16, bf16) for n in inside):
        raise UnlikeError
    v, last = _values_at(elements, node, p, v, summed, axes, shape)
    if not one and load_depends(v, axes[-2]):
        raise UnlikeError
    sizes = (scores.depth[1], last[1])
    if any(not 1 < (static_size(n) or 0) <= LARGEST_HEAD for n in sizes) or static_size(shape[-1]) == 1:
        raise UnlikeError
    grid = _Grid.of(elements, axes, shape, scores.q)
    loads = [scores.q, scores.k, v]
    q, k, v = (Load(e.buffer, tuple(grid.at(i) for i in e.indices), e.dtype) for e in loads)
    return _Pattern(
        elements, grid, grid.at(score), scores.dot, q, k, v, scores.depth, last, p, scores.scale, inside | guard,
        bool(guard),
    )  # fmt: skip


def _values_at(
    elements: Elements, node: Node, p: Load, v: Load, summed: Var, axes: Sequence[Var], shape: Sequence[Dim]
) -> tuple[Load, tuple[Var, Dim]]:
    """``v`` at the softmax's axes, and the one axis of ``node`` that only ``v`` has.

    The other axes of ``node`` must number the rows of the softmax, each row once. They are tried as the digits of a
    row's row-major number, in each order of the softmax's dimensions.
    """
    own = list(zip(definition(node).axes, node.shape, strict=True))
    last = [(a, n) for a, n in own if load_depends(v, a) and not load_depends(p, a)]
    if len(last) != 1 or p.indices[-1] != summed or any(depends(e, summed) for e in p.indices[:-1]):
        raise UnlikeError
    rest = [(a, n) for a, n in own if a is not last[0][0]]
    rows = list(zip(axes[:-1], shape[:-1], strict=True))
    there = dict(zip(axes[:-1], p.indices[:-1], strict=True))
    for order in permutations(rows) if len(rows) <= 4 else [tuple(rows)]:
        digits = unravel(flatten(order), [n for _, n in rest])
        here = {a: elements.simplify(d) for (a, _), d in zip(rest, digits, strict=True)}
        if _inverse(elements, there, here) and _inverse(elements, here, there):
            at = substitute(v, {**here, summed: axes[-1]})
            moved = elements.simplify(at)
            if not isinstance(moved, Load):
                raise UnlikeError
            return moved, last[0]
    raise UnlikeError


def _inverse(elements: Elements, f: dict[Var, Expr], g: dict[Var, Expr]) -> bool:
    """True if substituting ``g`` into ``f`` gives the identity on every variable of ``f``."""
    return all(elements.simplify(substitute(e, g)) == elements.simplify(a) for a, e in f.items())


@dataclass(frozen=True, slots=True)
class _Grid:
    """The softmax's rows as [b, h, i]: ``place`` maps its dimensions to these axes, and ``back`` maps them back."""

    elements: Elements
    axes: tuple[Var, Var, Var, Var]
    shape: tuple[Dim, int, Dim, Dim]
    place: dict[Var, Expr]
    back: Callable[[Sequence[Expr]], tuple[Expr, Expr, Expr]]

    @classmethod
    def of(cls, elements: Elements, axes: Sequence[Var], shape: Sequence[Dim], q: Load) -> _Grid:
        """The first dimension is the batch; others before the last two are heads. A lone one is split if it is both."""
        b, h, i, j = made = (Var("b"), Var("h"), Var("i"), Var("j"))
        outer, sizes = list(axes[:-2]), list(shape[:-2])
        inner: dict[Var, Expr] = {axes[-2]: i, axes[-1]: j}
        zero = index(0)
        if not outer:
            grid = cls(elements, made, (1, 1, shape[-2], shape[-1]), inner, lambda p: (zero, zero, p[0]))
        elif len(outer) == 1:
            heads = _heads_within(outer[0], sizes[0], q)
            batch: Dim = sizes[0] if heads == 1 else (static_size(sizes[0]) or 0) // heads
            place = {outer[0]: b * heads + h if heads > 1 else b, **inner}
            grid = cls(
                elements, made, (batch, heads, shape[-2], shape[-1]), place,
                lambda p: (p[0] // heads, p[0] % heads, p[1]),
            )  # fmt: skip
        else:
            heads = static_size(product(sizes[1:])) or 0
            if heads == 0:
                raise UnlikeError
            place = {outer[0]: b, **dict(zip(outer[1:], unravel(h, sizes[1:]), strict=True)), **inner}
            grid = cls(
                elements, made, (sizes[0], heads, shape[-2], shape[-1]), place,
                lambda p: (p[0], flatten(list(zip(p[1:-1], sizes[1:], strict=True))), p[-1]),
            )  # fmt: skip
        elements.bind(made, grid.shape)
        return grid

    def at(self, e: Expr) -> Expr:
        """``e``, an expression of the softmax's axes, in terms of batch, head, query and key."""
        return self.elements.simplify(substitute(e, self.place))


def _heads_within(axis: Var, size: Dim, q: Load) -> int:
    """The number of heads in an axis that also holds the batch: the divisor in the indices of the queries."""
    total = static_size(size)
    for e in walk_exprs(q):
        if isinstance(e, Binary) and e.op == "mod" and e.a is axis and isinstance(e.b, Const):
            heads = int(e.b.value)
            return heads if total is not None and heads > 0 and total % heads == 0 else 1
    return 1


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A written-out attention: loads and ``score`` use the axes of ``grid``, ``p`` those of the result."""

    elements: Elements
    grid: _Grid
    score: Expr
    dot: Var
    q_load: Load
    k_load: Load
    v_load: Load
    depth: tuple[Var, Dim]
    last: tuple[Var, Dim]
    p: Load
    scale: float
    inside: set[Node]
    guarded: bool

    @property
    def k(self) -> Node:
        """The node of which the keys are a view."""
        return self.elements.nodes[self.k_load.buffer]

    @property
    def v(self) -> Node:
        """The node of which the values are a view."""
        return self.elements.nodes[self.v_load.buffer]

    def attention(self, node: Node) -> Node:
        """The node that replaces ``node``."""
        b, h, i, j = self.grid.axes
        batch, heads, queries, keys = self.grid.shape
        shared = self._shared_heads()
        first = {h: h * shared} if shared > 1 else {}
        groups = heads // shared
        q = self._view(self.q_load, (b, h, i, self.depth[0]), (batch, heads, queries, self.depth[1]), {}, node.origin)
        k = self._view(self.k_load, (b, h, j, self.depth[0]), (batch, groups, keys, self.depth[1]), first, node.origin)
        v = self._view(self.v_load, (b, h, j, self.last[0]), (batch, groups, keys, self.last[1]), first, node.origin)
        made = replace(self._node(q, k, v, shared, node), origin=node.origin)
        rows = None if self.guarded else self._forbidden_rows()
        if rows is not None:
            both = (made, replace(rows, origin=node.origin))
            masked = elementwise("masked_rows", both, lambda a, r: select(r, _nan(a), a), node.dtype)
            made = replace(masked, origin=node.origin)
        own = definition(node).axes

        place = [self.elements.simplify(e) for e in self.grid.back(self.p.indices[:-1])]

        def source(*axes: Expr) -> list[ExprLike]:
            here = dict(zip(own, axes, strict=True))
            return [substitute(e, here) for e in (*place, self.last[0])]

        view = reindex("view", made, node.shape, source)
        result = made if changes_nothing(view) else view
        return replace(result, strides=node.strides, origin=node.origin)

    def _shared_heads(self) -> int:
        """The largest number of consecutive query heads that read the same key head."""
        h, heads = self.grid.axes[1], self.grid.shape[1]
        for group in (n for n in range(heads, 1, -1) if heads % n == 0):
            shared, rest = Var("shared"), Var("rest")
            self.elements.bind((shared, rest), (heads // group, group))
            moved = (substitute(e, {h: shared * group + rest}) for e in (self.k_load, self.v_load))
            if not any(depends(self.elements.simplify(e), rest) for e in moved):
                return group
        return 1

    def _view(
        self, load: Load, axes: Sequence[Var], shape: Sequence[Dim], place: dict[Var, Expr], origin: Origin
    ) -> Node:
        def source(*own: Expr) -> list[ExprLike]:
            here = dict(zip(axes, own, strict=True))
            return [substitute(self.elements.simplify(substitute(e, place)), here) for e in load.indices]

        view = reindex("view", self.elements.nodes[load.buffer], shape, source)
        return view.inputs[0] if changes_nothing(view) else replace(view, origin=origin)

    def _operands(self) -> list[Buffer]:
        return list(dict.fromkeys(e.buffer for e in walk_exprs(self.score) if isinstance(e, Load)))

    def _node(self, q: Node, k: Node, v: Node, shared: int, origin: Node) -> Node:
        operands = self._operands()
        axes = self.grid.axes
        keys = self.grid.shape[3]

        def element(fq: Buffer, fk: Buffer, fv: Buffer, *rest: Buffer) -> Callable[..., ExprLike]:
            written = replace_buffers(unrounded(cast(self.score, f32)), dict(zip(operands, rest, strict=True)))

            def score(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
                d = Var("d")
                dot = reduce(
                    "sum", [(d, self.depth[1])], cast(fq[b, h, i, d], f32) * cast(fk[b, h // shared, j, d], f32)
                )
                return substitute(written, {**dict(zip(axes, (b, h, i, j), strict=True)), self.dot: dot})

            def power(b: Expr, h: Expr, i: Expr, j: Expr, top: Expr) -> Expr:
                nothing = eq(top, const(-math.inf, f32))
                return select(nothing, const(0.0, f32), call("exp", score(b, h, i, j) - top))

            def at(b: Expr, h: Expr, i: Expr, e: Expr) -> Expr:
                m, s, j = Var("j"), Var("j"), Var("j")
                top = reduce("max", [(m, keys)], score(b, h, i, m))
                total = reduce("sum", [(s, keys)], power(b, h, i, s, top))
                weighted = power(b, h, i, j, top) * cast(fv[b, h // shared, j, e], f32)
                summed = reduce("sum", [(j, keys)], weighted)
                return summed / select(eq(total, const(0.0, f32)), const(1.0, f32), total)

            return at

        sources = [q, k, v, *(self.elements.nodes[f] for f in operands)]
        shape, attrs = (*self.grid.shape[:3], self.last[1]), {"scale": self.scale, "causal": False}
        return define("attention", sources, shape, element, origin.dtype, **attrs)

    def _forbidden_rows(self) -> Node | None:
        """Rows in which minus infinity masks every key: bool, broadcastable to [b, h, i, d]; None if there are none.

        A product is finite, so a row is masked exactly when its scores are minus infinity with zeros in place of
        products.
        """
        without = substitute(self.score, {self.dot: const(0.0, f32)})
        parts = list(walk_exprs(without))
        if not any(e.dtype.is_float and (isinstance(e, Load) or _is_infinite(e)) for e in parts):
            return None
        operands = self._operands()
        used = [depends(without, axis) for axis in self.grid.axes[:3]]
        shape = [n if there else 1 for n, there in zip(self.grid.shape[:3], used, strict=True)]

        def element(*formals: Buffer) -> Callable[..., ExprLike]:
            written = replace_buffers(without, dict(zip(operands, formals, strict=True)))

            def at(b: Expr, h: Expr, i: Expr, e: Expr) -> Expr:
                j = Var("j")
                here = dict(zip(self.grid.axes, (b, h, i, j), strict=True))
                top = reduce("max", [(j, self.grid.shape[3])], cast(substitute(written, here), f32))
                return eq(top, const(-math.inf, f32))

            return at

        return define("masked_rows", [self.elements.nodes[f] for f in operands], (*shape, 1), element)


def _is_infinite(e: Expr) -> bool:
    return isinstance(e, Const) and isinstance(e.value, float) and not math.isfinite(e.value)


def _nan(like: Expr) -> Expr:
    return cast(const(math.nan, f32), like.dtype)
