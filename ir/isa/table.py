"""The instruction table: the hardware's operations, as data.

An instruction is one entry: the operation (its spec), the worker and slot of every operand element (its owners, task
mappings), the targets that have it, the alignment of its operands, and the text that calls it. Lowering, the
interpreter and code generation know nothing else about it, so a new instruction is a new entry and nothing more;
docs/add-an-instruction.md shows one.

    fma_f32x16              c[0, j] += a[0, 0] * b[0, j], j < 16      one worker, its slots are the lanes of a register
    mma_m16n8k16_f16_f32    c[i, j] += a[i, k] * b[k, j]              the 32 lanes of a warp, each with its registers
    ldmatrix_x4             four 8×8 matrices, memory to registers    32 lanes, each with the address of a row

Entries for CPUs are here; those for GPUs are in the files that ``gpu`` lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING

from taskmap.ir.algebra.mapping import repeat
from taskmap.ir.errors import InputError
from taskmap.ir.isa.amx import AMX, PREFETCH
from taskmap.ir.isa.dots import DOT_PRODUCTS
from taskmap.ir.isa.entry import CPU_ISAS, AtLeast, Instruction, Only, Parameter, Place, at_least, only
from taskmap.ir.isa.specs import MatMulSpec, MoveSpec, Spec
from taskmap.ir.target import Target
from taskmap.ir.types import ALL_DTYPES, DType, f32, f64, i32
from taskmap.ir.util.lazy import lazily

__all__ = [
    "CPU_INSTRUCTIONS", "CPU_ISAS", "INSTRUCTIONS", "AtLeast", "Found", "Instruction", "MatMulSpec", "MoveSpec",
    "Only", "Parameter", "Place", "Spec", "at_least", "instruction_named", "instructions_for", "only", "table_of",
]  # fmt: skip


def _fma(dtype: DType, lanes: int, isa: str) -> Instruction:
    """A row of an outer product, fused if the target has a fused multiply-add."""
    v = f"{dtype}x{lanes}"
    return _outer_row(f"fma_{v}", dtype, lanes, isa, f"tm_fma_{v}(tm_splat_{v}({{a}}), {{b}}, {{c}})")


def _multiply_add(dtype: DType, lanes: int, isa: str) -> Instruction:
    """A row of an outer product of integers, which wraps."""
    v = f"{dtype}x{lanes}"
    text = f"tm_add_{v}(tm_mul_{v}(tm_splat_{v}({{a}}), {{b}}), {{c}})"
    return _outer_row(f"multiply_add_{v}", dtype, lanes, isa, text)


def _outer_row(name: str, dtype: DType, lanes: int, isa: str, text: str) -> Instruction:
    return Instruction(
        name=name,
        spec=MatMulSpec(1, lanes, 1, dtype, dtype, dtype),
        targets=at_least(isa),
        owner_c=repeat(1, lanes),
        owner_a=repeat(1, 1),
        owner_b=repeat(1, lanes),
        text=text,
    )


def _move(dtype: DType, lanes: int, isa: str) -> Instruction:
    """A vector load or store, at any address."""
    return Instruction(f"move_{dtype}x{lanes}", MoveSpec(lanes, dtype), at_least(isa), owner_c=repeat(lanes))


# Vectors narrower than a register cover the edges of tiles.
_VECTORS = ((64, "avx512"), (32, "avx2"), (16, "generic"), (8, "generic"), (4, "generic"), (2, "generic"))

CPU_INSTRUCTIONS: tuple[Instruction, ...] = (
    *(_fma(t, size // t.bytes, isa) for t in (f32, f64) for size, isa in _VECTORS if size // t.bytes > 1),
    *(_multiply_add(i32, size // 4, isa) for size, isa in _VECTORS if size > 4),
    *DOT_PRODUCTS,
    *AMX,
    PREFETCH,
    *(_move(t, size // t.bytes, isa) for t in ALL_DTYPES for size, isa in _VECTORS if size // t.bytes > 1),
)
"""The instructions of CPUs."""

if TYPE_CHECKING:
    from taskmap.ir.isa.gpu import gpu_instructions as _gpu_instructions
else:
    _gpu_instructions = lazily("taskmap.ir.isa.gpu", "gpu_instructions")

if TYPE_CHECKING:
    INSTRUCTIONS: tuple[Instruction, ...]
    """Every instruction that taskmap knows. Those of GPUs load on first use."""


def __getattr__(name: str) -> tuple[Instruction, ...]:
    if name != "INSTRUCTIONS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _all()


@lru_cache(maxsize=1)
def _all() -> tuple[Instruction, ...]:
    return (*CPU_INSTRUCTIONS, *_gpu_instructions())


@lru_cache(maxsize=2)
def _by_name(gpu: bool) -> dict[str, Instruction]:
    return {entry.name: entry for entry in (_all() if gpu else CPU_INSTRUCTIONS)}


def table_of(target: Target) -> tuple[Instruction, ...]:
    """The entries for the device kind of ``target``."""
    return CPU_INSTRUCTIONS if target.kind == "cpu" else _all()


def instruction_named(name: str) -> Instruction:
    """The entry of the table with this name. Raises InputError for an unknown one."""
    found = _by_name(gpu=False).get(name)  # kernels of CPUs need not wait for the entries of GPUs
    if found is not None:
        return found
    known = _by_name(gpu=True)
    if name in known:
        return known[name]
    close = get_close_matches(name, known, n=3)
    raise InputError(f"there is no instruction {name!r}", hint=f"Did you mean {' or '.join(close)}?" if close else "")


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a look-up: instructions, best first, or the reason why there are none."""

    instructions: tuple[Instruction, ...]
    reason: str = ""


