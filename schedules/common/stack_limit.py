"""Stack usage of a kernel: its local buffers lie on a thread's stack."""

from __future__ import annotations

from taskmap.ir.construct import product, static_size
from taskmap.ir.nodes import Allocate, Body, Kernel, Scope
from taskmap.ir.visit import stmt_bodies

STACK_BYTES = 2 << 20
"""The most that a kernel may use. Threads commonly have 8 MiB, part of which the caller has used."""


def local_bytes(kernel: Kernel) -> int:
    """The maximum number of bytes of local buffers alive at once; buffers of consecutive loops share their space."""
    return _bytes(kernel.body)


def _bytes(body: Body) -> int:
    own = deepest = 0
    for s in body:
        if isinstance(s, Allocate) and s.buffer.scope is Scope.LOCAL:
            own += (static_size(product(s.buffer.shape)) or 0) * s.buffer.dtype.bytes
        for inner in stmt_bodies(s):
            deepest = max(deepest, _bytes(inner))
    return own + deepest
