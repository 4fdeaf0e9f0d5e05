"""Conditions that lowering passes require and ensure: each is a check of a kernel, run under ``verify_passes``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from taskmap.ir.algebra.register_tile import is_in_order
from taskmap.ir.construct import constant_value, static_size
from taskmap.ir.nodes import Allocate, Buffer, For, If, Kernel, LoopKind, MappedFor, MatMul, Move, Region, Scope, Stmt
from taskmap.ir.passes import Condition, Invariant, Pass
from taskmap.ir.printer import print_body
from taskmap.ir.visit import walk_stmts


def is_flat(buffer: Buffer) -> bool:
    """True if the indices of a buffer are addresses: one dimension, stride 1, offset 0, and no owner or layout."""
    plain = buffer.strides is None and buffer.layout is None and buffer.owner is None
    return plain and buffer.rank == 1 and static_size(buffer.offset) == 0


def _other_signature(given: Kernel, made: Kernel) -> str | None:
    was, now = _signature(given), _signature(made)
    return None if was == now else f"{was} became {now}."


def _signature(kernel: Kernel) -> tuple[object, ...]:
    parameters = tuple((b.name, b.dtype, b in kernel.outputs) for b in kernel.buffers)
    at = kernel.launch
    return kernel.name, parameters, kernel.dims, at and (at.grid, at.threads, at.cluster)


class KernelPass(Pass[Kernel]):
    """A rewrite of a kernel that preserves its semantics."""

    __slots__ = ()

    keeps = (Invariant("name, parameters, sizes and launch of the kernel", _other_signature),)


def _no_statement(text: str, wrong: Callable[[Stmt], bool]) -> Condition[Kernel]:
    """The condition that ``wrong`` is false for every statement; a breach names the first one."""

    def breach(kernel: Kernel) -> str | None:
        found = next(filter(wrong, walk_stmts(kernel.body)), None)
        return None if found is None else f"in {print_body((found,)).splitlines()[0]}"

    return Condition(text, breach)


def _is_loop(*kinds: LoopKind) -> Callable[[Stmt], bool]:
    return lambda s: isinstance(s, For) and s.kind in kinds


def _is_shared_spec(s: Stmt) -> bool:
    """True if several threads carry out a spec together."""
    if isinstance(s, Move):
        return s.mapping is not None or _is_distributed(s.dst) or _is_distributed(s.src)
    return isinstance(s, MatMul) and _is_distributed(s.c)


def _is_distributed(r: Region) -> bool:
    return r.buffer.owner is not None and r.buffer.scope in (Scope.REGISTER, Scope.FRAGMENT)


def _is_decided(s: Stmt) -> bool:
    if isinstance(s, For):
        return constant_value(s.extent) in (0, 1)
    return isinstance(s, If) and constant_value(s.cond) is not None


def _buffers(kernel: Kernel) -> Iterator[Buffer]:
    yield from (*kernel.buffers, *kernel.own)
    yield from (s.buffer for s in walk_stmts(kernel.body) if isinstance(s, Allocate))


def _not_flat(kernel: Kernel) -> str | None:
    found = next((b for b in _buffers(kernel) if not is_flat(b)), None)
    return None if found is None else f"{found!r} is not flat."


NO_SPECS = _no_statement("no spec (Move, MatMul) is left", lambda s: isinstance(s, (Move, MatMul)))
_ALONE = _no_statement("every remaining spec is local to one thread", _is_shared_spec)
NO_SHARED_SPECS: Condition[Kernel] = Condition(
    _ALONE.text, lambda kernel: _ALONE.breach(kernel) if kernel.launch else None
)
NO_DISTRIBUTED_REGISTERS = _no_statement(
    "no register tile is distributed among workers",
    lambda s: isinstance(s, Allocate) and s.buffer.owner is not None and not is_in_order(s.buffer.owner),
)
NO_MAPPED_LOOPS = _no_statement("no task-mapped loop is left", lambda s: isinstance(s, MappedFor))
NO_VECTOR_LOOPS = _no_statement("no vector loop is left", _is_loop(LoopKind.VECTOR))
NO_UNROLLED_LOOPS = _no_statement("no unrolled loop is left", _is_loop(LoopKind.UNROLLED))
NOTHING_DECIDED = _no_statement("every loop may run more than once, and no branch is decided", _is_decided)
FLAT = Condition("every buffer has one dimension, stride 1 and offset 0", _not_flat)
