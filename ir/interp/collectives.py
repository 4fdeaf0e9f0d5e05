"""Instructions that several threads execute together: tensor core products, moves of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.algebra.fragments import fragment, matrices
from taskmap.ir.errors import VerifyError
from taskmap.ir.interp.definitions import NUMPY_TYPES
from taskmap.ir.interp.instructions import collect, distribute, multiply, product_of
from taskmap.ir.interp.operands import InstructionCall, InstructionOperand, unknown
from taskmap.ir.isa.entry import Place
from taskmap.ir.isa.specs import BarrierSpec, FragmentMoveSpec, MatMulSpec, MatrixMoveSpec
from taskmap.ir.nodes import Region

Array = NDArray[Any]
Coords = tuple[int, ...]


def product(calls: Sequence[InstructionCall]) -> None:
    instruction = calls[0].instruction
    spec = instruction.spec
    assert isinstance(spec, MatMulSpec)
    if instruction.completes == "wgmma":
        _warpgroup(calls, spec)
        return
    held = [call.registers() for call in calls]
    owners = (instruction.owner_c, instruction.owner_a, instruction.owner_b)
    if None in owners or len(held[0]) != 3:
        raise unknown(instruction, calls[0].stmt.source)
    c, a, b = (
        collect(np.array([lane[i].load() for lane in held]), owner)
        for i, owner in enumerate(owners)
        if owner is not None
    )
    assert instruction.owner_c is not None
    result = distribute(product_of(instruction, c, a, b), instruction.owner_c)
    for lane, values in zip(held, result, strict=True):
        lane[0].store(values.astype(lane[0].memory.storage.data.dtype, copy=False))


def _warpgroup(calls: Sequence[InstructionCall], spec: MatMulSpec) -> None:
    """wgmma: b is in shared memory, and so is a unless it is in registers."""
    call, instruction = calls[0], calls[0].instruction
    held = [c.registers() for c in calls]
    constants = {
        p.name: g for p, g in zip(instruction.parameters, call.given, strict=True) if p.place is Place.CONSTANT
    }

    def described(name: str, rows: int) -> Array:
        numbers = {int(c.named(name)) for c in calls}
        if len(numbers) != 1 and len({call.frame.block.descriptors[n].descriptor for n in numbers}) != 1:
            raise VerifyError(f"the threads give {instruction.name} different operands {name}")
        operand = call.frame.block.descriptors[numbers.pop()]
        turned = bool(constants.get(f"transpose_{name}", 0))
        matrix: Array = operand.matrix(rows, spec.k, call.frame.shared_access, transposed=turned)
        return matrix

    b = described("b", spec.n).T
    owner_c, owner_a = instruction.owner_c, instruction.owner_a
    assert owner_c is not None
    a = collect(np.array([lane[1].load() for lane in held]), owner_a) if owner_a else described("a", spec.m)
    c = np.zeros((spec.m, spec.n), NUMPY_TYPES[spec.c.name])
    if int(call.named("accumulate")):
        c = collect(np.array([lane[0].load() for lane in held]), owner_c)
    for lane, values in zip(held, distribute(multiply(c, a, b, spec.c), owner_c), strict=True):
        lane[0].store(values)


def _matrix(calls: Sequence[InstructionCall]) -> None:
    """ldmatrix and stmatrix: rows of 8×8 matrices, and the registers that hold them."""
    instruction = calls[0].instruction
    spec = instruction.spec
    assert isinstance(spec, MatrixMoveSpec)
    (parameter, region, (_, extents)) = calls[0].of_place(Place.REGISTERS)[0]
    owner = parameter.owner
    assert owner is not None
    held = [call.registers()[0] for call in calls]
    row = calls[0].of_place(Place.SHARED)[0][2][1]
    if math.prod(row) == spec.columns:
        rows = [call.memory() for call in calls[: 8 * spec.count]]
    else:
        rows = _rows(calls, spec, region, extents)
    if spec.store:
        stack = collect(np.array([lane.load() for lane in held]), owner)
        for to, values in zip(rows, stack, strict=True):
            to.store(values)
        return
    stack = np.array([source.load() for source in rows])
    for lane, values in zip(held, distribute(stack, owner), strict=True):
        lane.store(values)


def _rows(
    calls: Sequence[InstructionCall], spec: MatrixMoveSpec, region: Region, extents: Coords
) -> list[InstructionOperand]:
    """The rows of a tile's matrices in memory, each accessed by the lane that passes its address."""
    call = calls[0]
    tile = (
        fragment(region.buffer.owner, extents, call.instruction.workers) if region.buffer.owner else "it has no owner"
    )
    owner = next(p.owner for p in call.instruction.parameters if p.place is Place.REGISTERS)
    assert owner is not None
    found = None if isinstance(tile, str) else matrices(tile, owner, spec.count)
    _, memory, (start, shape) = call.of_place(Place.SHARED)[0]
    here = [d for d, n in enumerate(shape) if n != 1]
    there = [d for d, n in enumerate(extents) if n != 1]
    if found is None or [shape[d] for d in here] != [extents[d] for d in there]:
        raise VerifyError(f"{call.instruction.name} does not find its matrices in {region.buffer!r}")
    dims = dict(zip(there, here, strict=True))
    rows = []
    for i, origin in enumerate(found.origins):
        for r in range(8):
            at = [np.full(spec.columns, s) for s in start]
            for d, o in enumerate(origin):
                if d in dims:
                    at[dims[d]] = at[dims[d]] + o
            at[dims[found.down]] = at[dims[found.down]] + r
            at[dims[found.along]] = at[dims[found.along]] + np.arange(spec.columns)
            rows.append(calls[8 * i + r].operand(memory.buffer, tuple(at)))
    return rows


def _opaque(calls: Sequence[InstructionCall]) -> None:
    """wmma.load and wmma.store: a matrix with rows a stride apart, from the address that all lanes pass."""
    call = calls[0]
    spec = call.instruction.spec
    assert isinstance(spec, FragmentMoveSpec)
    owner = call.instruction.owner_c
    assert owner is not None
    held = [c.registers()[0] for c in calls]
    stride, by_columns = int(call.named("stride")), bool(call.named("layout"))
    _, region, (start, _) = call.of_place(Place.MEMORY)[0]
    memory = call.frame.buffer(region.buffer)
    rows, columns = (g.reshape(-1) for g in np.meshgrid(*map(np.arange, spec.shape), indexing="ij"))
    at = memory.address(start) + (columns * stride + rows if by_columns else rows * stride + columns)
    data = memory.storage
    if np.any(at >= data.data.size):
        raise VerifyError(f"{call.instruction.name} accesses elements beyond the end of {region.buffer!r}")
    if spec.store:
        tile = collect(np.array([lane.load() for lane in held]), owner)
        data.data[at] = tile.reshape(-1)
        if data.written is not None:
            data.written[at] = True
        return
    if data.written is not None and not data.written[at].all():
        raise VerifyError(f"{call.instruction.name} reads a part of {region.buffer!r} that has not been written")
    for lane, values in zip(held, distribute(data.data[at].reshape(spec.shape), owner), strict=True):
        lane.store(values)


def _synchronised(calls: Sequence[InstructionCall]) -> None:
    """A barrier of the group: synchronising was its whole effect."""


TOGETHER: dict[type, Callable[[Sequence[InstructionCall]], None]] = {
    MatMulSpec: product,
    MatrixMoveSpec: _matrix,
    FragmentMoveSpec: _opaque,
    BarrierSpec: _synchronised,
}
"""The effect of each kind of spec."""
