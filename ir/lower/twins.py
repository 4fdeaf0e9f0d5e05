"""Micro-kernels of users in tensor IR: the statements of their twins in place of their calls."""

from __future__ import annotations

from dataclasses import replace

from taskmap.ir.isa.specs import MicroKernelSpec
from taskmap.ir.nodes import Body, Invoke, Kernel, Stmt
from taskmap.ir.visit import fresh, map_body, walk_stmts


def inlined(kernel: Kernel, *, texts: bool = False) -> Kernel:
    """The kernel with the statements of its micro-kernels: of script functions, and with ``texts`` the twins of those
    that are C, CUDA C++ or PTX, which only their own processor executes."""

    def stmt(s: Stmt) -> Body | None:
        if not isinstance(s, Invoke) or s.instruction.twin is None or (s.instruction.written and not texts):
            return None
        made: Body = s.instruction.twin(s.operands, threads)
        return fresh(made)

    if not any(isinstance(s, Invoke) and s.instruction.twin is not None for s in walk_stmts(kernel.body)):
        return kernel
    threads = 0 if kernel.launch is None else kernel.launch.threads
    return replace(kernel, body=map_body(kernel.body, stmt))


def uncounted(kernel: Kernel) -> tuple[str, ...]:
    """The names of micro-kernels whose cost is unknown here: in their place, their spec is executed."""
    invoked = (s.instruction.spec for s in walk_stmts(kernel.body) if isinstance(s, Invoke))
    unknown = (spec.name for spec in invoked if isinstance(spec, MicroKernelSpec) and not spec.counted)
    return tuple(dict.fromkeys(unknown))
