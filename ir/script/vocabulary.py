"""Script's own words, beyond Python's: loops, buffers, workers, barriers, moves.

They act only while a script is being read; they write to the builder of that script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taskmap.ir.algebra.loops import OnWorker
from taskmap.ir.builder import Builder, region, region_of
from taskmap.ir.construct import as_expr, as_index, call, cast, constant_value, load
from taskmap.ir.errors import ScriptError
from taskmap.ir.functions import FUNCTIONS
from taskmap.ir.isa.entry import Instruction, Parameter, Place
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Intrinsic, Load, LoopKind, Region, Scope, TensorMap, Var
from taskmap.ir.types import TensorType, i64
from taskmap.ir.workers import BLOCKS, THREAD

if TYPE_CHECKING:
    from taskmap.ir.algebra.mapping import TaskMapping


@dataclass(slots=True)
class _Reading:
    """The builder of the script being read, and the name of the buffer or value being assigned."""

    builder: Builder
    name: str | None = None
    maps: list[TensorMap] = field(default_factory=list)


_reading: ContextVar[_Reading] = ContextVar("taskmap_script")


@contextmanager
def writing_to(builder: Builder) -> Iterator[list[TensorMap]]:
    """Inside, the words write to ``builder``; the list receives the tensor maps that they make."""
    reading = _Reading(builder)
    token = _reading.set(reading)
    try:
        yield reading.maps
    finally:
        _reading.reset(token)


@contextmanager
def named(name: str | None) -> Iterator[None]:
    """A buffer or value made inside is called ``name``."""
    reading = _current("a name")
    before, reading.name = reading.name, name
    try:
        yield
    finally:
        reading.name = before


def _current(word: str) -> _Reading:
    try:
        return _reading.get()
    except LookupError:
        raise ScriptError(
            f"{word} is used outside a script", hint="Use it in a function decorated with @kernel or @script."
        ) from None


def builder() -> Builder:
    """The builder of the script being read: a plain Python function called by the script may write statements to it."""
    return _current("builder()").builder


def dim(name: str) -> Var:
    """A size known only when the kernel runs."""
    return Var(name)


@dataclass(frozen=True, slots=True)
class Loop:
    """The range of a for statement: start, start + step, ... below stop."""

    kind: LoopKind
    start: Dim
    stop: Dim
    step: int = 1
    unroll: int = 0


def _loop(kind: LoopKind, bounds: Sequence[Dim], unroll: int = 0) -> Loop:
    if not 1 <= len(bounds) <= 3:
        raise TypeError(f"a loop has from one to three bounds (start, stop, step), not {len(bounds)}")
    for bound in bounds:
        if isinstance(bound, (float, bool)) or not isinstance(bound, (int, Expr)):
            raise TypeError(f"a loop's bound is an integer, not {bound!r}")
    start, stop = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    step = bounds[2] if len(bounds) == 3 else 1
    if not isinstance(step, int) or step == 0:
        raise TypeError("a loop's step is known when the kernel is built, and not 0")
    return Loop(kind, start, stop, step, unroll)


def serial(*bounds: Dim, unroll: int = 0) -> Loop:
    """The meaning of range in script: a loop in order. ``unroll`` is a hint to the C compiler."""
    return _loop(LoopKind.SERIAL, bounds, unroll)


def parallel(*bounds: Dim) -> Loop:
    """A loop whose iterations run on all cores, in any order. Bounds as in range."""
    return _loop(LoopKind.PARALLEL, bounds)


def vector(*bounds: Dim) -> Loop:
    """A loop whose iterations are the lanes of vectors. Bounds as in range; the number of iterations is constant."""
    return _loop(LoopKind.VECTOR, bounds)


def unroll(*bounds: Dim) -> Loop:
    """A fully unrolled loop. Bounds as in range; the number of iterations is constant."""
    return _loop(LoopKind.UNROLLED, bounds)


def _buffer(scope: Scope, type: TensorType, init: ExprLike | None, owner: TaskMapping | None, layout: object) -> Buffer:
    reading = _current(scope.value)
    if not isinstance(type, TensorType):
        raise TypeError(f"{scope.value}(...) takes a tensor type such as f32[4, 16], not {type!r}")
    b = reading.builder
    name = reading.name or scope.value
    buffer = b.allocate(name, type.dtype, type.shape, scope, strides=type.strides, owner=owner, layout=layout)
    if init is None:
        return buffer
    if owner is None:
        b.fill(buffer, init)
        return buffer
    with b.mapped([f"{name}_{d}" for d in range(buffer.rank)], owner, THREAD) as at:
        b.store(buffer, at, init)
    return buffer


def register(type: TensorType, *, init: ExprLike | None = None, owner: TaskMapping | None = None) -> Buffer:
    """A buffer in registers, of one worker or distributed over the threads by ``owner``; filled with ``init``."""
    return _buffer(Scope.REGISTER, type, init, owner, None)


def local(type: TensorType, *, init: ExprLike | None = None, layout: object | None = None) -> Buffer:
    """A buffer in memory of one worker; filled with ``init``."""
    return _buffer(Scope.LOCAL, type, init, None, layout)


def shared(type: TensorType, *, layout: object | None = None) -> Buffer:
    """A buffer that the threads of a block share."""
    return _buffer(Scope.SHARED, type, None, None, layout)


def barrier() -> None:
    """Synchronise all threads of the block; afterwards they see each other's writes."""
    _current("barrier()").builder.barrier()


