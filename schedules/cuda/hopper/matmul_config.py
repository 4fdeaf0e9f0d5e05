"""Configurations of the matmul template for Hopper, and the quantities derived from them."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.isa.table import instruction_named
from taskmap.schedules.cuda.hopper.tma_descriptor import LINE_BYTES

WARPGROUP = 128
ROWS = 64
"""Rows of one instruction."""
_FETCHING, _BESIDES = 40, 64
"""Registers of a thread that issues TMA copies; registers of a consumer thread beside its sums."""
_TURN = 8
"""The granularity of setmaxnreg."""
_REGISTERS = 1 << 16


@dataclass(frozen=True, slots=True)
class HopperConfig:
    """A block's tile in elements, whose rows ``groups`` warpgroups divide; stages: k-tiles in flight or in use, each
    128 bytes long. group: the number of rows of tiles computed side by side, for reuse in the second-level cache.
    persistent: a block computes tile after tile, one block to a multiprocessor, and the next tile's operands load while
    this tile is finished. boxed: the result goes to memory through shared memory as whole lines, by TMA or, if they are
    not aligned, by threads. split: the number of blocks
    that share the terms of a sum."""

    multiplier: str
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
        """Threads of a block: the consumer warpgroups and one producer."""
        return (self.groups + 1) * WARPGROUP

    @property
    def rows(self) -> int:
        """Rows of one warpgroup."""
        return self.block_m // self.groups

    @property
    def spec(self) -> MatMulSpec:
        """The product of one instruction."""
        spec = instruction_named(self.multiplier).spec
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
        """Shared memory of a block, including barriers."""
        return self.stages * (self.stage_bytes + 16)

    @property
    def sums(self) -> int:
        """Sums of one thread."""
        return self.block_m * self.block_n // (self.groups * WARPGROUP)

    def registers(self, *, by_threads: bool) -> tuple[int, int] | None:
        """(registers of a producer thread, of a consumer thread) that setmaxnreg sets when the block starts; None if
        that is not needed. by_threads: an operand reaches its stage through threads."""
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
        return f"{self.multiplier}, tile={tile}, groups={self.groups}, stages={self.stages}, group={self.group}{more}"
