"""The tensor maps that a kernel takes: its buffers as TMA sees them, made at each launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.backend.program.sizes import sizes_function
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.types import DType


@dataclass(frozen=True, slots=True)
class MapParameter:
    """One parameter `const __grid_constant__ tm_tensor_map`: the pointer parameter number ``buffer``, seen as a tensor.

    shape, strides and offset are in elements, over the kernel's sizes, the outermost dimension first; the last stride
    is 1. box: the extents that one instruction copies. swizzle: bytes over which chunks of 16 are swizzled in shared
    memory, or 0.
    """

    buffer: int
    dtype: DType
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    offset: Dim = 0


@dataclass(frozen=True, slots=True)
class TensorView:
    """A MapParameter at a launch, in the hardware's form: the innermost dimension first, strides in bytes.

    ``strides`` are those of all dimensions but the first, whose elements are neighbours.
    """

    address: int
    dtype: DType
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


Views = Callable[[Sequence[int], Sequence[int]], tuple[TensorView, ...]]
"""From the addresses of a launch and its sizes to the views of its maps."""


def views_of(maps: Sequence[MapParameter], dims: Sequence[Var]) -> Views:
    """The function that resolves maps at a launch."""
    geometry = [sizes_function((*m.shape, *m.strides, m.offset), dims) for m in maps]

    def resolve(addresses: Sequence[int], sizes: Sequence[int]) -> tuple[TensorView, ...]:
        return tuple(_view(m, g(sizes), addresses[m.buffer]) for m, g in zip(maps, geometry, strict=True))

    return resolve


def _view(m: MapParameter, numbers: Sequence[int], address: int) -> TensorView:
    rank = len(m.box)
    shape, strides, offset = numbers[:rank], numbers[rank : 2 * rank], numbers[-1]
    return TensorView(
        address + offset * m.dtype.bytes,
        m.dtype,
        tuple(reversed(shape)),
        tuple(s * m.dtype.bytes for s in reversed(strides[:-1])),
        tuple(reversed(m.box)),
        m.swizzle,
    )