def instructions_for(target: Target, spec: MatMulSpec | MoveSpec, table: Iterable[Instruction] | None = None) -> Found:
    """The instructions of ``target`` that ``spec`` can be built from, those that do the most work first.

    An instruction fits if it has the same operation and element types and is no larger than the spec in any extent; the
    spec need not be a multiple of it. Instructions with opaque fragments, which lowering can do less with, come last.
    """
    alike = _alike(spec, table_of(target) if table is None else table)
    if not alike and table is None:
        alike = _alike(spec, _all())  # for the message: another kind of device has it
    if not alike:
        return Found((), f"no instruction does {_kind(spec)}.")
    on_target = [i for i in alike if i.targets(target)]
    if not on_target:
        needed = ", ".join(dict.fromkeys(str(i.targets) for i in alike))
        return Found((), f"{target} has no instruction for {_kind(spec)}: it takes {needed}.")
    fitting = [i for i in on_target if all(a <= b for a, b in zip(_extents(i.spec), _extents(spec), strict=True))]
    if not fitting:
        smallest = min(on_target, key=lambda i: i.work)
        return Found((), f"{spec} is smaller than the smallest instruction of {target}, {smallest.spec}.")
    return Found(tuple(sorted(fitting, key=lambda i: (i.opaque, -i.work))))


def _alike(spec: MatMulSpec | MoveSpec, table: Iterable[Instruction]) -> list[Instruction]:
    return [i for i in table if isinstance(i.spec, type(spec)) and _types(i.spec) == _types(spec)]


def _types(spec: Spec) -> tuple[DType, ...]:
    """The element types: three of a MatMul (a, b, c), one of a Move."""
    if isinstance(spec, MatMulSpec):
        return spec.a, spec.b, spec.c
    return (spec.dtype,) if isinstance(spec, MoveSpec) else ()


def _extents(spec: Spec) -> tuple[int, ...]:
    if isinstance(spec, MatMulSpec):
        return spec.m, spec.n, spec.k
    return (spec.n,) if isinstance(spec, MoveSpec) else ()


def _kind(spec: MatMulSpec | MoveSpec) -> str:
    if isinstance(spec, MoveSpec):
        return f"moves of {spec.dtype}"
    return f"{spec.a} × {spec.b} → {spec.c}"
