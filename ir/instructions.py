"""The instruction table: what the hardware does in one step, as data.

An instruction is one entry: what it computes (its spec), which worker holds which element of each operand in which slot
(its owners, task mappings), which targets have it, how its operands must be aligned, and how it is written. Lowering,
the interpreter and code generation know nothing else about it, so a new instruction is a new entry and nothing more;
docs/add-an-instruction.md shows one.

    fma_f32x16              c[0, j] += a[0, 0] * b[0, j], j < 16      one worker, whose slots are the lanes of a
    register mma_m16n8k16_f16_f32    c[i, j] += a[i, k] * b[k, j]              the 32 lanes of a warp, each with its
    registers

Fragments of mma.sync: NVIDIA, "Parallel Thread Execution ISA", section "Matrix fragments for mma.m16n8k16 with floating
point type".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from taskmap.ir.mapping import TaskMapping, repeat, spatial
from taskmap.ir.target import Target
from taskmap.ir.types import ALL_DTYPES, DType, bf16, f16, f32, f64

CPU_ISAS = ("generic", "avx2", "avx512")
"""The CPU instruction sets of ``Target.isa``, each with all that the ones before it have."""


@dataclass(frozen=True, slots=True)
class MatMulSpec:
    """c[i, j] += sum over k of a[i, k] * b[k, j], for matrices of m×n, m×k and k×n elements of these types."""

    m: int
    n: int
    k: int
    a: DType
    b: DType
    c: DType

    def __str__(self) -> str:
        return f"matmul {self.m}×{self.n}×{self.k}, {self.a} × {self.b} → {self.c}"


@dataclass(frozen=True, slots=True)
class MoveSpec:
    """n neighbouring elements copied between memory and registers, in either direction."""

    n: int
    dtype: DType

    def __str__(self) -> str:
        return f"move of {self.n} × {self.dtype}"


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The targets of a kind whose instruction set includes ``isa``."""

    kind: str
    isa: str

    def __call__(self, target: Target) -> bool:
        return target.kind == self.kind and _rank(target.isa) >= _rank(self.isa)

    def __str__(self) -> str:
        return f"{self.kind}:{self.isa} or newer"


def at_least(isa: str) -> AtLeast:
    """The targets that have what ``isa`` has: a CPU's "generic", "avx2", "avx512", or a GPU's "sm_80", "sm_90", ..."""
    return AtLeast("cpu" if isa in CPU_ISAS else "cuda", isa)


