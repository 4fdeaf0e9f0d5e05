"""taskmap.simulate: kernels written in script, run with every access checked."""

# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportArgumentType=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

from __future__ import annotations

import numpy as np
import pytest
import torch

import taskmap
from taskmap.ir import repeat, spatial
from taskmap.ir.errors import InputError, InvalidOptionError, SimulationError
from taskmap.ir.nodes import Kernel
from taskmap.ir.script.read import barrier, block, ceil_div, dim, kernel, register, shared, thread
from taskmap.ir.types import bf16, f32

m, n, k = dim("m"), dim("n"), dim("k")


def matmul(*, waits: bool = True, tile: int = 16) -> Kernel:
    """Tiles through shared memory, one element of c for each thread."""
    load = repeat(1, 1) * spatial(tile, tile)

    @kernel(grid=(ceil_div(m, tile), ceil_div(n, tile)), threads=tile * tile)
    def gemm(a: f32[m, k], b: f32[k, n], c: f32[m, n]):
        left, right = shared(f32[tile, tile]), shared(f32[tile, tile])
        acc = register(f32[tile, tile], owner=load, init=0.0)
        row, col = block.x * tile, block.y * tile
        for step in range(ceil_div(k, tile)):
            for i, j in load.on(thread):
                left[i, j] = a[row + i, step * tile + j]
                right[i, j] = b[step * tile + i, col + j]
            barrier()
            for e in range(tile):
                for i, j in load.on(thread):
                    acc[i, j] += left[i, e] * right[e, j]
            if waits:
                barrier()
        for i, j in load.on(thread):
            c[row + i, col + j] = acc[i, j]

    return gemm


def test_a_right_kernel() -> None:
    a, b, c = torch.randn(33, 40), torch.randn(40, 17), torch.full((33, 17), torch.nan)
    found = taskmap.simulate(matmul(), a, b, c)
    assert not found.problems
    assert found.deterministic
    found.check()
    torch.testing.assert_close(c, (a.double() @ b.double()).float(), rtol=1e-5, atol=1e-5)
    assert found.counters["blocks"] == 6
    assert found.counters["barriers"] == 6 * 2 * 3
    assert found.counters["global written"] == 4 * 33 * 17


def test_a_race() -> None:
    a, b, c = (np.ones((32, 32), np.float32) for _ in range(3))
    found = taskmap.simulate(matmul(waits=False), a, b, c)
    assert {p.kind for p in found.problems} == {"race"}
    assert "race: " in str(found)
    with pytest.raises(SimulationError, match="no kernel may do"):
        found.check()


def test_a_table_and_a_roofline() -> None:
    a, b, c = torch.randn(64, 64), torch.randn(64, 64), torch.empty(64, 64)
    found = taskmap.simulate(matmul(), a, b, c, gpu="A100", seeds=[0], policies=["late"])
    text = str(found)
    for part in ("no problems in 1 orders", "16 blocks of 256 threads", "on A100: at least", "bound by"):
        assert part in text
    fast, slow = found.roofline("H200"), found.roofline("T4")
    assert 0 < fast.seconds < slow.seconds
    assert fast.dram_bytes == 3 * 64 * 64 * 4
    with pytest.raises(InvalidOptionError, match="unknown GPU"):
        found.roofline("Voodoo")


def test_an_output_that_is_read_keeps_its_content() -> None:
    @kernel(grid=(1,), threads=8)
    def accumulate(x: bf16[8], y: bf16[8]):
        y[thread] = y[thread] + x[thread]

    x, y = torch.arange(8).bfloat16(), torch.ones(8).bfloat16()
    assert not taskmap.simulate(accumulate, x, y).problems
    assert (y == torch.arange(8).bfloat16() + 1).all()


def test_an_output_that_is_not_written_where_it_is_read_later() -> None:
    @kernel(grid=(1,), threads=8)
    def partial(x: f32[8], y: f32[8]):
        tile = shared(f32[8])
        if thread < 7:
            tile[thread] = x[thread]
        barrier()
        y[thread] = tile[7 - thread]

    found = taskmap.simulate(partial, np.zeros(8, np.float32), np.zeros(8, np.float32))
    assert [p.kind for p in found.problems] == ["uninitialised"]


def test_nothing_to_compute() -> None:
    found = taskmap.simulate(matmul(), torch.empty(0, 4), torch.empty(4, 4), torch.empty(0, 4))
    assert not found.problems
    assert found.runs == 0


def test_refusals() -> None:
    @kernel
    def on_cpu(x: f32[8], y: f32[8]):
        for i in range(8):
            y[i] = x[i]

    with pytest.raises(InputError, match="cannot simulate 'on_cpu'"):
        taskmap.simulate(on_cpu, np.zeros(8, np.float32), np.zeros(8, np.float32))
    with pytest.raises(InputError, match="takes a tensor of f32"):
        taskmap.simulate(matmul(), torch.zeros(4, 4).double(), torch.zeros(4, 4), torch.zeros(4, 4))
