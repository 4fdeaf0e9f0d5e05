"""The words of script that are not Python's: loops, buffers, workers, barriers, moves.

They do something only while a script is being read; the builder that they write to is that of the script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskmap.ir.builder import Builder
from taskmap.ir.construct import call
from taskmap.ir.errors import ScriptError
from taskmap.ir.functions import FUNCTIONS
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, LoopKind, Region, Scope, Var
from taskmap.ir.types import TensorType
from taskmap.ir.workers import BLOCKS, THREAD

if TYPE_CHECKING:
    from taskmap.ir.mapping import TaskMapping


@dataclass(slots=True)
class _Reading:
    """The builder of the script being read, and what the buffer or value being assigned is called."""

    builder: Builder
    name: str | None = None


_reading: ContextVar[_Reading] = ContextVar("taskmap_script")


@contextmanager
def writing_to(builder: Builder) -> Iterator[None]:
    """The words write to ``builder`` inside."""
    token = _reading.set(_Reading(builder))
    try:
        yield
    finally:
        _reading.reset(token)


@contextmanager
def named(name: str | None) -> Iterator[None]:
    """What is made inside is called ``name``."""
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
    """The builder of the script being read: a plain Python function that a script calls may write statements to it."""
    return _current("builder()").builder


def dim(name: str) -> Var:
    """A size that is known only when the kernel runs."""
    return Var(name)


@dataclass(frozen=True, slots=True)
class Loop:
    """What a for statement runs over: start, start + step, ... below stop."""

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
    """What range means in script: a loop in order. ``unroll`` is a hint to the C compiler."""
    return _loop(LoopKind.SERIAL, bounds, unroll)


def parallel(*bounds: Dim) -> Loop:
    """A loop whose iterations run on all cores, in any order. Bounds as range."""
    return _loop(LoopKind.PARALLEL, bounds)


def vector(*bounds: Dim) -> Loop:
    """A loop whose iterations are the lanes of vectors. Bounds as range, and the number of iterations is constant."""
    return _loop(LoopKind.VECTOR, bounds)


def unroll(*bounds: Dim) -> Loop:
    """A loop that is written out. Bounds as range, and the number of iterations is constant."""
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
    """A buffer in registers, of one worker, or distributed over the threads by ``owner``; filled with ``init``."""
    return _buffer(Scope.REGISTER, type, init, owner, None)


def local(type: TensorType, *, init: ExprLike | None = None, layout: object | None = None) -> Buffer:
    """A buffer of one worker, in memory; filled with ``init``."""
    return _buffer(Scope.LOCAL, type, init, None, layout)


def shared(type: TensorType, *, layout: object | None = None) -> Buffer:
    """A buffer that the threads of a block share."""
    return _buffer(Scope.SHARED, type, None, None, layout)


def barrier() -> None:
    """All threads of the block meet, and see each other's writes."""
    _current("barrier()").builder.barrier()


def move(dst: Region | Buffer, src: Region | Buffer) -> None:
    """dst = src, element by element: a spec, for lowering to decompose."""
    _current("move()").builder.move(dst, src)


def matmul(c: Region | Buffer, a: Region | Buffer, b: Region | Buffer) -> None:
    """c += a @ b: a spec, for lowering to decompose."""
    _current("matmul()").builder.matmul(c, a, b)


@dataclass(frozen=True, slots=True)
class _Block:
    """block.x, block.y, block.z: which block of the grid runs."""

    x: Var = BLOCKS[0]
    y: Var = BLOCKS[1]
    z: Var = BLOCKS[2]


thread = THREAD
block = _Block()


def _function(name: str) -> Callable[..., Expr]:
    def function(*args: ExprLike) -> Expr:
        return call(name, *args)

    function.__name__ = name
    function.__doc__ = f"{name} of its arguments, element-wise: taskmap.ir.functions has the table."
    return function


MATH: dict[str, Callable[..., Expr]] = {name: _function(name) for name in FUNCTIONS}
"""Every function of taskmap.ir.functions as a word: exp, tanh, rsqrt, ..."""
