"""The needs of a kernel, checked against a target before anything is lowered: its instructions, clusters and memory."""

from __future__ import annotations

import math

from taskmap.ir.construct import static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.lower.flatten import span
from taskmap.ir.nodes import Allocate, Intrinsic, Invoke, Kernel, Scope
from taskmap.ir.target import Target
from taskmap.ir.visit import stmt_exprs, walk_exprs, walk_stmts

_CLUSTERS = 90
"""The compute capability from which blocks form clusters."""


def check_target(kernel: Kernel, target: Target) -> None:
    """Raises ScheduleError for what the target does not have, and a strategy or a script chose: an instruction,
    clusters, or as much shared memory."""
    if target.kind != "cuda":
        _check_instructions(kernel, target)
        return
    cluster = kernel.launch.cluster if kernel.launch else ()
    if cluster and target.capability < _CLUSTERS:
        raise ScheduleError(
            f"kernel {kernel.name!r} cannot be built for {target}", where=kernel.source,
            why=f"its blocks form clusters of {math.prod(cluster)}, which need cuda:sm_{_CLUSTERS}.",
            hint="Choose another target, or leave out to(CLUSTER).",
        )  # fmt: skip
    _check_instructions(kernel, target)
    shared = [s.buffer for s in walk_stmts(kernel.body) if isinstance(s, Allocate) and s.buffer.scope is Scope.SHARED]
    needed = sum((static_size(span(b)) or 0) * b.dtype.bytes for b in shared)
    if needed > target.shared_per_block:
        raise ScheduleError(
            f"kernel {kernel.name!r} cannot be built for {target}", where=kernel.source,
            why=f"it needs {needed} bytes of shared memory, and a block has {target.shared_per_block}.",
            hint="Choose smaller tiles, fewer stages, or another target.",
        )  # fmt: skip


def _check_instructions(kernel: Kernel, target: Target) -> None:
    for s in walk_stmts(kernel.body):
        named = [e.instruction for root in stmt_exprs(s) for e in walk_exprs(root) if isinstance(e, Intrinsic)]
        named += [s.instruction] if isinstance(s, Invoke) else []
        lacking = next((i for i in named if not i.targets(target)), None)
        if lacking is not None:
            raise ScheduleError(
                f"kernel {kernel.name!r} cannot be built for {target}",
                where=getattr(s, "source", None) or kernel.source,
                why=f"it uses {lacking.name}, which needs {lacking.targets}.",
                hint="Choose another target, or a strategy without this instruction"
                f"{': leave out asynchronous()' if lacking.name.startswith('cp_async') else ''}.",
            )
