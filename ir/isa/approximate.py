"""Functions that a GPU computes approximately in one instruction. PTX ISA, "ex2", "rcp"."""

from __future__ import annotations

from taskmap.ir.isa.entry import Instruction, Parameter, Place, at_least
from taskmap.ir.isa.specs import ApproximationSpec
from taskmap.ir.types import f32


def _function(name: str, error: float) -> Instruction:
    return Instruction(
        name=f"{name}_approx",
        spec=ApproximationSpec(name, error),
        targets=at_least("sm_75"),
        text=f"tm_{name}_approx",
        family="approximate",
        parameters=(Parameter("x", Place.VALUE, dtypes=(f32,)),),
        result=f32,
    )


APPROXIMATE: tuple[Instruction, ...] = (_function("exp2", 2.0**-22), _function("reciprocal", 2.0**-23))
