"""``micro_kernel``: the code of a leaf, and the spec that it performs.

outer = micro_kernel(outer_product, MatMul(8, 8, 1), THREAD, (REGISTER, REGISTER, REGISTER))
tree.tile(8, 8).to(THREAD).split(1).move("a", REGISTER).move("b", REGISTER).done(outer)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.construct import static_size
from taskmap.ir.decompose.levels import SCOPE_NAMES, Level
from taskmap.ir.decompose.micro.definition import Definition
from taskmap.ir.decompose.micro.executed import ExecutedSpec
from taskmap.ir.decompose.micro.twin import placed
from taskmap.ir.decompose.spec import Operand, Spec
from taskmap.ir.expressions import Scope
from taskmap.ir.isa.entry import FunctionText, Instruction, Parameter, Place
from taskmap.ir.isa.specs import MicroKernelSpec
from taskmap.ir.nodes import Body, Region
from taskmap.ir.printer import print_body, print_dim
from taskmap.ir.script.statements import Script
from taskmap.ir.types import i64

_PLACES = {Scope.REGISTER: Place.REGISTERS, Scope.SHARED: Place.SHARED, Scope.GLOBAL: Place.GLOBAL}


@dataclass(frozen=True, slots=True, eq=False)
class MicroKernel:
    """Code that performs a spec at its level, made by ``micro_kernel``. instruction: it as one of a kernel's
    instructions. owners: the workers that hold each operand in registers."""

    name: str
    spec: Spec
    instruction: Instruction
    owners: Mapping[str, TaskMapping]

    def why_not(self, spec: Spec) -> str:
        """The reason why it does not perform ``spec``; "" if it does."""
        own = self.spec
        found: list[str] = []
        if spec.kind == own.kind:
            here = {name: n for name, n in spec.extents if not (name.startswith("batch") and n == 1)}
            if spec.level is not own.level:
                found.append(f"the spec is a {spec.level.value.lower()}'s")
            if len(here) != len(own.extents):
                found.append(f"it has {len(here)} axes")
            pairs = zip(here.items(), own.extents, strict=False)
            found += [f"{a} is {print_dim(n)}, not {print_dim(m)}" for (a, n), (_, m) in pairs if static_size(n) != m]
            for o, wanted in zip(spec.operands, own.operands, strict=True):
                if o.dtype != wanted.dtype:
                    found.append(f"{o.name} is {o.dtype}, not {wanted.dtype}")
                if o.scope is not wanted.scope:
                    found.append(f"{o.name} is in {SCOPE_NAMES[o.scope]}, not {SCOPE_NAMES[wanted.scope]}")
            if not found:
                return ""
        return f"{self.name} performs {own}{', and here ' if found else ''}{', '.join(found)}."

    def __str__(self) -> str:
        return f"{self.name}: {self.spec}"


def micro_kernel(
    how: Script | str, does: Spec, level: Level, places: Sequence[Scope], *, language: str = "",
    twin: Script | None = None, owners: Mapping[str, TaskMapping] | None = None, isa: str = "", name: str = "",
) -> MicroKernel:  # fmt: skip
    """Code of your own as a leaf: ``done(micro_kernel(...))``.

    how: a ``@script`` function of the operands in order, each a tensor of its shape; or the text inside a function of
    C, CUDA C++ or PTX (``language``: "c", "cuda", "ptx"). does: a MatMul or a Move of known sizes. level: CORE; or
    THREAD, WARP, WARPGROUP, BLOCK. places: the memory of each operand. owners: for registers of a warp or a warpgroup,
    the lanes that hold each element, by operand. twin: a ``@script`` function that does what the text does; simulator
    and interpreter execute it. Without one they execute the spec, and the cost is unknown there. isa: the oldest
    instruction set that has it ("sm_80", "avx2"). name: by default the function's.

    In text, an operand is a pointer to its first element, or to the registers of a thread in the order of its slots,
    and ``a_m`` is the distance of neighbours along axis m of a, in elements. In PTX, $c stands for the registers of c
    (32 bits each; 64 of f64), $c0 for the first, $a for the address of an operand in memory.

    Raises ScheduleError for a spec, level, places, owners or text that do not fit, and ScriptError for the script.
    """
    script = how if isinstance(how, Script) else None
    name = name or (script.__name__ if script else "micro_kernel")
    given = Definition(name, level, tuple(places), dict(owners or {}))
    spec = given.spec(does)
    given.check_owners(spec)
    formals = given.operands(spec)
    code = script or twin
    body = given.statements(code, spec, formals) if code is not None else None
    text = "" if script is not None else given.text(how, language, [p.name for p in _parameters(spec, given)])
    shown = text if script is None or body is None else print_body(body)
    types = [f"{o.dtype}" for o in spec.operands]
    digest = hashlib.sha256(repr([language, str(spec), types, str(given.owners), shown]).encode()).hexdigest()[:8]

    def execute(operands: Sequence[Region], threads: int) -> Body:
        regions = operands[: len(formals)]
        return placed(body, formals, regions) if body is not None else _executed(spec, given, regions, threads)

    a, b, c = _owners(spec, given.owners)
    instruction = Instruction(
        f"{re.sub('[^a-zA-Z0-9_]', '_', given.name)[:40]}_{digest}",
        MicroKernelSpec(given.name, str(spec), counted=body is not None),
        given.targets(isa), c, a, b, workers=level.threads or 1,
        parameters=tuple(_parameters(spec, given, strides=script is None)),
        written=None if script is not None else FunctionText(language, text), twin=execute,
    )  # fmt: skip
    return MicroKernel(given.name, spec, instruction, given.owners)


def _executed(spec: Spec, given: Definition, regions: Sequence[Region], threads: int) -> Body:
    return ExecutedSpec(spec, given.owners, regions, threads).body()


def _owners(spec: Spec, held: Mapping[str, TaskMapping]) -> list[TaskMapping | None]:
    """Those of a, b and c; of a copy, those of src and dst take the first two places."""
    found = [held.get(o.name) for o in spec.operands]
    return [*found, *[None] * (3 - len(found))]


def _parameters(spec: Spec, given: Definition, *, strides: bool = True) -> Iterator[Parameter]:
    """The operands in order, then the strides of those in memory."""
    for o in spec.operands:
        yield _parameter(spec, o, given, in_memory=strides and given.on_cpu)
    for o in spec.operands if strides else ():
        if o.scope is not Scope.REGISTER or given.on_cpu:
            yield from (Parameter(f"{o.name}_{axis}", Place.VALUE, dtypes=(i64,)) for axis in o.axes)


def _parameter(spec: Spec, o: Operand, given: Definition, *, in_memory: bool) -> Parameter:
    effect = ("rw" if spec.accumulated else "w") if o.name == spec.written else "r"
    owner = given.owners.get(o.name)
    place = Place.MEMORY if in_memory or (given.on_cpu and o.scope is not Scope.REGISTER) else _PLACES[o.scope]
    if place is not Place.REGISTERS:
        return Parameter(o.name, place, effect, (o.dtype,))
    size = 1
    for n in spec.static_shape(o) or ():
        size *= n
    return Parameter(o.name, place, effect, (o.dtype,), owner.num_slots if owner else size, owner=owner)
