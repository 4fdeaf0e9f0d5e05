"""Exchanges between the lanes of a warp without memory: shuffles, votes, reductions. All 32 lanes take part."""

from __future__ import annotations

from taskmap.ir.isa.entry import Instruction, Parameter, Place, at_least
from taskmap.ir.isa.specs import ShuffleSpec, Spec, VoteSpec, WarpReduceSpec
from taskmap.ir.types import DType, boolean, i32


def _warp(
    name: str, spec: Spec, parameters: tuple[Parameter, ...], result: DType | str, isa: str = "sm_75"
) -> Instruction:
    return Instruction(
        name, spec, at_least(isa), workers=32, text=f"tm_{name}", family="warp", parameters=parameters, result=result
    )


def _shuffle(how: str, by: str) -> Instruction:
    width = Parameter("width", Place.CONSTANT, choices=(2, 4, 8, 16, 32))
    value, other = Parameter("value", Place.VALUE), Parameter(by, Place.VALUE, dtypes=(i32,))
    return _warp(f"shuffle_{how}", ShuffleSpec(how), (width, value, other), "value")


def _vote(name: str, how: str, result: DType) -> Instruction:
    return _warp(name, VoteSpec(how), (Parameter("vote", Place.VALUE, dtypes=(boolean,)),), result)


def _reduce(op: str) -> Instruction:
    value = Parameter("value", Place.VALUE, dtypes=(i32,))
    return _warp(f"warp_reduce_{op}_i32", WarpReduceSpec(op, i32), (value,), i32, "sm_80")


WARP: tuple[Instruction, ...] = (
    _shuffle("idx", "lane"),
    _shuffle("up", "delta"),
    _shuffle("down", "delta"),
    _shuffle("xor", "mask"),
    _vote("vote_any", "any", boolean),
    _vote("vote_all", "all", boolean),
    _vote("ballot", "ballot", i32),
    _warp("elect", VoteSpec("elect"), (), boolean, "sm_90"),
    *(_reduce(op) for op in ("add", "min", "max", "and", "or", "xor")),
)
