"""Invoked instructions: the operands that each thread passes.

A region in memory becomes the address that this thread provides; for ldmatrix, that of one row of one matrix. A region
of distributed registers is checked: its elements must be held the way the instruction expects. Slots replace it later,
together with all other uses of such registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.algebra.fragments import Fragment, fragment, is_held_as, matrices
from taskmap.ir.algebra.layout import Layout
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.alignment import Multiples
from taskmap.ir.construct import constant_value, index, select, static_size
from taskmap.ir.errors import LoweringError
from taskmap.ir.isa.entry import Instruction, Parameter, Place
from taskmap.ir.isa.specs import MatrixMoveSpec
from taskmap.ir.lower.conditions import NO_SPECS, KernelPass
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.nodes import Body, Dim, Expr, For, If, Invoke, Kernel, Let, MappedFor, Region, Stmt, TensorMap, Var
from taskmap.ir.printer import print_expr
from taskmap.ir.visit import stmt_bodies, substitute, walk_exprs, with_bodies
from taskmap.ir.workers import THREAD, worker_extents

_WARP = 32
_MEMORY = (Place.SHARED, Place.GLOBAL, Place.MEMORY)


@dataclass(frozen=True, slots=True)
class LowerInvokes(KernelPass):
    """The memory operands of invoked instructions become this thread's own addresses."""

    name = "lower-invokes"
    before = "an operand in memory is the whole tile of all workers of the instruction"
    after = "the operand is the memory behind the address that this worker passes"
    why_here = "before registers are distributed: the owner of a tile determines where its parts are in memory"
    requires = (NO_SPECS,)

    def run(self, kernel: Kernel) -> Kernel:
        """The same kernel. Raises LoweringError for operands that an instruction cannot take."""
        lane = Var("lane")
        workers = (v for v, n in worker_extents(kernel).items() if (static_size(n) or 0) > 1)
        body = _body(kernel.body, _Known(Multiples(), lane, free=frozenset(workers)))
        if body is kernel.body:
            return kernel
        if any(e is lane for e in walk_exprs(body)):
            body = (Let(lane, THREAD % _WARP, None), *body)
        return replace(kernel, body=body)


@dataclass(frozen=True, slots=True)
class _Known:
    """Facts known at a statement. multiples: divisors of the variables in scope. values: the values that Lets name.
    free: variables that take every value of their range there, including 1. lane: this thread's number in its warp."""

    multiples: Multiples
    lane: Var
    values: dict[Var, Expr] = field(default_factory=dict)
    free: frozenset[Var] = frozenset()

    def assume(self, cond: Expr) -> _Known:
        return replace(self, multiples=self.multiples.assume(cond), free=frozenset())

    def inside(self, s: Stmt) -> _Known:
        """The facts inside a loop."""
        new = [s.var] if isinstance(s, For) and (constant_value(s.extent) or 0) > 1 else []
        if isinstance(s, MappedFor):
            extents = dict(zip(s.vars, s.mapping.task_shape, strict=True))
            new = [v for v, n in extents.items() if n > 1]
            self.values.update({v: index(0) for v, n in extents.items() if n == 1})
        return replace(self, free=self.free.union(new))

    def is_off(self, e: Expr, alignment: int) -> bool:
        """True if ``e`` certainly takes a value that is not a multiple of ``alignment``."""
        if self.multiples.of(e) % alignment == 0:
            return False
        p = poly.to_poly(substitute(e, self.values))
        linear = all(not m or (len(m) == 1 and m[0] in self.free) for m in p)
        return linear and any(c % alignment for c in p.values())


def _body(body: Body, known: _Known) -> Body:
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Invoke):
            out.append(_invoke(s, known))
            continue
        if isinstance(s, Let) and s.value.dtype.is_int and s.value.lanes == 1:
            known.multiples.define(s.var, s.value)
            known.values[s.var] = substitute(s.value, known.values)
        inner = stmt_bodies(s)
        if isinstance(s, If):
            out.append(
                with_bodies(s, [_body(s.then, known.assume(s.cond)), _body(s.orelse, replace(known, free=frozenset()))])
            )
        else:
            out.append(with_bodies(s, [_body(b, known.inside(s)) for b in inner]) if inner else s)
    same = len(out) == len(body) and all(a is b for a, b in zip(out, body, strict=True))
    return body if same else tuple(out)


def _invoke(s: Invoke, known: _Known) -> Stmt:
    instruction = s.instruction
    if len(s.operands) != len(instruction.parameters):
        raise LoweringError(
            f"{instruction.name} takes {len(instruction.parameters)} operands, not {len(s.operands)}", where=s.source
        )
    tiles = _tiles(s, known.multiples)
    operands: list[Region | Expr | TensorMap] = []
    for parameter, operand in zip(instruction.parameters, s.operands, strict=True):
        if isinstance(operand, Region) and parameter.place in _MEMORY:
            operands.append(_in_memory(s, parameter, operand, tiles, known))
        else:
            operands.append(operand)
    return replace(s, operands=tuple(operands))


