"""Register tiles: the sums of every tile stay in registers, as the compiler's text shows."""

from pathlib import Path

import pytest

from taskmap.ir.target import cpu_target
from taskmap.ir.types import f32
from taskmap.schedules import schedule
from taskmap.schedules.cpu.matmul.config import MatmulConfig, registers
from taskmap.schedules.cpu.matmul.microkernel import Tile, tiles
from taskmap.schedules.cpu.matmul.problem import MatmulProblem
from tests.schedules.disassembly import hot_loop, spills

TARGETS = {isa: cpu_target(isa, 1) for isa in ("avx512", "avx2")}


@pytest.mark.parametrize(("isa", "tile"), [(isa, t) for isa, target in TARGETS.items() for t in tiles(target)], ids=str)
def test_no_sum_of_a_tile_is_kept_on_the_stack(isa: str, tile: Tile, tmp_path: Path) -> None:
    """A sum on the stack costs a load and a store in each step, each waiting for the other."""
    target = TARGETS[isa]
    width = target.vector_bytes // 4 * tile.vectors
    p = MatmulProblem(1, 8 * tile.rows, 4 * width, 256, (f32, f32, f32), b=f"packed{width}")
    kernel = schedule(p.task(), target, MatmulConfig(tile, 8 * tile.rows))
    loop = hot_loop(kernel, target, "vfmadd", tmp_path)
    assert spills(loop) == []
    assert sum("vfmadd" in line for line in loop) == tile.rows * tile.vectors


@pytest.mark.parametrize("isa", ["avx512", "avx2", "generic"])
def test_tiles_fit_the_registers(isa: str) -> None:
    target = cpu_target(isa, 1)
    assert all(registers(tile, target) <= target.vector_registers for tile in tiles(target))
