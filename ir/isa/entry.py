"""The form of an entry of the instruction table: ``Instruction``, its parameters, and the targets that have it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.errors import InputError
from taskmap.ir.features import FEATURES, ISA_FEATURES, in_order
from taskmap.ir.isa.specs import FragmentMoveSpec, LaneDotSpec, MatMulSpec, MoveSpec, Spec
from taskmap.ir.target import CpuTarget, Target
from taskmap.ir.types import DType

CPU_ISAS = tuple(ISA_FEATURES)
"""The CPU instruction sets of ``Target.isa``; each includes the ones before it."""


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The targets of a kind whose instruction set includes ``isa``."""

    kind: str
    isa: str

    def __call__(self, target: Target) -> bool:
        if self.kind == "cpu":
            return target.kind == "cpu" and frozenset(ISA_FEATURES[self.isa]) <= frozenset(target.features)
        return target.kind == self.kind and _rank(target.isa) >= _rank(self.isa)

    def __str__(self) -> str:
        return f"{self.kind}:{self.isa} or newer"


@dataclass(frozen=True, slots=True)
class Only:
    """Exactly the GPUs with these instruction sets: later ones need not have the additions of a name ending in "a"."""

    isas: tuple[str, ...]
    kind: str = "cuda"

    def __call__(self, target: Target) -> bool:
        return target.kind == self.kind and target.isa in self.isas

    def __str__(self) -> str:
        return " or ".join(f"{self.kind}:{isa}" for isa in self.isas)


@dataclass(frozen=True, slots=True)
class CpuTargets:
    """The CPUs with all of these features (``taskmap.ir.features``)."""

    features: tuple[str, ...]
    kind: str = "cpu"

    def __call__(self, target: Target) -> bool:
        return isinstance(target, CpuTarget) and frozenset(self.features) <= frozenset(target.features)

    def __str__(self) -> str:
        return f"{self.kind} with {' and '.join(self.features)}"


def having(*features: str) -> CpuTargets:
    """The CPUs with all of these features, and those that they need. Raises InputError for an unknown one."""
    if unknown := [name for name in features if name not in FEATURES]:
        raise InputError(f"there is no CPU feature {unknown[0]!r}", hint=f"Use some of {', '.join(FEATURES)}.")
    return CpuTargets(in_order(features))


def at_least(isa: str) -> AtLeast:
    """The targets that include ``isa``: a CPU's "generic", "avx2", "avx512", or a GPU's "sm_80", "sm_90", ...

    Raises InputError for "sm_90a" and the like, whose additions newer targets need not have; use ``only`` for those.
    """
    if re.fullmatch(r"sm_\d+[af]", isa):
        raise InputError(f"no target is newer than {isa}", why="its additions are its own.", hint=f"only({isa!r})")
    return AtLeast("cpu" if isa in CPU_ISAS else "cuda", isa)


def only(*isas: str) -> Only:
    """Exactly the GPUs with an instruction set among ``isas``: only("sm_90a")."""
    return Only(isas)


def _rank(isa: str) -> int:
    """The position of a GPU's instruction set among those of its kind."""
    return int(re.sub(r"\D", "", isa) or 0)


class Place(Enum):
    """The location of an operand. MEMORY is shared or global. A CONSTANT is known when the kernel is compiled."""

    REGISTERS = "registers"
    SHARED = "shared"
    GLOBAL = "global"
    MEMORY = "memory"
    TENSOR_MAP = "tensor map"
    VALUE = "value"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Parameter:
    """An operand of a GPU instruction, as its device function takes it.

    effect: "r", "w" or "rw", whether the instruction reads or writes it. dtypes: the allowed element types; empty: any.
    count: of registers, the slots of one worker; of a value, its lanes; 0 if a constant operand gives it. bytes: of
    memory, the number accessed behind one worker's address; 0 if other operands give it. owner: which worker has which
    element (of memory: holds its address). choices: of a constant, the allowed values; empty: any.
    """

    name: str
    place: Place
    effect: str = "r"
    dtypes: tuple[DType, ...] = ()
    count: int = 1
    bytes: int = 0
    owner: TaskMapping | None = None
    choices: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} in {self.place.value}"


