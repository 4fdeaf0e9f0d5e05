"""Configurations of the template for Hopper: what is free, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.isa.table import instruction_named
from taskmap.schedules.cuda.hopper.tma_descriptor import LINE_BYTES

WARPGROUP = 128
ROWS = 64
"""Rows of one instruction."""
_FETCHING, _BESIDES = 40, 64
"""Registers of a thread that asks the copy engine; of one that multiplies, besides its sums."""
_TURN = 8
"""Registers change hands in multiples of these."""
_REGISTERS = 1 << 16


@dataclass(frozen=True, slots=True)
class HopperConfig:
    """A block's tile in elements, shared among ``groups`` warpgroups by rows; stages: parts of k on their way or at
    work, each 128 bytes long. group: how many rows of tiles are computed side by side, for the second-level cache.
    persistent: a block computes tile after tile, one block to a multiprocessor, and the next tile's factors come while
    this one is finished. boxed: the result goes through shared memory, and by the copy engine to its place. split: how
    many blocks share the terms of a sum."""

    engine: str
    block_m: int
    block_n: int
    groups: int = 2
    stages: int = 4
    group: int = 8
    persistent: bool = False
    boxed: bool = False
    split: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block: the warpgroups that multiply and one that fetches."""
        return (self.groups + 1) * WARPGROUP

    @property
    def rows(self) -> int:
        """Rows of one warpgroup."""
        return self.block_m // self.groups

    @property
    def spec(self) -> MatMulSpec:
        """The product of one instruction."""
        spec = instruction_named(self.engine).spec
        assert isinstance(spec, MatMulSpec)
        return spec

    @property
    def block_k(self) -> int:
        """Terms in a stage."""
        return LINE_BYTES // self.spec.a.bytes

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage."""
        return (self.block_m + self.block_n) * LINE_BYTES

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, barriers among it."""
        return self.stages * (self.stage_bytes + 16)

    @property
    def sums(self) -> int:
        """Sums of one thread."""
        return self.block_m * self.block_n // (self.groups * WARPGROUP)

    def registers(self, *, by_threads: bool) -> tuple[int, int] | None:
        """(registers of a thread that fetches, of one that multiplies), which change hands when the block begins; None
        where they need not. by_threads: whether a factor comes to its stage through threads.
        """
        if self.groups == 1:
            return None
        each = _REGISTERS // self.threads // _TURN * _TURN
        if not by_threads:
            every = each * (self.groups + 1)
            return _FETCHING, (every - _FETCHING) // self.groups // _TURN * _TURN
        wanted = -(-(self.sums + _BESIDES) // _TURN) * _TURN
        return None if wanted <= each else (each - (wanted - each) * self.groups, wanted)

    def __str__(self) -> str:
        tile = f"{self.block_m}x{self.block_n}x{self.block_k}"
        more = ", persistent" * self.persistent + ", boxed" * self.boxed
        more += f", split={self.split}" if self.split > 1 else ""
        return f"{self.engine}, tile={tile}, groups={self.groups}, stages={self.stages}, group={self.group}{more}"
