"""The scores of a written-out attention: softmax by its definitions, and the scale and mask around one product.

No operator's name is used. Every doubt counts against a match: each function returns None or raises ``UnlikeError``,
and the pass then leaves the graph alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from taskmap.graph.analysis.classify import definition, is_injective
from taskmap.graph.build import same_dim
from taskmap.graph.nodes import Node
from taskmap.graph.passes.elements import Elements, bare, depends, load_depends
from taskmap.ir.construct import binary, cast, const, constant_value, select
from taskmap.ir.nodes import Binary, Call, Cast, Const, Dim, Expr, Load, Reduce, Select, Var
from taskmap.ir.types import bf16, f16, f32
from taskmap.ir.visit import children, map_expr, substitute, walk_exprs


class UnlikeError(Exception):
    """The graph does not match the pattern."""


@dataclass(frozen=True, slots=True)
class SoftmaxPattern:
    """A softmax along the last dimension of ``node``, at its own axes; ``x`` is the element to which it is applied."""

    node: Node
    x: Load
    inside: frozenset[Node]


def find_softmax(elements: Elements, node: Node) -> SoftmaxPattern | None:
    """exp(x - max x) / sum exp(x - max x) along the last dimension; None when ``node`` is anything else.

    The maximum is required: without it the weights can overflow, and an attention would compute something else.
    """
    if not node.is_compute or len(node.shape) < 2:
        return None
    inside = {node}
    ratio = bare(elements.body(node))
    if not isinstance(ratio, Binary) or ratio.op != "div":
        return None
    key = definition(node).axes[-1]
    power, total = elements.behind_casts(ratio.a, inside), elements.behind_casts(ratio.b, inside)
    if power is None or total is None or not _folds(elements, "sum", total, power, key, node.shape[-1], inside):
        return None
    raised = _opened(elements, power, inside)
    if not isinstance(raised, Call) or raised.name != "exp":
        return None
    shifted = bare(raised.args[0])
    if isinstance(shifted, Load):
        below = elements.behind_casts(shifted, inside)
        shifted = shifted if below is None else _opened(elements, below, inside)
    if not isinstance(shifted, Binary) or shifted.op != "sub":
        return None
    x, top = elements.behind_casts(shifted.a, inside), elements.behind_casts(shifted.b, inside)
    if x is None or top is None or not _folds(elements, "max", top, x, key, node.shape[-1], inside):
        return None
    return SoftmaxPattern(node, x, frozenset(inside))


def behind_guard(elements: Elements, load: Load, passed: set[Node]) -> Load | None:
    """The load inside where(isnan(p), 0, p), which exporters write around the weights of a masked attention.

    None for any other form. Adds the nodes in between to ``passed``.
    """
    body = _opened(elements, load, passed)
    if not isinstance(body, Select) or constant_value(bare(body.a)) != 0:
        return None
    asked: Expr = body.cond
    while isinstance(asked, Load) and elements.nodes[asked.buffer].is_compute:
        asked = _opened(elements, asked, passed)
    kept = elements.behind_casts(body.b, passed)
    if kept is None or not isinstance(asked, Call) or asked.name != "isnan":
        return None
    return kept if elements.behind_casts(asked.args[0], passed) == kept else None


def _opened(elements: Elements, load: Load, inside: set[Node]) -> Expr:
    node = elements.nodes[load.buffer]
    if not node.is_compute:
        return load
    inside.add(node)
    return bare(elements.open(load))


def _folds(elements: Elements, op: str, at: Load, what: Load, key: Var, extent: Dim, inside: set[Node]) -> bool:
    """True if ``at`` reads the ``op`` of ``what`` over all values of ``key``."""
    fold = _opened(elements, at, inside)
    if not isinstance(fold, Reduce) or fold.op != op or len(fold.axes) != 1:
        return False
    folded, size = fold.axes[0]
    below = elements.behind_casts(fold.body, inside)
    if below is None or not same_dim(size, extent) or load_depends(what, folded):
        return False
    return elements.simplify(below) == elements.simplify(substitute(what, {key: folded}))


@dataclass(slots=True)
class Scores:
    """Reads scores as an expression of ``dot``, which represents the product of one query and one key.

    ``query`` is None if there is only one query, so that no load depends on its index. After ``read``: ``q`` and ``k``
    are the product's factors as loads behind all views, summed over ``depth``; ``scale`` is the number by which the
    product is multiplied; ``inside`` holds the nodes that were read through.
    """

    elements: Elements
    query: Var | None
    key: Var
    dot: Var = field(default_factory=lambda: Var("dot", f32))
    scale: float = 1.0
    q: Load | None = None
    k: Load | None = None
    depth: tuple[Var, Dim] | None = None
    inside: set[Node] = field(default_factory=set)
    product: Load | None = None
    apart: set[Load] = field(default_factory=set)

    def read(self, e: Expr) -> Expr | None:
        """``e`` in terms of ``dot``; None when it contains no product of a query and a key.

        Raises UnlikeError unless the product occurs exactly once, and is only scaled by numbers, added to, converted,
        or replaced by a number where a mask says so.
        """
        if isinstance(e, Load):
            return self._read_load(e)
        if isinstance(e, Cast):
            inner = self.read(e.a)
            if inner is not None and not e.dtype.is_float:
                raise UnlikeError
            return None if inner is None else cast(inner, e.dtype)
        parts = [self.read(c) for c in children(e)] if not isinstance(e, Reduce) else []
        if all(p is None for p in parts):
            return None
        if isinstance(e, Binary):
            return self._read_binary(e, parts[0], parts[1])
        if isinstance(e, Select) and parts[0] is None:
            return self._read_select(e, parts[1], parts[2])
        raise UnlikeError

    def _read_load(self, load: Load) -> Expr | None:
        node = self.elements.nodes[load.buffer]
        if load in self.apart or not node.is_compute or not node.dtype.is_float:
            return None
        if not self._of_query(load) or not load_depends(load, self.key):
            return None
        body = self.elements.open(load)
        if isinstance(bare(body), Reduce):
            found = self._read_product(load, body)
        else:
            found = self.read(body) if is_injective(definition(node)) else None
        if found is None:
            self.apart.add(load)
        else:
            self.inside.add(node)
        return found

    def _read_product(self, load: Load, body: Expr) -> Expr | None:
        fold = bare(body)
        if not isinstance(fold, Reduce) or fold.op != "sum" or len(fold.axes) != 1 or fold.dtype != f32:
            return None
        if not isinstance(fold.body, Binary) or fold.body.op != "mul":
            return None
        a, b = (self.elements.behind_scale(factor) for factor in (fold.body.a, fold.body.b))
        if a is None or b is None:
            return None
        (q, by_q), (k, by_k) = a, b
        if load_depends(q, self.key):
            q, k = k, q
        if load_depends(q, self.key) or not load_depends(k, self.key):
            return None
        if not self._of_query(q) or (self.query is not None and load_depends(k, self.query)):
            return None
        summed = fold.axes[0][0]
        if not load_depends(q, summed) or not load_depends(k, summed):
            return None
        if self.product is not None:
            raise UnlikeError
        self.product, self.q, self.k, self.depth = load, q, k, fold.axes[0]
        scale = by_q * by_k
        self.scale *= scale
        return _converted(body, self.dot if scale == 1 else self.dot * const(scale, f32))

    def _of_query(self, load: Load) -> bool:
        return self.query is None or load_depends(load, self.query)

    def _read_binary(self, e: Binary, a: Expr | None, b: Expr | None) -> Expr:
        if a is not None and b is not None:
            raise UnlikeError
        number = constant_value(e.b if b is None else e.a)
        if e.op == "add" or (e.op == "sub" and b is None):
            return binary(e.op, e.a if a is None else a, e.b if b is None else b)
        if not isinstance(number, (int, float)) or not math.isfinite(number) or number == 0:
            raise UnlikeError
        if e.op == "mul":
            self.scale *= number
        elif e.op == "div" and b is None:
            self.scale /= number
        else:
            raise UnlikeError
        return binary(e.op, e.a if a is None else a, e.b if b is None else b)

    def _read_select(self, e: Select, a: Expr | None, b: Expr | None) -> Expr:
        if (a is None) == (b is None):
            raise UnlikeError
        if not isinstance(e.b if b is None else e.a, Const) or depends(e.cond, self.dot):
            raise UnlikeError
        return select(e.cond, e.a if a is None else a, e.b if b is None else b)


def unrounded(score: Expr) -> Expr:
    """A score of half types computed in f32 throughout, provided that this changes only its last digits.

    Rounding stays where something is added, such as a mask's lowest number: it may be what makes scores equal.
    """
    if any(isinstance(e, Binary) and e.op in ("add", "sub") and e.dtype.is_float for e in walk_exprs(score)):
        return score

    def wide(e: Expr) -> Expr | None:
        if not isinstance(e, Cast) or not isinstance(e.a, Cast):
            return None
        inner = e.a.a
        return inner if e.dtype == inner.dtype == f32 and e.a.dtype in (f16, bf16) else None

    return map_expr(score, wide)


def _converted(e: Expr, value: Expr) -> Expr:
    """``value`` inside the conversions that surround ``e``."""
    return cast(_converted(e.a, value), e.dtype) if isinstance(e, Cast) else value
