"""The instructions that a kernel names itself, checked against those of a target before anything is lowered."""

from __future__ import annotations

from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Intrinsic, Invoke, Kernel
from taskmap.ir.target import Target
from taskmap.ir.visit import stmt_exprs, walk_exprs, walk_stmts


def check_instructions(kernel: Kernel, target: Target) -> None:
    """Raises ScheduleError for an instruction that the target does not have, which a strategy or a script chose."""
    if target.kind != "cuda":
        return
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
