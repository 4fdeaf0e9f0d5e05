"""Device functions generated from the instruction table: one for each shape and type of wmma and wgmma.

Written by hand they would list many thousand registers, so a family's text is generated when a kernel needs it. A
function is one ``asm`` statement for each choice of its constants; operands are fragments in slot order, as registers
of 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from string import Template

from taskmap.ir.errors import CodegenError
from taskmap.ir.isa import table
from taskmap.ir.isa.specs import FragmentMoveSpec, MatMulSpec
from taskmap.ir.isa.table import Instruction, Place
from taskmap.ir.types import DType, bf16, e4m3, e5m2, f16, f32, i8, i32, tf32, u8

MADE = ("wmma", "wgmma_")
"""Prefixes of the families without a file: all of wmma, and each product of wgmma."""

_CPP = {f16: "tm_f16", bf16: "tm_bf16", tf32: "float", f32: "float", i32: "int", i8: "signed char", u8: "unsigned char"}
_CPP |= {e4m3: "tm_e4m3", e5m2: "tm_e5m2"}
_PTX = {i8: "s8", i32: "s32"}
_LAYOUTS = ("row", "col")


def is_made(family: str) -> bool:
    """True if a family's text comes from here, not from a file."""
    return family.startswith(MADE)


@lru_cache(maxsize=64)
def made_family(family: str) -> str:
    """The device functions of a family. Raises CodegenError if no instruction belongs to it."""
    functions = [_function(entry) for entry in table.INSTRUCTIONS if entry.family == family]
    if not functions:
        raise CodegenError(f"there is no family of device instructions called {family!r}")
    return "\n".join(functions)


@dataclass(frozen=True, slots=True)
class _Operands:
    """Operands of an asm statement: its registers, their constraint, and whether it reads or writes them."""

    name: str
    constraint: str
    values: tuple[str, ...]
    effect: str = "r"

    def text(self) -> list[str]:
        mark = {"r": "", "w": "=", "rw": "+"}[self.effect]
        return [f'"{mark}{self.constraint}"({value})' for value in self.values]


def _statement(code: str, operands: Iterable[_Operands]) -> str:
    """An asm statement; $x in ``code`` stands for the list of registers of the operands called x."""
    ordered = sorted(operands, key=lambda o: "w" not in o.effect)
    places: dict[str, str] = {}
    number = 0
    for operand in ordered:
        count = len(operand.values)
        places[operand.name] = ", ".join(f"%{i}" for i in range(number, number + count))
        number += count
    written, read = ([t for o in ordered if ("w" in o.effect) == w for t in o.text()] for w in (True, False))
    return f'asm volatile("{Template(code).substitute(places)}" : {", ".join(written)} : {", ".join(read)} : "memory");'


