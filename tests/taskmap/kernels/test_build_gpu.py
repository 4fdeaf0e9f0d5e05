"""Script kernels for GPUs, built for the simulator and called on tensors of the CPU."""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

import numpy as np
import pytest
import torch

import taskmap
from taskmap.errors import CodegenError, IndexOutOfRangeError, InputError, InvalidOptionError, NoDeviceError
from taskmap.ir import repeat, spatial
from taskmap.ir.construct import call, ceil_div
from taskmap.ir.script.read import barrier, block, dim, kernel, register, shared, thread
from taskmap.ir.types import f32, i64

m, n, k = dim("m"), dim("n"), dim("k")
TILE = 8
load = repeat(2, 1) * spatial(4, 8)


@kernel(grid=(ceil_div(m, TILE), ceil_div(n, TILE)), threads=32)
def matmul(a: f32[m, k], b: f32[k, n], c: f32[m, n]):
    tile_a, tile_b = shared(f32[TILE, TILE]), shared(f32[TILE, TILE])
    acc = register(f32[TILE, TILE], owner=spatial(8, 4) * repeat(1, 2), init=0.0)
    row, col = block.x * TILE, block.y * TILE
    for step in range(ceil_div(k, TILE)):
        for i, j in load.on(thread):
            tile_a[i, j] = a[row + i, step * TILE + j]
            tile_b[i, j] = b[step * TILE + i, col + j]
        barrier()
        for kk in range(TILE):
            for i, j in acc.owner.on(thread):
                acc[i, j] += tile_a[i, kk] * tile_b[kk, j]
        barrier()
    for i, j in acc.owner.on(thread):
        c[row + i, col + j] = acc[i, j]


@kernel(grid=(1,), threads=4)
def take(x: f32[n], index: i64[4], y: f32[4]):
    y[thread] = x[call("checked_index", index[thread], n)]


@kernel
def serial(x: f32[n], y: f32[n]):
    for i in range(n):
        y[i] = x[i]


@pytest.fixture(scope="module")
def product(shared_cache):
    return taskmap.build(matmul, "cuda-sim", options={"cache_dir": str(shared_cache)})


def test_a_product_of_any_size(product):
    for shape in ((9, 10, 5), (64, 33, 17), (1, 1, 1)):
        rows, inner, columns = shape
        a, b = torch.randn(rows, inner), torch.randn(inner, columns)
        c = torch.full((rows, columns), torch.nan)
        product(a, b, c)
        torch.testing.assert_close(c, a @ b, rtol=1e-5, atol=1e-5)
    assert "__global__" in product.text
    assert "matmul" in repr(product)


def test_arrays_of_numpy(product):
    a, b = np.random.rand(9, 4).astype(np.float32), np.random.rand(4, 3).astype(np.float32)
    c = np.empty((9, 3), np.float32)
    product(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


def test_a_tensor_at_an_odd_address(product):
    a, b, c = torch.randn(17)[1:].view(4, 4), torch.randn(4, 4), torch.empty(4, 4)
    with pytest.raises(InputError, match=r"takes a tensor at a multiple of 16 bytes as a\n(.*\n)*.*Pass a.clone"):
        product(a, b, c)
    product(a.clone(), b, c)
    torch.testing.assert_close(c, a @ b)


def test_an_index_out_of_range(shared_cache):
    gather = taskmap.build(take, "cuda-sim", options={"cache_dir": str(shared_cache)})
    x, y = torch.randn(10), torch.empty(4)
    gather(x, torch.tensor([0, 9, -1, 3]), y)
    assert torch.equal(y, x[[0, 9, -1, 3]])
    with pytest.raises(IndexOutOfRangeError):
        gather(x, torch.tensor([0, 10, -1, 3]), y)


def test_files_of_every_stage(tmp_path, shared_cache):
    options = {"cache_dir": str(shared_cache), "dump_dir": tmp_path, "gpu": "sm_90a", "verify_passes": True}
    built = taskmap.build(matmul, "cuda-sim", options=options)
    (source,) = tmp_path.rglob("*.cu")
    assert source.read_text().strip() == built.text.strip()
    assert built.resources.registers > 0
    assert built.source.isa == "sm_90a"


def test_what_cannot_be_built():
    with pytest.raises(CodegenError, match="has neither blocks nor threads"):
        taskmap.build(serial, "cuda-sim")
    with pytest.raises(InvalidOptionError, match="target"):
        taskmap.build(matmul, "gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu():
    with pytest.raises(NoDeviceError, match=r"no GPU that PyTorch can use(.|\n)*Use the target 'cuda-sim'"):
        taskmap.build(matmul, "cuda")
