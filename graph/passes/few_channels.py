"""Images of few channels, such as red, green and blue, are copied with zeros up to 8 channels.

    conv(x [n, 3, h, w], w [f, 3, 7, 7])    ->    conv(x' [n, 8, h, w], w' [f, 8, 7, 7])

Neighbouring pixels of three 16-bit channels begin at multiples of 6 bytes, which no vector reads: windows would be
gathered element by element. With 8 channels, a pixel is one chunk of 16 bytes. A copy reads and writes an image once,
while windows read each pixel many times, and gathering takes longer than multiplying by zeros. NVIDIA's guide to the
performance of convolutional layers asks for the same: channels in multiples of 8 for 16-bit floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast as typed

from taskmap.graph.build import define
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.ops.convolution import PADDING_AFTER, convolution, window_of
from taskmap.graph.passes.base import GraphPass, no_node, rewrite
from taskmap.ir.construct import const, eq, index, product, select, static_size
from taskmap.ir.nodes import Buffer, Expr, ExprLike

_CHUNK = 16
"""Bytes of a vector."""
_FEWEST, _FILTERS, _TAPS = 3, 16, 4
"""The fewest channels of which zeros do not make up most of a vector; the fewest filters, and pixels in a window, for
which a copy of the image is a small part of the work."""


@dataclass(frozen=True, slots=True)
class FillChannels(GraphPass):
    """Convolutions of 16-bit images read whole vectors of channels."""

    name = "fill-channels"
    before = "images have the channels that the model gives them"
    after = "no image of 3 to 7 channels, 4 apart, is read by a large window of 16-bit floats"
    why_here = "before pack-weights, which stores the filled weights in the order of their images"
    ensures = (no_node("a window over pixels that are not vectors", lambda n: _count(n) is not None),)

    def run(self, graph: Graph) -> Graph:
        """The graph with such convolutions."""
        return rewrite(graph, _filled)


FILL_CHANNELS = FillChannels()


def _count(node: Node) -> int | None:
    """The number of channels that an image should have; None for a node that stays."""
    if node.op != "convolution" or node.attrs.get("transposed") or len(node.inputs) != 2:
        return None
    w = node.inputs[1]
    channels, filters, taps = (static_size(n) for n in (w.shape[1], w.shape[0], product(w.shape[2:])))
    if node.attrs["groups"] != 1 or not node.dtype.is_float or node.dtype.bytes != 2 or w.dtype != node.dtype:
        return None
    if channels is None or filters is None or filters < _FILTERS or taps is None or taps < _TAPS:
        return None
    whole = _CHUNK // node.dtype.bytes
    return whole if _FEWEST <= channels < whole and channels != whole // 2 else None


def _filled(node: Node) -> Node:
    count = _count(node)
    if count is None:
        return node
    x, w = node.inputs
    slide = window_of(node)
    after = typed("tuple[int, ...] | None", node.attrs.get(PADDING_AFTER))
    image = _with_zeros(x, count, storage="channels_last", stored=True)
    made = convolution(image, _with_zeros(w, count), slide.stride, slide.padding, slide.dilation, padding_after=after)
    return replace(made, strides=node.strides, origin=node.origin)


def _with_zeros(x: Node, count: int, **attrs: object) -> Node:
    """``x`` with zeros up to ``count`` along axis 1. No address depends on the channel, so that a thread writes all
    channels of a pixel as one vector."""
    given = static_size(x.shape[1])
    assert given is not None

    def element(f: Buffer) -> Callable[..., ExprLike]:
        def at(first: Expr, channel: Expr, *rest: Expr) -> ExprLike:
            value: Expr = const(0, x.dtype)
            for known in reversed(range(given)):
                place = (first, index(known), *rest)
                value = select(eq(channel, known), f[place], value)
            return value

        return at

    made = define("fill_channels", [x], (x.shape[0], count, *x.shape[2:]), element, x.dtype, **attrs)
    return replace(made, origin=x.origin)
