"""Comparisons of consecutive indices with a bound, in 32 bits per lane.

    base + lane * stride < bound    ->    lane * stride < clamp(bound - base)

Clamped to the numbers next to the lanes' range, the difference fits 32 bits and every comparison keeps its result. In
64 bits, a vector of indices takes twice the registers of the f32 that it selects, and its mask has to be narrowed.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.construct import constant_value
from taskmap.ir.nodes import Broadcast, Compare, Expr, Ramp
from taskmap.ir.types import i64

_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_LARGEST = 1 << 30


@dataclass(frozen=True, slots=True)
class LaneCompare:
    """``base + lane * stride`` compared by ``op`` with ``bound``, in each of some lanes; the rest are scalars."""

    base: Expr
    stride: int
    op: str
    bound: Expr
    lanes: int

    @property
    def beyond(self) -> int:
        """The least multiple of the stride that no lane reaches."""
        return self.stride * self.lanes


def lane_test(e: Compare) -> LaneCompare | None:
    """``e`` as a test of lanes; None if it is not one of consecutive i64 with a bound that all lanes share."""
    if e.lanes == 1 or e.a.dtype != i64:
        return None
    ramp, bound, op = (e.a, e.b, e.op) if isinstance(e.a, Ramp) else (e.b, e.a, _MIRRORED[e.op])
    if not isinstance(ramp, Ramp) or not isinstance(bound, Broadcast):
        return None
    stride = constant_value(ramp.stride)
    if stride is None or not 0 < stride * e.lanes < _LARGEST:
        return None
    return LaneCompare(ramp.base, int(stride), op, bound.a, e.lanes)