def _refused(s: Invoke, why: str, hint: str | None = None) -> LoweringError:
    return LoweringError(f"{s.instruction.name} cannot take these operands", where=s.source, why=why, hint=hint)


def _constant_shape(s: Invoke, r: Region) -> tuple[int, ...]:
    shape = tuple(static_size(n) for n in r.shape)
    if None in shape:
        raise _refused(s, f"the region of {r.buffer!r} has a size that is not known when compiling.")
    return shape  # type: ignore[return-value]  # no None is in it


def _tiles(s: Invoke, multiples: Multiples) -> list[tuple[Region, Fragment]]:
    """The placement of the distributed register operands, each checked against the instruction's expectation."""
    tiles = []
    for parameter, operand in zip(s.instruction.parameters, s.operands, strict=True):
        if not isinstance(operand, Region) or parameter.place is not Place.REGISTERS:
            continue
        shape = _constant_shape(s, operand)
        owner = operand.buffer.owner
        if owner is None:
            count = 1
            for n in shape:
                count *= n
            if parameter.count and count != parameter.count:
                raise _refused(s, f"{parameter.name} is {parameter.count} registers of each thread, not {count}.")
            continue
        held = fragment(owner, shape, s.instruction.workers)
        if isinstance(held, str):
            raise _refused(s, f"{operand.buffer!r} is held by {owner}: {held}")
        expected = parameter.owner
        matches = expected is None or (
            matrices(held, expected, s.instruction.spec.count) is not None
            if isinstance(s.instruction.spec, MatrixMoveSpec)
            else is_held_as(held, shape, expected)
        )
        if not matches:
            raise _refused(
                s,
                f"{list(shape)} of {operand.buffer!r} are held by {owner}, but {parameter.name} by {expected}.",
                "Compose the buffer's owner with the instruction's.",
            )
        _check_start(s, operand, shape, multiples)
        tiles.append((operand, held))
    return tiles


def _check_start(s: Invoke, r: Region, shape: Sequence[int], multiples: Multiples) -> None:
    """Require that a tile begins at a multiple of its shape; its slots follow from that."""
    for start, n in zip(r.start, shape, strict=True):
        known = constant_value(start)
        wrong = int(known) % n if known is not None else multiples.of(start) % (n & -n)
        if wrong:
            raise _refused(
                s, f"the region of {r.buffer!r} begins at {print_expr(start)}, which may not be a multiple of {n}."
            )


