"""Weight packing: the second operand of a contraction, stored in the order in which its template reads it.

    w [n, k]   ->   packed [ceil(n / width), k, width]          columns beyond n hold zeros
                    packed [ceil(n / width), ceil(k / g), width, g]     for instructions that multiply g neighbours

A template multiplies ``width`` columns at once, so it reads the packed operand sequentially. Packing is an ordinary
operator: for a constant weight it runs once, together with the other operators applied to the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from typing import cast as typed

from taskmap.graph.analysis.classify import redefined
from taskmap.graph.build import define
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.ops.convolution import window_of
from taskmap.graph.passes.base import GraphPass
from taskmap.graph.passes.byte_products import multiply_unsigned_by_signed, with_terms
from taskmap.ir.analysis.contraction import Contraction, byte_factor, byte_factors, find_contraction
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.analysis.windows import row_run
from taskmap.ir.construct import ceil_div, const, index, load, minimum, product, select, static_size
from taskmap.ir.expansion import WIDTH
from taskmap.ir.nodes import Buffer, Cast, Dim, Expr, ExprLike, Load, Var
from taskmap.ir.task import Compute, formal
from taskmap.ir.types import DType
from taskmap.ir.visit import map_expr, substitute, walk_exprs
from taskmap.ir.winograd import ATTRIBUTE


class PanelWidth(Protocol):
    """The number of columns that the template of a product multiplies at once."""

    def __call__(
        self,
        m: Dim,
        n: Dim,
        dtype: DType,
        *,
        channels: Dim = 0,
        factors: tuple[DType, DType] | None = None,
        terms: Dim = 0,
        run: int | None = None,
    ) -> int:
        """``m`` × ``n``: rows and columns; ``terms``: those of each sum. A convolution whose window covers more than
        one pixel multiplies one row of its image at a time, and sums ``channels`` neighbouring values for each pixel of
        the window. ``factors``: their types, if neighbours along the sum are stored together. ``run``: the rows that
        are equally spaced in memory before others follow; None if all are."""
        ...


PACK = "pack"
"""The operator of packed weights."""
_FEWEST_ROWS = 16
"""The fewest rows of a product of bytes for which the sums of columns are computed on every call, to flip signs."""
_SMALLEST, _SMALLEST_IN_TILES = 1 << 12, 1 << 8
"""Elements of the weights that are packed, at least; fewer for tile registers: products of bytes are otherwise widened
one by one, and weights of floats copied on every call."""


@dataclass(frozen=True, slots=True)
class PackOrder:
    """The packed order of an operand: panels of ``width`` columns of ``axis``, the other axes in the order ``others``
    within a panel. Panels do not cross a group of ``columns`` columns. ``together``: neighbours along the other axes,
    flattened in this order, that are stored together; zeros fill these axes up to a multiple of ``filled``."""

    axis: int
    others: tuple[int, ...]
    columns: int
    width: int
    together: int = 1
    filled: int = 1


def _one_by_one(a: DType, b: DType) -> int:
    return 1


def _of_opposite_signs(a: DType, b: DType) -> bool:
    return False


def _never(rows: int, terms: int, a: DType, b: DType, *, contiguous: bool) -> bool:
    return False


class CopiesColumns(Protocol):
    """True if the template of a product copies columns of B in the order in which it reads them."""

    def __call__(self, rows: int, terms: int, a: DType, b: DType, *, contiguous: bool) -> bool:
        """Of ``rows`` × ``terms`` elements of a. contiguous: neighbouring columns are adjacent in memory."""
        ...


@dataclass(frozen=True, slots=True)
class PackWeights(GraphPass):
    """Packs the second operand of every product that gains by it: constants, and operands with strided columns.

    together: the number of neighbours along a sum of products of these types that one instruction multiplies. filled:
    the number of terms of such a sum that it adds, a multiple of that. any_signs: true if it multiplies bytes of these
    types as they are; else they become unsigned and signed ones. copies: true if the template of a product packs its
    columns itself. images: packs only weights of convolutions, and only
    those whose neighbouring channels are apart in memory.
    """

    width: PanelWidth
    images: bool = False
    together: Callable[[DType, DType], int] = _one_by_one
    filled: Callable[[DType, DType], int] = _one_by_one
    any_signs: Callable[[DType, DType], bool] = _of_opposite_signs
    copies: CopiesColumns = _never
    name = "pack-weights"
    before = "every contraction reads its operands in the layout of the model"
    after = "weights are read through pack nodes"
    why_here = "last: folding into weights comes before, and no other pass understands the packed order"

    def run(self, graph: Graph) -> Graph:
        """The same graph with packed weights."""
        constant = set(graph.computed_once())
        packed: dict[tuple[Node, PackOrder], Node] = {}
        renamed: dict[Node, Node] = {}
        for node in graph.nodes():
            inputs = tuple(renamed.get(n, n) for n in node.inputs)
            if inputs != node.inputs:
                renamed[node] = replace(node, inputs=inputs)
            current = renamed.get(node, node)
            done = self._packed(current, constant, packed)
            if done is not None:
                renamed[node] = done
            if node in constant:
                constant.add(renamed.get(node, node))
        outputs = [None if n is None else renamed.get(n, n) for n in graph.outputs]
        return replace(graph, outputs=outputs)

    def _packed(self, node: Node, constant: set[Node], packed: dict[tuple[Node, PackOrder], Node]) -> Node | None:
        if node.define is None or node in constant or ATTRIBUTE in node.attrs:
            return None
        windowed = "dilation" in node.attrs
        if self.images and not (windowed and _channels_lie_apart(node)):
            return None
        found = self._convolution(node) if windowed else self._matmul(node, constant)
        if found is None:
            return None if windowed else self._with_signs(node)
        position, order = found
        bytes_only = byte_factors(node.define.body) if order.together > 1 else None
        flips = bytes_only is not None and not self.any_signs(*bytes_only)
        signed = multiply_unsigned_by_signed(node) if flips else (node, ())
        if signed is None:
            return None
        product, terms = signed
        weight = product.inputs[position]
        key = (weight, order)
        if key not in packed:
            whole = order
            if bytes_only is not None and node.inputs[position] not in constant and _has_gaps(weight, order):
                weight = _whole_panels(weight, order)
                whole = replace(order, columns=static_size(weight.shape[order.axis]) or order.columns)
            packed[key] = replace(pack(weight, whole), origin=node.origin)
        return with_terms(node, _reading(product, position, packed[key], order), terms)

    def _convolution(self, node: Node) -> tuple[int, PackOrder] | None:
        weight, transposed = node.inputs[1], bool(node.attrs.get("transposed"))
        groups = typed(int, node.attrs["groups"])
        filters = static_size(weight.shape[0])
        if filters is not None and filters == groups > 1 and static_size(weight.shape[1]) == 1:
            # Vectors run over the channels of a depthwise convolution, so channels become adjacent.
            order = PackOrder(0, (1, *range(2, len(weight.shape))), filters, filters)
            return None if _is_symbolic(weight) else (1, order)
        axis = 1 if transposed else 0
        columns = static_size(weight.shape[axis]) or 0
        columns = columns if transposed else columns // groups
        if _is_symbolic(weight) or columns < (2 if groups == 1 else 4):
            return None
        slide = window_of(node)
        in_place = all(d == 1 for d in weight.shape[2:]) and not any(map(any, slide.pairs))
        pointwise = in_place and groups == 1 and not transposed
        rows = product([node.shape[0], *node.shape[2:]]) if pointwise else node.shape[-1]
        rows = ceil_div(rows, slide.stride[-1]) if transposed else rows
        channels = 0 if pointwise or (transposed and groups > 1) else weight.shape[1 - axis]
        terms = product([d for i, d in enumerate(weight.shape) if i != axis])
        terms = ceil_div(terms, groups) if transposed else terms
        wanted = typed("int | None", node.attrs.get(WIDTH))
        width = wanted or self.width(rows, columns, node.dtype, channels=channels, terms=terms)
        return 1, PackOrder(axis, (*range(2, len(weight.shape)), 1 - axis), columns, width)

    def _matmul(self, node: Node, constant: set[Node]) -> tuple[int, PackOrder] | None:
        assert node.define is not None
        c = find_contraction(node.define.axes, node.shape, node.define.body)
        read = None if c is None else _plain(c.b)
        if c is None or read is None or len(c.n) != 1 or c.n[0][0] not in read.indices:
            return None
        position = next((i for i, f in enumerate(node.define.inputs) if f is read.buffer), None)
        if position is None:
            return None
        weight = node.inputs[position]
        if not all(isinstance(i, Var) for i in read.indices) or _is_symbolic(weight):
            return None
        axis = read.indices.index(c.n[0][0])
        others = tuple(d for d in range(len(weight.shape)) if d != axis)
        factors = byte_factor(c.a) or _type_of(c.a), read.dtype
        together = self.together(*factors) if len(c.k) == len(others) == 1 else 1
        filled = self.filled(*factors) if together > 1 else 1
        smallest = _SMALLEST_IN_TILES if filled > 1 else _SMALLEST
        if (static_size(product(weight.shape)) or 0) < smallest:
            return None
        if weight not in constant and not self._worth_it(c, weight, axis, together, factors):
            return None
        grouped = factors if together > 1 else None
        rows, terms = (product([d for _, d in axes]) for axes in (c.m, c.k))
        run = None if grouped is None else row_run(c)
        width = self.width(rows, c.n[0][1], node.dtype, factors=grouped, terms=terms, run=run)
        if not self._is_shared(c, read, factors):
            return None
        return position, PackOrder(axis, others, static_size(weight.shape[axis]) or 1, width, together, filled)

    def _with_signs(self, node: Node) -> Node | None:
        """A batch of products of bytes whose second operands differ, with the signs that instructions take: the
        template copies these operands in groups. None if it does not, or takes them as they are."""
        assert node.define is not None
        c = find_contraction(node.define.axes, node.shape, node.define.body)
        factors = byte_factors(node.define.body)
        read = None if c is None else _plain(c.b)
        if c is None or factors is None or read is None or len(c.k) != 1 or len(c.n) != 1:
            return None
        rows, columns, terms = (static_size(product([d for _, d in axes])) or 0 for axes in (c.m, c.n, c.k))
        together = self.together(*factors)
        if together == 1 or self.any_signs(*factors) or self._is_shared(c, read, factors):
            return None
        if rows < _FEWEST_ROWS or terms < together or not columns:
            return None
        signed = multiply_unsigned_by_signed(node)
        return None if signed is None or not signed[1] else with_terms(node, *signed)

    def _is_shared(self, c: Contraction, weight: Load, factors: tuple[DType, DType]) -> bool:
        """True if every product of a batch reads the same weight; a batch of one does, but groups of neighbours have
        a batch's own layout."""
        own = [n for v, n in c.batch if v in weight.indices]
        return not own or (all(static_size(n) == 1 for n in own) and self.together(*factors) == 1)

    def _worth_it(self, c: Contraction, weight: Node, axis: int, together: int, factors: tuple[DType, DType]) -> bool:
        """True if packing on every call pays: many rows use the columns, or several rows use strided ones. Fewer rows
        suffice if packing makes an instruction usable that multiplies several neighbours. False for columns that the
        template copies itself."""
        rows, terms = (static_size(product([d for _, d in axes])) for axes in (c.m, c.k))
        contiguous = _is_contiguous(weight, axis)
        if rows is not None and together > 1 and self.copies(rows, terms or 0, *factors, contiguous=contiguous):
            return False
        return rows is None or rows >= (256 if together == 1 else 64) or (rows >= 8 and not contiguous)


