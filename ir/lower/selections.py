"""The choices of instructions that lowering makes for a kernel, as text for reports."""

from __future__ import annotations

from collections.abc import Iterator

from taskmap.ir import nodes as ir
from taskmap.ir.construct import static_size
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.table import table_of
from taskmap.ir.lower.vector_widths import is_addressable
from taskmap.ir.select.microkernels import choose_for_thread, statement_of
from taskmap.ir.select.rows import product_row, row_choice
from taskmap.ir.select.tiles import Tile, choose_tiles
from taskmap.ir.target import Target
from taskmap.ir.visit import stmt_exprs, walk_exprs, walk_stmts


def selections(kernel: ir.Kernel, target: Target, table: tuple[Instruction, ...] | None = None) -> tuple[str, ...]:
    """A line for each kind of product that a scheduled kernel adds to registers or tiles: its types and extents, the
    instructions found, the rules that found them, the nodes and milliseconds of the search, the share of products that
    is needed, and the second choice."""
    table = table_of(target) if table is None else table
    products = (
        s for s in walk_stmts(kernel.body) if isinstance(s, ir.MatMul) and s.c.buffer.scope is ir.Scope.REGISTER
    )
    lines = dict.fromkeys(line for s in products for line in _line(s, target, table))
    return (*lines, *(_chosen(entry, target, table) for entry in _by_templates(kernel)))


def _by_templates(kernel: ir.Kernel) -> dict[Instruction, None]:
    """The instructions that the kernel's template asked the selector for."""
    found: dict[Instruction, None] = {}
    for s in walk_stmts(kernel.body):
        if isinstance(s, ir.Invoke):
            found[s.instruction] = None
        found |= {e.instruction: None for r in stmt_exprs(s) for e in walk_exprs(r) if isinstance(e, ir.Intrinsic)}
    return {entry: None for entry in found if statement_of(entry) is not None}


def _chosen(entry: Instruction, target: Target, table: tuple[Instruction, ...]) -> str:
    statement = statement_of(entry)
    assert statement is not None
    c, a, b = statement
    choice = choose_for_thread(statement, target, table)
    then = choice.second
    sizes = f"{c.shape[0]}×{c.shape[1]}×{a.shape[1]}, {a.dtype} × {b.dtype} → {c.dtype}"
    return f"{sizes}: {choice}" + (f"; second: {then.name}" if then else "")


def _line(s: ir.MatMul, target: Target, table: tuple[Instruction, ...]) -> Iterator[str]:
    c, a, b = s.c.buffer, s.a.buffer, s.b.buffer
    m, n, k = (static_size(size) for size in (*s.c.shape[-2:], s.a.shape[-1]))
    if m is None or n is None:
        return
    types = f"{a.dtype} × {b.dtype} → {c.dtype}"
    if target.kind == "cpu":
        if is_addressable(c) and is_addressable(b):
            choice = row_choice(product_row(n, a.dtype, b.dtype, c.dtype), target, table)
            second = choice.second()
            other = f"; second: {second.names}, {second.cost.issued} issued" if second else ""
            yield f"a row of {n} columns, {types}: {choice}{other}"
    elif c.owner is not None and k is not None:
        tiles = (Tile(repr(x), x.dtype, size, x.owner) for x, size in ((c, (m, n)), (a, (m, k)), (b, (k, n))))
        found = choose_tiles(*tiles, target, table)
        name = found.by.name if found.by else f"no instruction ({' '.join(found.reasons) or 'sizes do not fit'})"
        then = found.second
        yield f"{m}×{n}×{k}, {types}: {name}" + (f"; second: {then.name}" if then else "")
