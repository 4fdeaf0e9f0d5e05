"""The placement of values in memory: strides and offsets of placed values, and views that need no memory of their own.

Coordinates in the graph are logical and stay so (NCHW stays NCHW). Storage order belongs to the placement alone:
channels-last is a stride order. A view of a placed value (a slice, a permutation) is a placement in the same storage.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from taskmap.graph.analysis.classify import definition, is_contraction, is_view, is_windowed
from taskmap.graph.build import same_dim
from taskmap.graph.nodes import Node
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import constant_value, index, static_size
from taskmap.ir.lower.flatten import row_major_strides
from taskmap.ir.nodes import Call, Cast, Dim, Expr, Load, Var
from taskmap.ir.task import Compute
from taskmap.ir.visit import walk_exprs


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a value in the storage of ``root``: element (i, j, ...) is at offset + i * strides[0] + ...

    Strides and offset count elements.
    """

    root: Node
    strides: tuple[Dim, ...]
    offset: Dim = 0


def channels_last(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """The strides of a dense tensor stored with axis 1, the channels, innermost: N, spatial axes, C."""
    stored = (shape[0], *shape[2:], shape[1])
    batch, *spatial, channel = row_major_strides(stored)
    return (batch, channel, *spatial)


def heads_inside(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """The strides of a dense tensor [b, h, i, d] stored as b, i, h, d."""
    b, h, i, d = shape
    batch, query, head, element = row_major_strides((b, i, h, d))
    return (batch, head, query, element)


def choose_strides(nodes: Iterable[Node]) -> dict[Node, tuple[Dim, ...]]:
    """The strides that each value would have in memory of its own.

    Strides that the caller fixes are kept. A convolution writes channels-last, and so does every node that maps a
    channels-last value, which may be an argument, element by element or window by window. An interpolation also follows
    a view that has its channels together, such as an image made from a sequence of tokens: it then reads neighbours as
    vectors. Attention stores the heads of a query together, as the projection after it reads them. Everything else is
    row-major.
    """
    chosen: dict[Node, tuple[Dim, ...]] = {}
    flowing: set[Node] = set()
    for node in nodes:
        last = node.attrs.get("storage") == "channels_last" or is_convolution(node)
        if last or _follows(node, flowing) or _gathers_channels(node, chosen):
            flowing.add(node)
            chosen[node] = channels_last(node.shape)
        elif node.op == "attention":
            chosen[node] = heads_inside(node.shape)
        else:
            chosen[node] = row_major_strides(node.shape)
        if node.strides is not None:
            chosen[node] = node.strides
            if len(node.shape) > 2 and not equal_strides(node.shape, node.strides, channels_last(node.shape)):
                flowing.discard(node)
            elif not node.is_compute and _has_pixels(node.shape):
                flowing.add(node)
    return chosen


def _has_pixels(shape: Sequence[Dim]) -> bool:
    """True for images of several channels and pixels, whose storage order their strides tell."""
    return len(shape) > 3 and not _is_one(shape[1]) and not all(map(_is_one, shape[2:]))


def is_convolution(node: Node) -> bool:
    """True if the node is a windowed contraction over images: [n, c, spatial...]."""
    if not node.is_compute or len(node.shape) < 3:
        return False
    define = definition(node)
    return is_contraction(define) and is_windowed(define)


def _follows(node: Node, flowing: Container[Node]) -> bool:
    """True if a largest input of ``node`` is a channels-last value whose channels are the node's channels."""
    if not node.is_compute or len(node.shape) < 3:
        return False
    define = definition(node)
    for formal, source in zip(define.inputs, node.inputs, strict=True):
        if source not in flowing or len(source.shape) != len(node.shape) or all(_is_one(n) for n in source.shape[2:]):
            continue
        reads = [e for e in walk_exprs(define.body) if isinstance(e, Load) and e.buffer is formal]
        if all(_only(read.indices[1], define.axes[1]) for read in reads):
            return True
    return False


def _gathers_channels(node: Node, chosen: Mapping[Node, tuple[Dim, ...]]) -> bool:
    """True if ``node`` gathers pixels with all their channels from a view in which these lie together in memory."""
    if not node.is_compute or len(node.shape) < 3:
        return False
    define = definition(node)
    for formal, source in zip(define.inputs, node.inputs, strict=True):
        if len(source.shape) != len(node.shape) or not source.is_compute or not is_view(definition(source)):
            continue
        reads = [e for e in walk_exprs(define.body) if isinstance(e, Load) and e.buffer is formal]
        pixels = [i for read in reads for i in read.indices[2:]]
        if not all(_only(read.indices[1], define.axes[1]) for read in reads) or not any(map(_is_computed, pixels)):
            continue
        place = _placed(source, chosen)
        if place is not None and static_size(place.strides[1]) == 1 and static_size(place.strides[-1]) != 1:
            return True
    return False


def _is_computed(at: Expr) -> bool:
    """True if an index is looked up or rounded."""
    return any(isinstance(e, (Load, Cast, Call)) for e in walk_exprs(at))


def _placed(view: Node, chosen: Mapping[Node, tuple[Dim, ...]]) -> Placement | None:
    """The place of a view of a value with ``chosen`` strides; None if its addresses are not linear."""
    chain: list[Compute] = []
    while view.is_compute and view.op != "copy" and not view.attrs.get("stored") and is_view(definition(view)):
        chain.append(definition(view))
        (view,) = view.inputs
    place: Placement | None = Placement(view, chosen[view])
    while chain and place is not None:
        place = view_placement(chain.pop(), place)
    return place


def _is_one(size: Dim) -> bool:
    return static_size(size) == 1


def _only(at: Expr, axis: Var) -> bool:
    """True if an index depends on ``axis`` and on no other variable."""
    return {e for e in walk_exprs(at) if isinstance(e, Var)} == {axis}


def equal_strides(shape: Sequence[Dim], a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """True if two stride tuples address ``shape`` identically; the stride of an axis of size 1 is arbitrary."""
    return all(static_size(n) == 1 or same_dim(p, q) for n, p, q in zip(shape, a, b, strict=True))


def view_placement(view: Compute, source: Placement) -> Placement | None:
    """The placement of ``view``, a pure re-indexing of a value placed at ``source``, in the same storage.

    None when the view's addresses are not linear in its axes, because it then needs memory of its own.
    """
    if not isinstance(view.body, Load):
        return None
    simplify = Simplifier()
    for axis, size in zip(view.axes, view.shape, strict=True):
        simplify.bind(axis, size)
    address: Expr = index(source.offset)
    for position, stride in zip(view.body.indices, source.strides, strict=True):
        address = address + position * index(stride)
    terms = dict(simplify.poly(address))
    strides: list[Dim] = []
    for axis in view.axes:
        mine = {m: c for m, c in terms.items() if axis in m}
        slope: poly.Poly = {}
        for monomial, coefficient in mine.items():
            del terms[monomial]
            rest = list(monomial)
            rest.remove(axis)
            slope[tuple(rest)] = coefficient
        strides.append(_as_dim(slope))
    if any(_mentions(d, view) for d in (*strides, _as_dim(terms))):
        return None
    return Placement(source.root, tuple(strides), _as_dim(terms))


def slice_placement(parent: Placement, axis: int, start: Dim) -> Placement:
    """The placement of the part of a placed value that begins at ``start`` of ``axis``."""
    begin = index(start) * index(parent.strides[axis]) + index(parent.offset)
    offset = constant_value(begin)
    return Placement(parent.root, parent.strides, begin if offset is None else int(offset))


def _as_dim(p: poly.Poly) -> Dim:
    size = poly.to_expr(p)
    value = constant_value(size)
    return size if value is None else int(value)


def _mentions(dim: Dim, view: Compute) -> bool:
    return isinstance(dim, Expr) and any(e in view.axes or isinstance(e, Load) for e in walk_exprs(dim))