def _fragment(entry: Instruction, name: str) -> tuple[str, _Operands]:
    """The declaration of a fragment as a parameter, and its registers as operands of asm."""
    parameter = next(p for p in entry.parameters if p.name == name)
    (dtype,) = parameter.dtypes
    packed = dtype not in (f32, i32)
    const = "" if "w" in parameter.effect else "const "
    words = max(1, parameter.count * dtype.bytes // 4)
    at = f"reinterpret_cast<{const}unsigned *>({name})" if packed else name
    values = tuple(f"{at}[{i}]" for i in range(words))
    return f"{const}{_CPP[dtype]} *{name}", _Operands(name, "f" if dtype == f32 else "r", values, parameter.effect)


def _function(entry: Instruction) -> str:
    spec = entry.spec
    if isinstance(spec, FragmentMoveSpec):
        return _wmma_move(entry, spec)
    if isinstance(spec, MatMulSpec) and entry.family == "wmma":
        return _wmma_product(entry, spec)
    if isinstance(spec, MatMulSpec):
        return _wgmma(entry, spec)
    raise CodegenError(f"{entry} is not written by a rule")


def _wmma_move(entry: Instruction, spec: FragmentMoveSpec) -> str:
    declared, fragment = _fragment(entry, "fragment")
    operands = (fragment, _Operands("memory", "l", ("memory",)), _Operands("stride", "r", ("stride",)))
    verb, moved = f"load.{spec.operand}", "{$fragment}, [$memory]"
    if spec.store:
        verb, moved = "store.d", "[$memory], {$fragment}"
    shape = f"m{spec.m}n{spec.n}k{spec.k}.{_ptx(spec.dtype)}"
    bodies = [
        _statement(f"wmma.{verb}.sync.aligned.{layout}.{shape} {moved}, $stride;", operands) for layout in _LAYOUTS
    ]
    memory = "P *memory" if spec.store else "const P *memory"
    taken = f"{memory}, {declared}" if spec.store else f"{declared}, {memory}"
    return _write(f"template <int Layout, class P> TM_FN void {entry.text}({taken}, int stride)", ("Layout",), bodies)


def _wmma_product(entry: Instruction, spec: MatMulSpec) -> str:
    fragments = [_fragment(entry, name) for name in "cab"]
    types = f"{_ptx(spec.c)}.{_ptx(spec.c)}"
    if spec.a != f16:
        types = f"{_ptx(spec.c)}.{_ptx(spec.a)}.{_ptx(spec.b)}.{_ptx(spec.c)}"
    bodies = [
        _statement(
            f"wmma.mma.sync.aligned.{a}.{b}.m{spec.m}n{spec.n}k{spec.k}.{types} {{$c}}, {{$a}}, {{$b}}, {{$c}};",
            [operands for _, operands in fragments],
        )
        for a, b in product(_LAYOUTS, _LAYOUTS)
    ]
    head = f"template <int A, int B> TM_FN void {entry.text}({', '.join(declared for declared, _ in fragments)})"
    return _write(head, ("A", "B"), bodies)


def _wgmma(entry: Instruction, spec: MatMulSpec) -> str:
    """The scales are 1, and 0 for d if it is not accumulated. Descriptors and layouts come last."""
    constants = [p.name for p in entry.parameters if p.place is Place.CONSTANT]
    declared, accumulator = _fragment(entry, "d")
    taken, operands, left = [declared], [accumulator], "$a"
    if entry.owner_a is None:
        taken.append("long long a")
        operands.append(_Operands("a", "l", ("a",)))
    else:
        fragment, registers = _fragment(entry, "a")
        taken.append(fragment)
        operands.append(registers)
        left = "{$a}"
    operands += [_Operands("b", "l", ("b",)), _Operands("accumulate", "r", ("accumulate",))]
    operands += [_Operands(name, "n", (name,)) for name in constants]
    scales = "" if spec.a.is_int else ", 1, 1"
    turned = "".join(f", ${name}" for name in constants)
    shape = f"m{spec.m}n{spec.n}k{spec.k}.{_ptx(spec.c)}.{_ptx(spec.a)}.{_ptx(spec.b)}"
    code = (
        "{ .reg .pred p; setp.ne.b32 p, $accumulate, 0; "
        f"wgmma.mma_async.sync.aligned.{shape} {{$d}}, {left}, $b, p{scales}{turned}; }}"
    )
    template = f"template <{', '.join(f'int {name}' for name in constants)}> " if constants else ""
    head = f"{template}TM_FN void {entry.text}({', '.join([*taken, 'long long b', 'int accumulate'])})"
    return _write(head, (), [_statement(code, operands)])


def _write(head: str, constants: Sequence[str], bodies: Sequence[str]) -> str:
    """A function with one body for each combination of constants, of which each is 0 or 1."""
    lines = [head, "{"]
    for chosen, body in zip(product((0, 1), repeat=len(constants)), bodies, strict=True):
        test = " && ".join(f"{name} == {value}" for name, value in zip(constants, chosen, strict=True))
        lines.append(f"  if constexpr ({test}) {body}" if test else f"  {body}")
    return "\n".join([*lines, "}\n"])


def _ptx(dtype: DType) -> str:
    return _PTX.get(dtype, dtype.name)