def move(
    dst: Region | Buffer,
    src: Region | Buffer,
    *,
    by: OnWorker[TaskMapping] | None = None,
    asynchronous: bool = False,
    clipped: bool = False,
) -> None:
    """dst = src, element by element: a spec that lowering decomposes.

    by: on a GPU, mapping.on(thread): each worker copies its tasks, which are chunks of the region. asynchronous: with
    cp.async, if the target has it. clipped: elements beyond the end of a buffer in global memory are read as 0, and not
    written.
    """
    if by is not None and not isinstance(by, OnWorker):
        raise TypeError(f"move(by=...) takes mapping.on(worker), not {by!r}")
    mapping, worker = (None, None) if by is None else (by.mapping, as_index(by.worker))
    b = _current("move()").builder
    b.move(dst, src, mapping=mapping, worker=worker, asynchronous=asynchronous, clipped=clipped)


def matmul(c: Region | Buffer, a: Region | Buffer, b: Region | Buffer) -> None:
    """c += a @ b: a spec that lowering decomposes."""
    _current("matmul()").builder.matmul(c, a, b)


def tensor_map(buffer: Buffer, box: Sequence[int], *, swizzle: int = 0) -> TensorMap:
    """The TMA view of a parameter: boxes of ``box`` elements, with a swizzle that spans ``swizzle`` bytes."""
    reading = _current("tensor_map()")
    made = TensorMap(reading.name or "map", buffer, tuple(box), swizzle)
    reading.maps.append(made)
    return made


def instruction(name: str) -> Instruction:
    """An instruction of the table by name. Called in a script with its operands it becomes a statement, or a value if
    it has a result. Raises InputError for an unknown one."""
    return instruction_named(name)


def invoke(instruction: Instruction, operands: Sequence[Any]) -> Expr | None:
    """One instruction: a statement, or a value if it has a result."""
    if len(operands) != len(instruction.parameters):
        names = ", ".join(p.name for p in instruction.parameters)
        raise TypeError(
            f"{instruction.name} takes ({names}), {len(instruction.parameters)} operands, not {len(operands)}"
        )
    given = [_operand(p, o) for p, o in zip(instruction.parameters, operands, strict=True)]
    if instruction.result is None:
        _current(instruction.name).builder.invoke(instruction, *given)
        return None
    args = tuple(load(o.buffer, o.start) if isinstance(o, Region) else o for o in given)
    if not all(isinstance(a, Expr) for a in args):
        raise TypeError(f"{instruction.name} takes values and elements")
    by_name = {p.name: a for p, a in zip(instruction.parameters, args, strict=True)}
    result, lanes = instruction.result, by_name.get("lanes")
    like = by_name.get(result) if isinstance(result, str) else None
    dtype = like.dtype if isinstance(like, Expr) else result
    count = int(constant_value(lanes) or 1) if isinstance(lanes, Expr) else like.lanes if isinstance(like, Expr) else 1
    return Intrinsic(instruction, args, dtype, count)  # type: ignore[arg-type]  # all are expressions, of a type


def _operand(parameter: Parameter, operand: Any) -> Region | Expr | TensorMap:
    if parameter.place is Place.TENSOR_MAP:
        if isinstance(operand, TensorMap):
            return operand
    elif parameter.place in (Place.VALUE, Place.CONSTANT):
        if isinstance(operand, (Expr, int, float)):
            only = parameter.dtypes[0] if len(parameter.dtypes) == 1 else None
            value = as_expr(operand, only or i64)
            return value if only is None else cast(value, only)
    elif isinstance(operand, (Region, Buffer)):
        return region_of(operand)
    elif isinstance(operand, Load):
        return region(operand.buffer, operand.indices, [1] * len(operand.indices))
    where = "an element, a region or a buffer" if parameter.place not in (Place.VALUE, Place.CONSTANT) else "a number"
    raise TypeError(f"{parameter.name} is {where}")


@dataclass(frozen=True, slots=True)
class _Block:
    """block.x, block.y, block.z: the position of the running block in the grid."""

    x: Var = BLOCKS[0]
    y: Var = BLOCKS[1]
    z: Var = BLOCKS[2]


thread = THREAD
"""The number of the running thread in its block."""
block = _Block()
"""The position of the running block in the grid: ``block.x``, ``block.y``, ``block.z``."""


def _function(name: str) -> Callable[..., Expr]:
    def function(*args: ExprLike) -> Expr:
        return call(name, *args)

    function.__name__ = name
    function.__doc__ = f"{name} of its arguments, element-wise: taskmap.ir.functions has the table."
    return function


MATH: dict[str, Callable[..., Expr]] = {name: _function(name) for name in FUNCTIONS}
"""Every function of taskmap.ir.functions as a word: exp, tanh, rsqrt, ..."""
