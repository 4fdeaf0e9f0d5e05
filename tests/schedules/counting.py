"""The work of scheduled kernels."""

from __future__ import annotations

from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Body, For, Kernel, MatMul
from taskmap.ir.visit import stmt_bodies


def products(kernel: Kernel) -> int:
    """The multiply-adds of a scheduled kernel's tiles, all loops of constant extent."""

    def of(body: Body) -> int:
        total = 0
        for s in body:
            inner = sum(of(part) for part in stmt_bodies(s))
            if isinstance(s, For):
                extent = static_size(s.extent)
                assert extent is not None or inner == 0
                inner *= extent or 0
            if isinstance(s, MatMul):
                rows, depth = (static_size(n) or 0 for n in s.a.shape[-2:])
                inner += rows * depth * (static_size(s.b.shape[-1]) or 0)
            total += inner
        return total

    return of(kernel.body)
