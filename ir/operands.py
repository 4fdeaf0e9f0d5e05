"""What an instruction that is invoked as a statement takes: registers, memory, or values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskmap.ir.types import DType, i64

if TYPE_CHECKING:
    from taskmap.ir.mapping import TaskMapping
    from taskmap.ir.nodes import Scope


@dataclass(frozen=True, slots=True)
class Registers:
    """A tile in the registers of the workers that do it together, each element where ``owner`` puts it.

    access: "r" for what is read, "w" for what is written, "rw" for both.
    """

    dtype: DType
    owner: TaskMapping
    access: str = "r"


@dataclass(frozen=True, slots=True)
class Memory:
    """A tile in memory of ``scope``, ``shape`` elements.

    lanes: which worker gives the address of which part of the tile: a task mapping over the parts, (row, part of the
    row), each of as many neighbouring elements as a row has by parts. None: each worker gives the tile's own address.
    alignment: what each address is a multiple of, in bytes.
    """

    dtype: DType
    shape: tuple[int, ...]
    scope: Scope
    access: str = "r"
    alignment: int = 1
    lanes: TaskMapping | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A scalar; ``constant`` when it has to be known when compiling."""

    dtype: DType = i64
    constant: bool = False


Param = Registers | Memory | Value
