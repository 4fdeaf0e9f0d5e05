"""The semantics of an instruction, from its spec and owners alone: the reference that all implementations match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.errors import InputError
from taskmap.ir.interp.approximations import approximated
from taskmap.ir.interp.definitions import convert
from taskmap.ir.interp.dot_products import dot_bf16, tile_bf16
from taskmap.ir.interp.warp_instructions import atomic, reduce, shuffle, vote
from taskmap.ir.isa import specs
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.tma_box import load_box, store_box
from taskmap.ir.types import DType

Array = NDArray[Any]
S = TypeVar("S")


def distribute(tile: Array, owner: TaskMapping) -> Array:
    """The registers of all workers, an array (workers, slots), that hold ``tile`` as ``owner`` says."""
    held = [owner(worker) for worker in range(owner.num_workers)]
    return np.array([[tile[task] for task in tasks] for tasks in held], tile.dtype)


def collect(registers: Array, owner: TaskMapping) -> Array:
    """The tile held by registers (workers, slots). Raises InputError if workers that share an element disagree."""
    tile = np.zeros(owner.task_shape, registers.dtype)
    seen: set[tuple[int, ...]] = set()
    for worker in range(owner.num_workers):
        for task, value in zip(owner(worker), registers[worker], strict=True):
            if task in seen and tile[task] != value and not (np.isnan(tile[task]) and np.isnan(value)):
                raise InputError(f"worker {worker} holds {value} as element {task}, another worker {tile[task]}")
            tile[task] = value
            seen.add(task)
    return tile


def multiply(c: Array, a: Array, b: Array, dtype: DType) -> Array:
    """c + a @ b in ``dtype``, that of c, one k after another, with each product and each sum rounded.

    bf16 values are stored as float32.
    """
    total = c
    for k in range(a.shape[-1]):
        term = convert(a[..., :, k, None], dtype) * convert(b[..., k, None, :], dtype)
        total = convert(total + convert(term, dtype).reshape(c.shape), dtype)
    return total


def execute(instruction: Instruction, *operands: Any) -> Any:
    """The result of one instruction in numpy; bf16 and the floats of tensor instructions are float32.

    Registers of a tile are arrays (workers, slots); operands without an owner are whole matrices. By spec:

        MatMul, LaneDot   (c, a, b) -> the new registers of c
        Move, CachedMove   (elements) -> the same
        MatrixMove    load: (rows of memory) -> registers; store: (registers) -> rows
        FragmentMove  the same, for a matrix
        TileMove      (elements) -> the same
        AsyncCopy     (bytes) or (bytes, number of bytes copied) -> the bytes written
        TensorMove    load: (tensor, box, coordinates, bytes of an element, swizzle) -> shared memory;
                      others: (tensor, box, coordinates, shared memory, bytes, swizzle) -> tensor
        Shuffle       (width, values, others) -> values       Vote (votes) -> votes       WarpReduce (values) -> values
        Atomic        (memory, places, values, ...) -> (memory, previous values)
        Convert       (values) -> values

    Raises InputError for an instruction that neither computes nor moves data, such as a barrier.
    """
    meaning = _MEANINGS.get(type(instruction.spec))
    if meaning is None:
        raise InputError(f"{instruction} does not compute or move anything")
    with np.errstate(all="ignore"):
        return meaning(instruction, *operands)


def _matmul(instruction: Instruction, c: Array, a: Array, b: Array) -> Array:
    owners = (instruction.owner_c, instruction.owner_a, instruction.owner_b)
    tiles = [x if owner is None else collect(x, owner) for x, owner in zip((c, a, b), owners, strict=True)]
    result = product_of(instruction, tiles[0], tiles[1], tiles[2])
    return result if instruction.owner_c is None else distribute(result, instruction.owner_c)


def _lane_dot(instruction: Instruction, c: Array, a: Array, b: Array) -> Array:
    spec = cast_spec(instruction, specs.LaneDotSpec)
    shape = (*c.shape[:-1], spec.n, spec.k)
    return dot_bf16(c, a.reshape(shape), b.reshape(shape))


def product_of(instruction: Instruction, c: Array, a: Array, b: Array) -> Array:
    """c + a @ b of whole matrices, rounded as the instruction rounds."""
    if instruction.family == "vdpbf16ps":
        return dot_bf16(c, a[:, None, :], b.T)
    if instruction.family == "tdpbf16ps":
        return tile_bf16(c, a, b)
    return multiply(c, a, b, cast_spec(instruction, specs.MatMulSpec).c)


def _held(instruction: Instruction, moved: Array) -> Array:
    """A tile from its registers, or the registers from the tile."""
    owner = instruction.owner_c
    if owner is None:
        return moved
    store = isinstance(instruction.spec, specs.MatrixMoveSpec | specs.FragmentMoveSpec) and instruction.spec.store
    return collect(moved, owner) if store else distribute(moved, owner)


def _same(instruction: Instruction, moved: Array) -> Array:
    return moved


def _async_copy(instruction: Instruction, source: Array, copied: int | None = None) -> Array:
    spec = cast_spec(instruction, specs.AsyncCopySpec)
    count = spec.bytes if copied is None else copied
    return np.concatenate([source[:count], np.zeros(spec.bytes - count, source.dtype)])


def _tensor_move(instruction: Instruction, *operands: Any) -> Array:
    spec = cast_spec(instruction, specs.TensorMoveSpec)
    return load_box(*operands) if spec.kind == "load" else store_box(*operands, add=spec.kind == "add")


def _convert(instruction: Instruction, x: Array) -> Array:
    return convert(x, cast_spec(instruction, specs.ConvertSpec).to)


def cast_spec(instruction: Instruction, kind: type[S]) -> S:
    """The instruction's spec, of this kind. Raises InputError for another kind."""
    if not isinstance(instruction.spec, kind):
        raise InputError(f"{instruction} is not a {kind.__name__}")
    return instruction.spec


_MEANINGS: dict[type[specs.Spec], Callable[..., Any]] = {
    specs.MatMulSpec: _matmul,
    specs.LaneDotSpec: _lane_dot,
    specs.MoveSpec: _same,
    specs.CachedMoveSpec: _same,
    specs.MatrixMoveSpec: _held,
    specs.FragmentMoveSpec: _held,
    specs.TileMoveSpec: _same,
    specs.AsyncCopySpec: _async_copy,
    specs.TensorMoveSpec: _tensor_move,
    specs.ShuffleSpec: lambda i, *operands: shuffle(i.spec, *operands),
    specs.VoteSpec: lambda i, *operands: vote(i.spec, *operands),
    specs.WarpReduceSpec: lambda i, *operands: reduce(i.spec, *operands),
    specs.AtomicSpec: lambda i, *operands: atomic(i.spec, *operands),
    specs.ConvertSpec: _convert,
    specs.ApproximationSpec: lambda i, x: approximated(i.spec, x),
}
