"""Configurations of the matrix-multiplication template: what is free, and what the hardware says about it."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.target import Target
from taskmap.schedules.cuda.support.launch import WARP

_LANES_M, _LANES_N = 4, 8


@dataclass(frozen=True, slots=True)
class MatmulConfig:
    """Tile sizes in elements: of a block, of one warp, and of the part of k that is in shared memory at a time.

    engine: "simt", a thread multiplies and adds; or the name of a tensor-core instruction. stages: tiles of k in shared
    memory at once. group: how many rows of tiles are computed side by side, for the second-level cache. split: how many
    blocks share the terms of a sum.
    """

    engine: str
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
        """What one thread of the "simt" engine computes: the lanes of a warp are 4 × 8."""
        return self.warp_m // _LANES_M, self.warp_n // _LANES_N

    def __str__(self) -> str:
        tile = f"{self.block_m}x{self.block_n}x{self.block_k}"
        split = f", split={self.split}" if self.split > 1 else ""
        warp = f"{self.warp_m}x{self.warp_n}"
        return f"{self.engine}, tile={tile}, warp={warp}, stages={self.stages}, group={self.group}{split}"


def sizes_fit(c: MatmulConfig, target: Target) -> str | None:
    """Why a configuration cannot be, whatever is multiplied; None when it can."""
    if c.block_m % c.warp_m or c.block_n % c.warp_n:
        return f"warps of {c.warp_m}×{c.warp_n} do not divide a block of {c.block_m}×{c.block_n}"
    if c.threads > 1024:
        return f"a block would have {c.threads} threads, and 1024 are the most"
    if c.engine == "simt" and (c.warp_m % _LANES_M or c.warp_n % _LANES_N):
        return f"a warp of 4×8 threads does not divide {c.warp_m}×{c.warp_n}"
    if c.stages < 2:
        return "one stage leaves nothing to fetch while another is multiplied"
    if c.split < 1:
        return f"{c.split} blocks cannot share a sum"
    return None
