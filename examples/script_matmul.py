"""A matrix product written in script, compiled for this CPU, compared with torch: python examples/script_matmul.py

The kernel says what is computed where; the vector instruction is looked up in the instruction table.
"""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportArgumentType=false
# pyright: reportOptionalMemberAccess=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

import argparse
import time

import torch

import taskmap
from taskmap.ir.script.read import ceil_div, dim, kernel, matmul, minimum, move, parallel, region, register, script
from taskmap.ir.types import f32

ROWS, COLUMNS = 6, 64  # the tile of C that one step holds in registers
m, n, k = dim("m"), dim("n"), dim("k")


@script
def whole_tile(a, b, c, row, column):
    """A tile inside the matrix: an outer product for every k, added up in registers."""
    total = register(f32[ROWS, COLUMNS], init=0.0)
    for kk in range(k):
        matmul(total, region(a, (row, kk), (ROWS, 1)), region(b, (kk, column), (1, COLUMNS)))
    move(region(c, (row, column), (ROWS, COLUMNS)), total)


@script
def part_of_tile(a, b, c, row, column):
    """A tile cut by the edge of the matrix: a product of symbolic size, which lowering divides into smaller tiles."""
    rows, columns = minimum(m - row, ROWS), minimum(n - column, COLUMNS)
    for i in range(rows):
        for j in range(columns):
            c[row + i, column + j] = 0.0
    left, above = region(a, (row, 0), (rows, k)), region(b, (0, column), (k, columns))
    matmul(region(c, (row, column), (rows, columns)), left, above)


@kernel
def product(a: f32[m, k], b: f32[k, n], c: f32[m, n]):
    for block in parallel(ceil_div(n, COLUMNS)):
        for tile in range(ceil_div(m, ROWS)):
            if tile * ROWS + ROWS <= m and block * COLUMNS + COLUMNS <= n:
                whole_tile(a, b, c, tile * ROWS, block * COLUMNS)
            else:
                part_of_tile(a, b, c, tile * ROWS, block * COLUMNS)


def best_of(runs, run):
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", type=int, nargs="*", default=[514, 523, 509], help="m n k")
    rows, columns, depth = parser.parse_args().sizes
    call = taskmap.build(product)
    a, b, c = torch.randn(rows, depth), torch.randn(depth, columns), torch.full((rows, columns), torch.nan)
    call(a, b, c)
    reference = a.double() @ b.double()
    error = ((c - reference).abs().max() / reference.abs().max()).item()
    print(f"{rows}×{depth} times {depth}×{columns}: largest error {error:.1e} of the largest element")
    assert error < 1e-5
    operations = 2e-9 * rows * columns * depth
    print(f"script  {operations / best_of(10, lambda: call(a, b, c)):7.1f} GFLOP/s")
    print(f"torch   {operations / best_of(10, lambda: torch.mm(a, b, out=c)):7.1f} GFLOP/s")


if __name__ == "__main__":
    main()
