"""Warp-level tensor core products with opaque fragments (WMMA): loaded, multiplied and stored, never inspected.

The documentation says how many elements each lane holds, not which (PTX ISA, "wmma.load"). The owners here are one
possible answer, used consistently by the interpreter and the simulator. The constant operand "layout": 0 row-major,
1 column-major.
"""

from __future__ import annotations

from taskmap.ir.algebra.mapping import TaskMapping, repeat, replicate, spatial
from taskmap.ir.isa.entry import Instruction, Parameter, Place, at_least
from taskmap.ir.isa.mma import registers, types_text
from taskmap.ir.isa.specs import FragmentMoveSpec, MatMulSpec
from taskmap.ir.types import DType, bf16, f16, f32, i8, i32, u8

SHAPES = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
"""(m, n, k)."""

_LAYOUTS = (0, 1)
_STRIDE = Parameter("stride", Place.VALUE, dtypes=(i32,))


def _isa(dtype: DType) -> str:
    return "sm_80" if dtype == bf16 else "sm_75"


def _fragment(operand: str, shape: tuple[int, int, int], dtype: DType) -> TaskMapping:
    """The owner of a fragment. Slots run along k, or along n of c; f16 operands have 16, so lanes share elements."""
    m, n, k = shape
    rows, columns = {"a": (m, k), "b": (n, k), "c": (m, n)}[operand]
    slots = 16 if dtype == f16 and operand != "c" else rows * columns // 32
    across = columns // slots
    if operand == "b":
        return replicate(32 // (rows * across), rank=2) * spatial(across, rows) * repeat(slots, 1)
    return replicate(32 // (rows * across), rank=2) * spatial(rows, across) * repeat(1, slots)


def _shape_text(shape: tuple[int, int, int]) -> str:
    return "m{}n{}k{}".format(*shape)


def _move(operand: str, shape: tuple[int, int, int], dtype: DType, *, store: bool = False) -> Instruction:
    owner = _fragment(operand, shape, dtype)
    verb = "store" if store else f"load_{operand}"
    name = f"wmma_{verb}_{_shape_text(shape)}_{dtype}"
    memory = Parameter("memory", Place.MEMORY, "w" if store else "r", (dtype,), bytes=0)
    fragment = registers("fragment", dtype, owner, "r" if store else "w")
    layout = Parameter("layout", Place.CONSTANT, choices=_LAYOUTS)
    return Instruction(
        name=name,
        spec=FragmentMoveSpec(operand, *shape, dtype, store),
        targets=at_least(_isa(dtype)),
        owner_c=owner,
        workers=32,
        alignment=32,
        text=f"tm_{name}",
        family="wmma",
        parameters=(layout, *((memory, fragment) if store else (fragment, memory)), _STRIDE),
        opaque=True,
    )


def _mma(shape: tuple[int, int, int], dtype: DType, c: DType) -> Instruction:
    owner_c, owner_a, owner_b = (_fragment(*of) for of in (("c", shape, c), ("a", shape, dtype), ("b", shape, dtype)))
    name = f"wmma_mma_{_shape_text(shape)}_{types_text(dtype, dtype, c)}"
    return Instruction(
        name=name,
        spec=MatMulSpec(*shape, dtype, dtype, c),
        targets=at_least(_isa(dtype)),
        owner_c=owner_c,
        owner_a=owner_a,
        owner_b=owner_b,
        workers=32,
        text=f"tm_{name}",
        family="wmma",
        parameters=(
            *(Parameter(f"layout_{operand}", Place.CONSTANT, choices=_LAYOUTS) for operand in "ab"),
            registers("c", c, owner_c, "rw"),
            registers("a", dtype, owner_a),
            registers("b", dtype, owner_b),
        ),
        opaque=True,
    )


WMMA: tuple[Instruction, ...] = (
    *(_move(operand, shape, t) for shape in SHAPES for operand in "ab" for t in (f16, bf16, i8, u8)),
    *(_move("c", shape, t, store=s) for s in (False, True) for shape in SHAPES for t in (f32, f16, i32)),
    *(_mma(shape, t, c) for shape in SHAPES for t, c in ((f16, f32), (f16, f16), (bf16, f32), (i8, i32), (u8, i32))),
)
