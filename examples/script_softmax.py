"""Softmax over rows in script, compiled for this CPU, compared with torch: python examples/script_softmax.py"""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

import argparse
import time

import torch

import taskmap
from taskmap.ir.script.read import dim, exp, kernel, local, maximum, parallel, register, vector
from taskmap.ir.types import f32

LANES = 16
rows, columns = dim("rows"), dim("columns")


@kernel
def softmax(x: f32[rows, columns], y: f32[rows, columns]):
    for i in parallel(rows):
        # Each lane keeps the largest element of every 16th column; the lanes are folded afterwards.
        largest = local(f32[LANES], init=float("-inf"))
        for block in range(columns // LANES):
            for lane in vector(LANES):
                largest[lane] = maximum(largest[lane], x[i, block * LANES + lane])
        top = register(f32[1], init=float("-inf"))
        for lane in range(LANES):
            top[0] = maximum(top[0], largest[lane])
        for j in range(columns // LANES * LANES, columns):
            top[0] = maximum(top[0], x[i, j])

        sums = local(f32[LANES], init=0.0)
        for block in range(columns // LANES):
            for lane in vector(LANES):
                e = exp(x[i, block * LANES + lane] - top[0])
                y[i, block * LANES + lane] = e
                sums[lane] += e
        total = register(f32[1], init=0.0)
        for lane in range(LANES):
            total[0] += sums[lane]
        for j in range(columns // LANES * LANES, columns):
            e = exp(x[i, j] - top[0])
            y[i, j] = e
            total[0] += e

        scale = 1.0 / total[0]
        for block in range(columns // LANES):
            for lane in vector(LANES):
                y[i, block * LANES + lane] *= scale
        for j in range(columns // LANES * LANES, columns):
            y[i, j] *= scale


def best_of(runs, run):
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", type=int, nargs="*", default=[1000, 1003], help="rows columns")
    height, width = parser.parse_args().sizes
    call = taskmap.build(softmax)
    x, y = torch.randn(height, width), torch.full((height, width), torch.nan)
    call(x, y)
    error = (y - torch.softmax(x.double(), 1)).abs().max().item()
    print(f"{height}×{width}: largest error {error:.1e}")
    assert error < 1e-6
    print(f"script  {1e3 * best_of(10, lambda: call(x, y)):6.3f} ms")
    print(f"torch   {1e3 * best_of(10, lambda: torch.softmax(x, 1, out=y)):6.3f} ms")


if __name__ == "__main__":
    main()
