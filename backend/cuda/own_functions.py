"""Device functions of micro-kernels, which users write as the text inside a function, of CUDA C++ or of PTX.

A function takes a pointer for each operand, to memory or to a thread's registers in slot order, and the strides of
those in memory. PTX becomes one ``asm`` statement: ``$c`` is the list of c's registers, ``$c0`` the first of them, and
``$a`` the address of an operand in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import Template

from taskmap.backend.cuda.expressions import cuda_type
from taskmap.ir.errors import CodegenError
from taskmap.ir.isa.entry import Instruction, Parameter, Place
from taskmap.ir.types import f32, f64

_WORD = 4
"""Bytes of a register, but for f64."""


def function_of(name: str, instruction: Instruction) -> str:
    """The device function ``name`` of a micro-kernel. Raises CodegenError for registers that PTX cannot take."""
    written = instruction.written
    assert written is not None
    body = written.body if written.language == "cuda" else _asm(instruction, written.body)
    params = ", ".join(_declared(p) for p in instruction.parameters)
    return f"TM_FN void {name}({params})\n{{\n{body}\n}}\n"


def _declared(p: Parameter) -> str:
    if p.place is Place.VALUE:
        return f"const long long {p.name}"
    return f"{'' if 'w' in p.effect else 'const '}{cuda_type(p.dtypes[0])} *{p.name}"


def _asm(instruction: Instruction, text: str) -> str:
    """An asm statement with its operands: those that it writes first."""
    values: dict[str, tuple[list[str], str, bool]] = {}
    for p in instruction.parameters:
        registers, constraint = _registers(p)
        values[p.name] = registers, constraint, p.place is Place.REGISTERS and "w" in p.effect
    outputs: list[str] = []
    inputs: list[str] = []
    places: dict[str, str] = {}
    ordered = sorted(instruction.parameters, key=lambda p: not values[p.name][2])
    number = 0
    for p in ordered:
        registers, constraint, is_output = values[p.name]
        mark = "" if not is_output else "+" if "r" in p.effect else "="
        (outputs if is_output else inputs).extend(f'"{mark}{constraint}"({value})' for value in registers)
        here = [f"%{number + i}" for i in range(len(registers))]
        places[p.name] = ", ".join(here)
        places |= {f"{p.name}{i}": place for i, place in enumerate(here)}
        number += len(here)
    code = Template(text.replace("%", "%%")).substitute(places)
    lines = "\n".join(f'    "{line}"' for line in _quoted(code))
    return f'  asm volatile(\n{lines}\n    : {", ".join(outputs)} : {", ".join(inputs)} : "memory");'


def _quoted(code: str) -> Iterator[str]:
    for line in code.strip().splitlines():
        escaped = re.sub(r'["\\\\]', r"\\\g<0>", line.strip())
        yield f"{escaped}\\n\\t"


def _registers(p: Parameter) -> tuple[list[str], str]:
    """The C++ values of a parameter, and their constraint."""
    if p.place is Place.VALUE:
        return [p.name], "l"
    if p.place is Place.SHARED:
        return [f"tm_shared_address({p.name})"], "r"
    if p.place is not Place.REGISTERS:
        return [f"tm_global_address({p.name})"], "l"
    (dtype,) = p.dtypes
    if dtype == f64 or dtype.bytes == _WORD:
        return [f"{p.name}[{i}]" for i in range(p.count)], {f64: "d", f32: "f"}.get(dtype, "r")
    if dtype.bytes > _WORD or p.count * dtype.bytes % _WORD:
        raise CodegenError(
            f"PTX cannot take {p.name}", why=f"{p.count} elements of {dtype} are not whole registers of 32 bits.",
            hint="Write it in CUDA C++.",
        )  # fmt: skip
    at = f"reinterpret_cast<{'' if 'w' in p.effect else 'const '}unsigned *>({p.name})"
    return [f"{at}[{i}]" for i in range(p.count * dtype.bytes // _WORD)], "r"
