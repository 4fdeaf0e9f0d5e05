"""Copies between memory and the opaque fragments of a warp (WMMA), which only their own instructions touch."""

from __future__ import annotations

from collections.abc import Iterable

from taskmap.ir import nodes as ir
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.algebra.quotient import quotient
from taskmap.ir.analysis.alignment import Multiples
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import as_expr, index, static_size
from taskmap.ir.errors import LoweringError
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import FragmentMoveSpec
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.target import Target
from taskmap.ir.types import i32
from taskmap.ir.workers import THREAD

_WARP = 32
_PITCH, _START = 16, 32
"""The alignment of rows and of a matrix, in bytes (PTX ISA, "wmma.load")."""


def matrix_in_memory(r: ir.Region) -> tuple[int, int] | None:
    """The layout of a matrix in the last two dimensions of a region, 0 by rows or 1 by columns, and the distance of its
    lines in elements; None if a fragment cannot be loaded from there."""
    buffer, size = r.buffer, r.buffer.dtype.bytes
    if buffer.layout is not None or len(r.shape) < 2:
        return None
    start: ir.Expr = index(buffer.offset)
    for first, stride in zip(r.start, strides_of(buffer), strict=True):
        start = start + first * stride
    if Multiples().of(start) * size % _START:
        return None
    down, across = (static_size(n) for n in strides_of(buffer)[-2:])
    for layout, (inner, pitch) in enumerate(((across, down), (down, across))):
        if inner == 1 and pitch is not None and pitch * size % _PITCH == 0:
            return layout, pitch
    return None


def opaque_move(
    s: ir.Move, held: ir.Region, owner: TaskMapping, table: Iterable[Instruction], target: Target, threads: int
) -> ir.Body:
    """The loads, or stores, of all fragments of a tile. Raises LoweringError where none applies."""
    store = held is s.src
    other = s.dst if store else s.src
    for i in table:
        spec = i.spec
        if not isinstance(spec, FragmentMoveSpec) or (spec.dtype, spec.store) != (held.buffer.dtype, store):
            continue
        tiles = quotient(owner, i.owner_c) if i.owner_c is not None and len(owner.task_shape) == 2 else None
        if tiles is None or not i.targets(target):
            continue
        warp = THREAD // _WARP
        warp = warp if tiles.num_workers * _WARP >= threads else warp % tiles.num_workers
        return _each(s, i, tiles, warp, (held, other))
    raise LoweringError(
        f"no instruction of {target} moves {other.buffer!r} and {held.buffer!r}",
        where=s.source,
        why=f"the fragments are held as {owner}.",
        hint="Fragments move to and from memory of their own type.",
    )


def _each(
    s: ir.Move, i: Instruction, tiles: TaskMapping, warp: ir.Expr, regions: tuple[ir.Region, ir.Region]
) -> ir.Body:
    b, spec = Builder(s.source), i.spec
    held, other = regions
    assert isinstance(spec, FragmentMoveSpec)
    shape = spec.shape
    lead = len(other.shape) - 2
    with b.mapped(("row", "column"), tiles, warp) as at:
        offsets = [n * size for n, size in zip(at, shape, strict=True)]
        start = [x + o for x, o in zip(other.start[lead:], offsets, strict=True)]
        memory = ir.Region(other.buffer, (*other.start[:lead], *start), (*[1] * lead, *shape))
        found = matrix_in_memory(memory)
        if found is None:
            raise LoweringError(
                f"{i.name} cannot reach {other.buffer!r}",
                where=s.source,
                why="the lines of its matrices are not 16 bytes apart, or the matrices not aligned to 32 bytes.",
                hint="Move the operand to shared memory first, and pad its lines.",
            )
        mine = region(held.buffer, [x + o for x, o in zip(held.start, offsets, strict=True)], shape)
        b.invoke(i, index(found[0]), *((memory, mine) if spec.store else (mine, memory)), as_expr(found[1], i32))
    return b.body()
