"""How much of a thread's stack a kernel takes: its local buffers lie there."""

from __future__ import annotations

from taskmap.ir.construct import product, static_size
from taskmap.ir.nodes import Allocate, Body, Kernel, Scope
from taskmap.ir.visit import stmt_bodies

STACK_BYTES = 2 << 20
"""What a kernel may take. Threads commonly have 8 MiB, of which a caller has used some."""


def local_bytes(kernel: Kernel) -> int:
    """Bytes of local buffers that exist at once, at most; those of loops one after the other share their place."""
    return _bytes(kernel.body)


def _bytes(body: Body) -> int:
    own = deepest = 0
    for s in body:
        if isinstance(s, Allocate) and s.buffer.scope is Scope.LOCAL:
            own += (static_size(product(s.buffer.shape)) or 0) * s.buffer.dtype.bytes
        for inner in stmt_bodies(s):
            deepest = max(deepest, _bytes(inner))
    return own + deepest