def _one_column(m: Dim, n: Dim, dtype: DType, **more: object) -> int:
    return 1


WEIGHTS_CHANNELS_LAST = PackWeights(_one_column, images=True)
"""Stores convolution weights as channels-last images are stored: [filters, taps, channels], or [taps, channels] for
depthwise ones. Values that are read together are then adjacent."""


def _channels_lie_apart(node: Node) -> bool:
    """True if the weight of an untransposed convolution is read with a stride where a channels-last image is not: along
    the channels of a sum or, in a depthwise convolution, along all channels."""
    weight = node.inputs[1]
    axis = 0 if static_size(weight.shape[1]) == 1 else 1
    pairs = (static_size(weight.shape[axis]) or 0) % 2 == 0  # an odd number of channels is never read in pairs
    return pairs and not node.attrs.get("transposed") and not _is_contiguous(weight, axis)


def _has_gaps(weight: Node, order: PackOrder) -> bool:
    """True if columns do not fill all panels, or terms all groups."""
    (axis,) = order.others
    return bool(order.columns % order.width or (static_size(weight.shape[axis]) or 0) % order.together)


def _whole_panels(weight: Node, order: PackOrder) -> Node:
    """``weight`` with zeros that fill its last panel and its last group, in memory: packing then copies vectors of
    columns, because none is missing."""
    given = [static_size(n) or 1 for n in weight.shape]
    parts = [order.width if d == order.axis else order.together for d in range(len(given))]
    shape = tuple(-(-n // part) * part for n, part in zip(given, parts, strict=True))

    def element(w: Buffer) -> Callable[..., ExprLike]:
        def at(*place: Expr) -> ExprLike:
            value = w[tuple(minimum(i, n - 1) for i, n in zip(place, given, strict=True))]
            for i, n in zip(place, given, strict=True):
                value = select(i < n, value, const(0, w.dtype))
            return value

        return at

    return define("fill_columns", [weight], shape, element, weight.dtype, stored=True)


def _is_symbolic(node: Node) -> bool:
    return any(static_size(d) is None for d in node.shape)


def _plain(e: Expr) -> Load | None:
    while isinstance(e, Cast):
        e = e.a
    return e if isinstance(e, Load) else None


def _type_of(factor: Expr) -> DType:
    """The type of a factor before its conversion to a wider float."""
    while isinstance(factor, Cast) and factor.a.dtype.is_float and factor.a.dtype.bits < factor.dtype.bits:
        factor = factor.a
    return factor.dtype


def _is_contiguous(node: Node, axis: int) -> bool:
    """True if neighbours along ``axis`` are adjacent in memory, with views resolved down to a value with memory."""
    axes = [Var(f"i{d}") for d in range(len(node.shape))]
    simplifier = Simplifier()
    for v, size in zip(axes, node.shape, strict=True):
        simplifier.bind(v, size)
    where: tuple[Expr, ...] = tuple(axes)
    while node.define is not None and isinstance(node.define.body, Load):
        body = node.define.body
        source = node.inputs[next(i for i, f in enumerate(node.define.inputs) if f is body.buffer)]
        known = dict(zip(node.define.axes, where, strict=True))
        where = tuple(substitute(i, known) for i in body.indices)
        node = source
    strides = node.strides or tuple(product(node.shape[d + 1 :]) for d in range(len(node.shape)))
    total: Expr = index(0)
    for i, s in zip(where, strides, strict=True):
        total = total + i * s
    terms = simplifier.poly(total)
    return all(m == (axes[axis],) and c == 1 for m, c in terms.items() if axes[axis] in m) and not any(
        axes[axis] in walk_exprs(a) for m in terms for a in m if not isinstance(a, Var)
    )


def pack(weight: Node, order: PackOrder) -> Node:
    """A node that stores ``weight`` in the packed order."""
    if order.together > 1:
        return _pack_groups(weight, order)
    groups = (static_size(weight.shape[order.axis]) or order.columns) // order.columns
    counts = groups, -(-order.columns // order.width)
    shape, element = packing(weight.shape, counts, order.axis, order.others, order.columns, order.width)
    attrs = {"axis": order.axis, "others": order.others, "columns": order.columns, "width": order.width}
    return define(PACK, [weight], shape, element, weight.dtype, **attrs)


def packing(
    shape: Sequence[Dim],
    counts: tuple[Dim, Dim],
    axis: int,
    others: Sequence[int],
    columns: Dim,
    width: Dim,
    *,
    full: bool = False,
) -> tuple[tuple[Dim, ...], Callable[[Buffer], Callable[..., ExprLike]]]:
    """The shape of a packed operand, and its elements as a function of the operand, which has ``shape``.

    ``axis`` counts the columns of all groups, ``columns`` in each, packed in panels of ``width``. ``counts``: the
    number of groups, and of a group's panels. ``others``: the order of the other axes within a panel. ``full``: the
    columns fill all panels, so no element is checked.
    """
    groups, panels = counts
    outer = () if static_size(groups) in (0, 1) else (groups,)
    packed = (*outer, panels, *(shape[d] for d in others), width)

    def element(w: Buffer) -> Callable[..., ExprLike]:
        def at(*place: Expr) -> Expr:
            group, (panel, *inner, lane) = (place[0], place[1:]) if outer else (index(0), place)
            column = panel * width + lane
            where: list[Expr] = [index(0)] * len(shape)
            where[axis] = group * columns + (column if full else minimum(column, columns - 1))
            for d, i in zip(others, inner, strict=True):
                where[d] = i
            return w[tuple(where)] if full else select(column < columns, w[tuple(where)], 0)

        return at

    return packed, element


def _pack_groups(weight: Node, order: PackOrder) -> Node:
    columns, width, size = order.columns, order.width, order.together
    extents = [weight.shape[d] for d in order.others]
    depth = static_size(product(extents)) or 0
    groups = -(-depth // max(order.filled, size)) * max(order.filled, size) // size
    shape = (ceil_div(columns, width), groups, width, size)

    def element(w: Buffer) -> Callable[..., ExprLike]:
        def at(panel: Expr, group: Expr, lane: Expr, place: Expr) -> Expr:
            column, k = panel * width + lane, group * size + place
            where: list[Expr] = [index(0)] * len(weight.shape)
            where[order.axis] = minimum(column, columns - 1)
            rest = minimum(k, depth - 1)
            for d, extent in zip(reversed(order.others), reversed(extents), strict=True):
                where[d], rest = (rest % extent, rest // extent) if d != order.others[0] else (rest, rest)
            return select(column < columns, select(k < depth, w[tuple(where)], 0), 0)

        return at

    return define("pack_groups", [weight], shape, element, weight.dtype)


def _reading(node: Node, position: int, packed: Node, order: PackOrder) -> Node:
    """``node`` with its input at ``position`` read from ``packed``."""
    old = node.define
    assert old is not None
    was = old.inputs[position]
    now = formal("packed", packed.shape, packed.dtype)

    def one(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.buffer is not was:
            return None
        column = e.indices[order.axis]
        outer: tuple[Expr, ...] = ()
        if order.together == 1 and len(now.shape) > len(was.shape) + 1:
            outer, column = (column // order.columns,), column % order.columns
        inner = [e.indices[d] for d in order.others]
        panel, lane = column // order.width, column % order.width
        if order.together > 1:
            k = inner[0]
            for i, d in zip(inner[1:], order.others[1:], strict=True):
                k = k * was.shape[d] + i
            return load(now, (panel, k // order.together, lane, k % order.together))
        return load(now, (*outer, panel, *inner, lane))

    inputs = tuple(now if i == position else f for i, f in enumerate(old.inputs))
    body = map_expr(old.body, one)
    fresh = Compute(old.name, inputs, old.shape, old.dtype, old.axes, body)
    sources = tuple(packed if i == position else n for i, n in enumerate(node.inputs))
    return redefined(node, sources, fresh)
