"""Configurations of the matmul template, and their limits by the hardware."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.target import GpuTarget
from taskmap.schedules.cuda.support.launch import WARP

_LANES_M, _LANES_N = 4, 8


@dataclass(frozen=True, slots=True)
class MatmulConfig:
    """Tile sizes in elements: of a block, of one warp, and the k extent of a k-tile in shared memory.

    multiplier: "simt" for CUDA cores, or the name of a tensor-core instruction. stages: k-tiles in shared
    memory at once. group: the number of rows of tiles computed side by side, for reuse in the second-level cache.
    split: the number of blocks that share the terms of a sum.
    """

    multiplier: str
    block_m: int
    block_n: int
    block_k: int
    warp_m: int
    warp_n: int
    stages: int = 2
    group: int = 1
    split: int = 1

    @property
    def warps(self) -> tuple[int, int]:
        """Warps along m and n."""
        return self.block_m // self.warp_m, self.block_n // self.warp_n

    @property
    def threads(self) -> int:
        """Threads of a block."""
        down, across = self.warps
        return WARP * down * across

    @property
    def thread_tile(self) -> tuple[int, int]:
        """The tile that one thread of the "simt" multiplier computes: the lanes of a warp are 4 × 8."""
        return self.warp_m // _LANES_M, self.warp_n // _LANES_N

    def __str__(self) -> str:
        tile = f"{self.block_m}x{self.block_n}x{self.block_k}"
        split = f", split={self.split}" if self.split > 1 else ""
        warp = f"{self.warp_m}x{self.warp_n}"
        return f"{self.multiplier}, tile={tile}, warp={warp}, stages={self.stages}, group={self.group}{split}"


def sizes_fit(c: MatmulConfig, target: GpuTarget) -> str | None:
    """The reason why a configuration is invalid for every product, or None."""
    if c.block_m % c.warp_m or c.block_n % c.warp_n:
        return f"warps of {c.warp_m}×{c.warp_n} do not divide a block of {c.block_m}×{c.block_n}"
    if c.threads > 1024:
        return f"a block would have {c.threads} threads, more than the limit of 1024"
    if c.multiplier == "simt" and (c.warp_m % _LANES_M or c.warp_n % _LANES_N):
        return f"a warp of 4×8 threads does not divide {c.warp_m}×{c.warp_n}"
    if c.stages < 2:
        return "a single stage cannot be loaded while it is multiplied"
    if c.split < 1:
        return f"{c.split} blocks cannot share a sum"
    return None


def spec_of(instruction: str) -> MatMulSpec:
    """The product that an mma instruction computes."""
    spec = instruction_named(instruction).spec
    assert isinstance(spec, MatMulSpec)
    return spec