def _in_memory(
    s: Invoke, parameter: Parameter, r: Region, tiles: list[tuple[Region, Fragment]], known: _Known
) -> Region:
    """The region behind this thread's address."""
    instruction, lane = s.instruction, known.lane
    size = r.buffer.dtype.bytes
    if parameter.owner is None:
        if parameter.bytes:
            _check_chunk(s, r, _last_long(r), parameter.bytes // size, known)
        return r
    if not isinstance(instruction.spec, MatrixMoveSpec):
        raise _refused(s, "the way its workers share the address of a tile is not known.")
    columns = instruction.spec.columns
    if not tiles:  # each thread's registers are its own array, and so is the row that it points to
        _check_chunk(s, r, _last_long(r), columns, known)
        return r
    (held_region, held), *_ = tiles
    found = matrices(held, _register_owner(instruction), instruction.spec.count)
    shape = _constant_shape(s, r)
    if found is None or tuple(n for n in shape if n != 1) != tuple(
        n for n in _constant_shape(s, held_region) if n != 1
    ):
        raise _refused(s, f"a region of {list(shape)} in memory does not match one of {list(held_region.shape)}.")
    dims = _matching(shape, _constant_shape(s, held_region))
    matrix, row = lane // 8, lane % 8
    if instruction.spec.count == 1:
        matrix = index(0)
    elif instruction.spec.count == 2:
        matrix = matrix % 2
    start = list(r.start)
    for d_held, d in dims.items():
        offsets = [o[d_held] for o in found.origins]
        start[d] = start[d] + _choice(matrix, offsets)
    start[dims[found.down]] = start[dims[found.down]] + row
    along = dims[found.along]
    extents: list[Dim] = [1] * len(shape)
    extents[along] = columns
    part = Region(r.buffer, tuple(start), tuple(extents))
    _check_chunk(s, part, along, columns, known)
    return part


def _register_owner(instruction: Instruction) -> TaskMapping:
    owner = next(p.owner for p in instruction.parameters if p.place is Place.REGISTERS)
    assert owner is not None
    return owner


def _matching(shape: Sequence[int], held: Sequence[int]) -> dict[int, int]:
    """The dimension of the region in memory for each one of the region in registers, ignoring those of one element."""
    here = [d for d, n in enumerate(shape) if n != 1]
    there = [d for d, n in enumerate(held) if n != 1]
    return dict(zip(there, here, strict=True))


def _choice(which: Expr, offsets: Sequence[int]) -> Expr:
    """offsets[which], as arithmetic if the bits of the offsets are linear in those of ``which``."""
    if len(set(offsets)) == 1:
        return index(offsets[0])
    total: Expr = index(offsets[0])
    bits = [offsets[1 << b] - offsets[0] for b in range((len(offsets) - 1).bit_length())]
    linear = all(
        offset - offsets[0] == sum(step for b, step in enumerate(bits) if i >> b & 1)
        for i, offset in enumerate(offsets)
    )
    if linear:
        for b, step in enumerate(bits):
            if step:
                total = total + which // (1 << b) % 2 * step
        return total
    for i, offset in enumerate(offsets[1:], 1):
        total = select(which >= i, index(offset), total)
    return total


def _last_long(r: Region) -> int:
    long = [d for d, n in enumerate(r.shape) if static_size(n) != 1]
    return long[-1] if long else len(r.shape) - 1


def _check_chunk(s: Invoke, r: Region, d: int, count: int, known: _Known) -> None:
    """Check that ``count`` neighbours along dimension d from the region's start are contiguous and aligned."""
    b = r.buffer
    # The instruction's alignment is that of its largest operand; the mbarrier of a tensor copy needs only 8 bytes.
    alignment = max(1, min(s.instruction.alignment // b.dtype.bytes, count))
    if isinstance(b.layout, Layout):
        why = _layout_flaw(b.layout, d, count, alignment)
        if why:
            raise _refused(s, f"{count} neighbours of {b!r} {why}", "A swizzle keeps 2**base neighbours together.")
        step = max(count, alignment)
        if b.layout.swizzle is not None and known.is_off(r.start[d], step):
            raise _refused(s, f"the region of {b!r} begins at {print_expr(r.start[d])}, not at a multiple of {step}.")
        return
    if count > 1 and static_size(strides_of(b)[d]) != 1:
        raise _refused(s, f"{count} neighbours along dimension {d} of {b!r} are not neighbours in memory.")
    total: Expr = index(b.offset)
    for start, stride in zip(r.start, strides_of(b), strict=True):
        total = total + start * stride
    if known.is_off(total, alignment):
        raise _refused(
            s,
            f"its address in {b!r} is not a multiple of {alignment * b.dtype.bytes} bytes.",
            "Pad the rows, or choose another instruction.",
        )


def torn(r: Region, d: int, count: int, alignment: int = 1) -> str:
    """The reason why ``count`` neighbours along dimension d of a region are not contiguous; "" if they are."""
    b = r.buffer
    if isinstance(b.layout, Layout):
        return _layout_flaw(b.layout, d, count, alignment)
    if count > 1 and static_size(strides_of(b)[d]) != 1:
        return f"dimension {d} of {b!r} is strided."
    others = (n for k, n in enumerate(strides_of(b)) if k != d)
    if any((known := static_size(n)) is not None and known % alignment for n in others):
        return f"rows of {b!r} are not aligned to {alignment} elements."
    return ""


@lru_cache(maxsize=256)
def _layout_flaw(layout: Layout, d: int, count: int, alignment: int) -> str:
    """The reason why aligned runs of ``count`` neighbours along d are not runs of aligned addresses, or ""."""
    shape = [int(n) for n in layout.shape]
    if shape[d] % count:
        return f"do not divide the {shape[d]} of dimension {d} evenly."
    firsts = np.ogrid[tuple(slice(0, n, count if k == d else 1) for k, n in enumerate(shape))]
    runs = tuple(f.size for f in firsts)

    def addresses(k: int) -> NDArray[np.int64]:
        """The addresses of the k-th element of every run; layouts compute on arrays as on numbers."""
        found = layout(*firsts[:d], firsts[d] + k, *firsts[d + 1 :])
        return np.broadcast_to(np.asarray(found, np.int64), runs)

    first = addresses(0)
    for run in np.argwhere(first % alignment):
        lies = int(first[tuple(run)])
        return f"at {_start_of(run, d, count)} lie at {lies}, which is not a multiple of {alignment} elements."
    for k in range(1, count):
        for run in np.argwhere(addresses(k) != first + k):
            return f"at {_start_of(run, d, count)} are torn apart by the layout {layout}."
    return ""


def _start_of(run: NDArray[np.int64], d: int, count: int) -> tuple[int, ...]:
    return tuple(int(i) * count if k == d else int(i) for k, i in enumerate(run))
