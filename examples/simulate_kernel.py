"""The cost of a CUDA kernel, without a GPU: python examples/simulate_kernel.py [--gpu A100]

Three transpositions of a matrix, each run in the simulator with every access checked and counted: straight through
registers, through a tile of shared memory, and through a tile whose rows are padded.
"""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

import argparse

import torch

import taskmap
from taskmap.ir import repeat, spatial
from taskmap.ir.script.read import barrier, block, ceil_div, dim, kernel, shared, thread
from taskmap.ir.types import f32

m, n = dim("m"), dim("n")
TILE = 32
elements = repeat(4, 1) * spatial(8, TILE)  # 32×32 elements, 256 threads; lanes of a warp are neighbours in a row
tiles = (ceil_div(m, TILE), ceil_div(n, TILE))


@kernel(grid=tiles, threads=256)
def straight(x: f32[m, n], y: f32[n, m]):
    row, col = block.x * TILE, block.y * TILE
    for i, j in elements.on(thread):
        y[col + j, row + i] = x[row + i, col + j]


def through(pitch):
    """The kernel whose tile has rows of ``pitch`` elements."""

    @kernel(grid=tiles, threads=256)
    def tiled(x: f32[m, n], y: f32[n, m]):
        tile = shared(f32[TILE, pitch])
        row, col = block.x * TILE, block.y * TILE
        for i, j in elements.on(thread):
            tile[i, j] = x[row + i, col + j]
        barrier()
        for i, j in elements.on(thread):
            y[col + i, row + j] = tile[j, i]

    return tiled


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="H200", help="H200, A100, T4, ... or an instruction set such as sm_80")
    gpu = parser.parse_args().gpu
    x = torch.randn(100, 70)
    for name, one in (("straight", straight), ("tile", through(TILE)), ("padded tile", through(TILE + 1))):
        y = torch.empty(70, 100)
        found = taskmap.simulate(one, x, y, gpu=gpu)
        found.check()
        assert torch.equal(y, x.T)
        print(f"{name}\n{found}\n")


if __name__ == "__main__":
    main()