@dataclass(frozen=True, slots=True)
class FunctionText:
    """The function of an instruction that a user wrote. language: "c", "cuda" or "ptx". body: the text inside it, where
    the instruction's parameters have their names; of PTX, ``$name`` stands for a parameter."""

    language: str
    body: str


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One entry of the table, equal only to itself.

    spec: the operation. workers: the number of workers that execute it together. owner_c, owner_a, owner_b: for each
    operand of a product, the worker and slot of every element; of a move, owner_c is the owner of the data in registers
    and owner_a that of the addresses; None for operands in memory, and for instructions without tiles. targets: those
    that have it. alignment: of the address of an operand in memory, in bytes.

    text: the call to write. For a CPU, a C expression for the new c: {a}, {b} and {c} are the operands' registers, a
    vector of slots, or a scalar for a single slot; the C prelude's types and functions may be used. Empty for an
    operation that tensor IR has itself: a Move is a load or a store of a ramp. For a GPU, the name of the device
    function, defined in ``backend/cuda/device/<family>.cuh`` and described by ``parameters``: constants are its
    template arguments. result: the type it returns; the name of a parameter means that parameter's element type; None:
    it returns nothing.

    completes: the mechanism that signals the completion of an asynchronous instruction: "cp_async", "bulk" or "wgmma"
    for groups, "mbarrier"; "" for a synchronous one. opaque: the ISA does not document which element a slot of a
    fragment holds, so the owners here are our own choice, and only instructions of the family may touch the fragment.

    written, twin: of a micro-kernel, which a user wrote. written: its text; None if it is a script function. twin:
    ``twin(operands, threads)`` gives statements that do the same; ``threads`` is the size of the block, 0 on a CPU.
    """

    name: str
    spec: Spec
    targets: AtLeast | Only | CpuTargets
    owner_c: TaskMapping | None = None
    owner_a: TaskMapping | None = None
    owner_b: TaskMapping | None = None
    workers: int = 1
    alignment: int = 1
    text: str = ""
    family: str = ""
    parameters: tuple[Parameter, ...] = ()
    result: DType | str | None = None
    completes: str = ""
    opaque: bool = False
    written: FunctionText | None = None
    twin: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    @property
    def work(self) -> int:
        """Multiply-adds, or elements moved, per instruction; 0 for other instructions."""
        spec = self.spec
        if isinstance(spec, MatMulSpec):
            return spec.m * spec.n * spec.k
        if isinstance(spec, LaneDotSpec):
            return spec.n * spec.k
        return spec.n if isinstance(spec, MoveSpec) else 0

    @property
    def columns(self) -> int:
        """The n of a product or a Move, the number of neighbours it processes; 0 for other instructions."""
        return self.spec.n if isinstance(self.spec, MatMulSpec | LaneDotSpec | MoveSpec) else 0

    @property
    def operands(self) -> tuple[tuple[DType, TaskMapping], ...]:
        """Element type and owner of those operands that are in registers: of c, a and b, or of the data moved."""
        spec = self.spec
        if isinstance(spec, MatMulSpec | LaneDotSpec):
            held = ((spec.c, self.owner_c), (spec.a, self.owner_a), (spec.b, self.owner_b))
        elif isinstance(spec, MoveSpec | FragmentMoveSpec):
            held = ((spec.dtype, self.owner_c), (spec.dtype, None), (spec.dtype, None))
        else:
            return ()
        return tuple((dtype, owner) for dtype, owner in held if owner is not None)

    @property
    def effects(self) -> tuple[Parameter, ...]:
        """The parameters that the instruction writes."""
        return tuple(p for p in self.parameters if "w" in p.effect)

    def __str__(self) -> str:
        return f"{self.name}: {self.spec}, on {self.targets}"