def _rank(isa: str) -> int:
    """Where an instruction set stands among those of its kind."""
    return CPU_ISAS.index(isa) if isa in CPU_ISAS else int(re.sub(r"\D", "", isa) or 0)


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One entry of the table, equal only to itself.

    spec: what it does. workers: how many do it together. owner_c, owner_a, owner_b: for each operand of a MatMul, who
    holds which element in which slot; a Move's element is owned by owner_c alone. targets: those that have it.
    alignment: what the address of an operand in memory must be a multiple of, in bytes. text: how it is written. For a
    CPU, a C expression for the new c; {a}, {b} and {c} are the operands' registers, a vector of slots, or a scalar
    for a single slot; the C prelude's types and functions may be used. For a GPU, a PTX statement; {a}, {b} and {c}
    are lists of registers. Empty for what tensor IR says itself: a Move is a load or a store of a ramp.
    """

    name: str
    spec: MatMulSpec | MoveSpec
    targets: AtLeast
    owner_c: TaskMapping
    owner_a: TaskMapping | None = None
    owner_b: TaskMapping | None = None
    workers: int = 1
    alignment: int = 1
    text: str = ""

    @property
    def work(self) -> int:
        """Multiply-adds, or elements moved, in one instruction."""
        spec = self.spec
        return spec.m * spec.n * spec.k if isinstance(spec, MatMulSpec) else spec.n

    @property
    def operands(self) -> tuple[tuple[DType, TaskMapping], ...]:
        """Element type and owner of c, a and b of a MatMul, of what a Move moves."""
        spec = self.spec
        if isinstance(spec, MoveSpec) or self.owner_a is None or self.owner_b is None:
            return ((_types(spec)[-1], self.owner_c),)
        return (spec.c, self.owner_c), (spec.a, self.owner_a), (spec.b, self.owner_b)

    def __str__(self) -> str:
        return f"{self.name}: {self.spec}, on {self.targets}"


def _fma(dtype: DType, lanes: int, isa: str) -> Instruction:
    """A row of an outer product. The C compiler makes one fused instruction of it where the target has one."""
    return Instruction(
        name=f"fma_{dtype}x{lanes}",
        spec=MatMulSpec(1, lanes, 1, dtype, dtype, dtype),
        targets=at_least(isa),
        owner_c=repeat(1, lanes),
        owner_a=repeat(1, 1),
        owner_b=repeat(1, lanes),
        text=f"({{c}} + (tm_splat_{dtype}x{lanes}({{a}}) * {{b}}))",
    )


def _move(dtype: DType, lanes: int, isa: str) -> Instruction:
    """A vector load or store, at any address."""
    return Instruction(f"move_{dtype}x{lanes}", MoveSpec(lanes, dtype), at_least(isa), owner_c=repeat(lanes))


def _mma(name: str, dtype: DType) -> Instruction:
    return Instruction(
        name=f"mma_m16n8k16_{dtype}_f32",
        spec=MatMulSpec(16, 8, 16, dtype, dtype, f32),
        targets=at_least("sm_80"),
        owner_c=repeat(2, 1) * spatial(8, 4) * repeat(1, 2),
        owner_a=repeat(2, 2, order=(1, 0)) * spatial(8, 4) * repeat(1, 2),
        owner_b=repeat(2, 1) * spatial(4, 8, order=(1, 0)) * repeat(2, 1),
        workers=32,
        text=f"mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32 {{c}}, {{a}}, {{b}}, {{c}};",
    )


# Vectors narrower than a register cover the edges of tiles.
_VECTORS = ((64, "avx512"), (32, "avx2"), (16, "generic"), (8, "generic"), (4, "generic"), (2, "generic"))

INSTRUCTIONS: tuple[Instruction, ...] = (
    *(_fma(t, size // t.bytes, isa) for t in (f32, f64) for size, isa in _VECTORS if size // t.bytes > 1),
    *(_move(t, size // t.bytes, isa) for t in ALL_DTYPES for size, isa in _VECTORS if size // t.bytes > 1),
    _mma("f16", f16),
    _mma("bf16", bf16),
)
"""Every instruction that taskmap knows."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a look-up found: instructions, the best first, or the reason why there is none."""

    instructions: tuple[Instruction, ...]
    reason: str = ""


def instructions_for(target: Target, spec: MatMulSpec | MoveSpec, table: Iterable[Instruction] = INSTRUCTIONS) -> Found:
    """The instructions of ``target`` of which ``spec`` can be made, those that do most at once first.

    An instruction fits when it does the same to elements of the same types and is nowhere larger than the spec; the
    spec need not be a multiple of it.
    """
    alike = [i for i in table if _types(i.spec) == _types(spec)]
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
    return Found(tuple(sorted(fitting, key=lambda i: -i.work)))


def _types(spec: MatMulSpec | MoveSpec) -> tuple[DType, ...]:
    """What is multiplied into what, or moved: three types or one."""
    return (spec.a, spec.b, spec.c) if isinstance(spec, MatMulSpec) else (spec.dtype,)


def _extents(spec: MatMulSpec | MoveSpec) -> tuple[int, ...]:
    return (spec.m, spec.n, spec.k) if isinstance(spec, MatMulSpec) else (spec.n,)


def _kind(spec: MatMulSpec | MoveSpec) -> str:
    if isinstance(spec, MoveSpec):
        return f"moves of {spec.dtype}"
    return f"{spec.a} × {spec.b} → {spec.c}"
