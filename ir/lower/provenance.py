"""Mappings recorded in a kernel's note, the only place where readers of generated code see them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskmap.ir.lower.conditions import KernelPass
from taskmap.ir.nodes import Allocate, Kernel, MappedFor
from taskmap.ir.visit import walk_stmts


@dataclass(frozen=True, slots=True)
class NoteMappings(KernelPass):
    """Each owner of a register tile, each layout of a buffer and each other loop mapping becomes a line of the note."""

    name = "note-mappings"
    before = "mappings are those that their author wrote"
    after = "the note lists the mappings"
    why_here = "first: lowering turns mappings into arithmetic"

    def run(self, kernel: Kernel) -> Kernel:
        """The same kernel with a longer note."""
        lines: list[str] = []
        noted: set[object] = set()
        for s in walk_stmts(kernel.body):
            if isinstance(s, Allocate) and s.buffer.owner is not None:
                lines.append(f"{s.buffer!r} is held by {s.buffer.owner}")
                noted.add(s.buffer.owner)
            elif isinstance(s, Allocate) and s.buffer.layout is not None:
                lines.append(f"{s.buffer!r} lies as {s.buffer.layout}")
            elif isinstance(s, MappedFor) and s.mapping not in noted:
                names = ", ".join(v.name for v in s.vars)
                where = "" if s.source is None else f"  ({s.source})"
                lines.append(f"{names} in {s.mapping}{where}")
                noted.add(s.mapping)
        if not lines:
            return kernel
        return replace(kernel, note="\n".join([*kernel.note.splitlines(), *lines]))
