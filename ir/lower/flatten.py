"""Flatten: every buffer becomes one-dimensional, every access an address.

c: f32[64, 8] strides (8, 1);  c[i, j]     ->     c: f32[512];  c[i * 8 + j]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast as typed

from taskmap.ir.construct import binary, index, load, product
from taskmap.ir.lower.conditions import FLAT, NO_DISTRIBUTED_REGISTERS, NO_MAPPED_LOOPS, NO_SPECS, KernelPass, is_flat
from taskmap.ir.nodes import Allocate, Buffer, Dim, Expr, Invoke, Kernel, Load, Ramp, Region, Stmt, Store, TensorMap
from taskmap.ir.types import i64
from taskmap.ir.visit import expr_map, map_body


@lru_cache(maxsize=1024)  # requested at each access of a buffer
def row_major_strides(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Strides of a dense row-major tensor of ``shape``, in elements."""
    return tuple(product(shape[d + 1 :]) for d in range(len(shape)))


def strides_of(buffer: Buffer) -> tuple[Dim, ...]:
    """The strides of a buffer in elements; row-major unless it has its own."""
    return row_major_strides(buffer.shape) if buffer.strides is None else buffer.strides


def address(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
    """The address of an element, in elements from the start of the storage; a vector if an index is a ramp."""
    if buffer.layout is not None:
        return typed(Callable[..., Expr], buffer.layout)(*indices)
    total: Expr | None = None if isinstance(buffer.offset, int) and not buffer.offset else index(buffer.offset)
    step: Expr | None = None
    lanes = 1
    for i, stride in zip(indices, strides_of(buffer), strict=True):
        if isinstance(i, Ramp):
            scaled = binary("mul", i.stride, stride)
            step = scaled if step is None else binary("add", step, scaled)
            lanes = i.lanes
            i = i.base
        part = binary("mul", i, stride)
        if total is None and part.dtype is i64:
            total = part
        else:
            total = binary("add", index(0) if total is None else total, part)
    total = index(0) if total is None else total
    return total if step is None else Ramp(total, step, lanes)


def span(buffer: Buffer) -> Dim:
    """The number of elements in a buffer's storage, from its start to its last element."""
    if buffer.strides is None and buffer.layout is None:
        return product(buffer.shape) + buffer.offset
    if buffer.layout is not None:
        return typed(Dim, buffer.layout.size)  # type: ignore[attr-defined]  # layouts are duck-typed here
    last: Dim = buffer.offset + 1
    for size, stride in zip(buffer.shape, strides_of(buffer), strict=True):
        last = last + (size - 1) * stride
    return last


def _flat(buffer: Buffer) -> Buffer:
    """The storage of a buffer. A tile that one worker holds in order needs no owner: the address is the slot."""
    return replace(buffer, shape=(span(buffer),), strides=None, offset=0, layout=None, owner=None)


@dataclass(frozen=True, slots=True)
class Flatten(KernelPass):
    """Addresses instead of indices. Afterwards every buffer has rank 1, stride 1 and offset 0."""

    name = "flatten"
    before = "specs, task-mapped loops and distributed registers, whose lowering needs indices, are gone"
    after = "an access has one index, its address in elements"
    why_here = "first of the passes that reason about addresses, not about indices of unknown strides"
    requires = (NO_SPECS, NO_DISTRIBUTED_REGISTERS, NO_MAPPED_LOOPS)
    ensures = (FLAT,)

    def run(self, kernel: Kernel) -> Kernel:
        """The same kernel on flat buffers."""
        flat: dict[Buffer, Buffer] = {}

        def flattened(b: Buffer) -> Buffer:
            if b not in flat:
                flat[b] = b if is_flat(b) else _flat(b)
            return flat[b]

        maps = {
            m: m if is_flat(m.buffer) else replace(m, buffer=flattened(m.buffer), tensor=m.seen)
            for m in (kernel.launch.maps if kernel.launch else ())
        }

        def in_operand(o: Region | Expr | TensorMap) -> Region | Expr | TensorMap:
            if isinstance(o, TensorMap):
                return maps[o]
            return in_region(o) if isinstance(o, Region) else o

        def in_expr(e: Expr) -> Expr | None:
            if not isinstance(e, Load) or flattened(e.buffer) is e.buffer:
                return None
            return load(flat[e.buffer], (address(e.buffer, e.indices),))

        def in_region(r: Region) -> Region:
            return Region(flattened(r.buffer), (address(r.buffer, r.start),), (product(r.shape),))

        def in_stmt(s: Stmt) -> Stmt | None:
            if isinstance(s, Invoke):
                return replace(s, operands=tuple(in_operand(o) for o in s.operands))
            if not isinstance(s, (Store, Allocate)) or flattened(s.buffer) is s.buffer:
                return None
            if isinstance(s, Allocate):
                return replace(s, buffer=flat[s.buffer])
            return Store(flat[s.buffer], (address(s.buffer, s.indices),), s.value, s.source)

        launch = kernel.launch and replace(
            kernel.launch,
            workspace=tuple(flattened(b) for b in kernel.launch.workspace),
            counters=tuple(flattened(b) for b in kernel.launch.counters),
            maps=tuple(maps.values()),
        )
        return replace(
            kernel,
            body=map_body(kernel.body, in_stmt, expr_map(in_expr)),
            buffers=tuple(flattened(b) for b in kernel.buffers),
            outputs=tuple(flattened(b) for b in kernel.outputs),
            launch=launch,
        )
