"""Kernels in script, built and called: their results, and the arguments that they refuse."""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportArgumentType=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import taskmap
from taskmap.backend.cpu.team import PARALLEL
from taskmap.ir.algebra.layout import blocked
from taskmap.ir.construct import call
from taskmap.ir.errors import (
    IndexOutOfRangeError,
    InputError,
    InvalidOptionError,
    UnsupportedError,
    VerifyError,
)
from taskmap.ir.nodes import Buffer, Kernel
from taskmap.ir.script.read import dim, kernel, parallel, register, thread
from taskmap.ir.types import ALL_DTYPES, f32, i64

EXAMPLES = Path(__file__).parents[3] / "examples"
n, m = dim("n"), dim("m")


@kernel
def scale(x: f32[n, m], y: f32[n, m]):
    for i in parallel(n):
        for j in range(m):
            y[i, j] = x[i, j] * 2.0


@pytest.fixture(scope="module")
def scaled(shared_cache):
    return taskmap.build(scale, options={"cache_dir": str(shared_cache)})


def test_numpy_and_torch(scaled):
    x = np.random.default_rng().standard_normal((3, 5)).astype(np.float32)
    y = np.full_like(x, np.nan)
    assert scaled(x, y) is None
    np.testing.assert_array_equal(y, x * 2)
    tx, ty = torch.from_numpy(x), torch.full((3, 5), torch.nan)
    scaled(tx, ty)
    assert torch.equal(ty, tx * 2)
    scaled(x, ty)  # the two may be mixed
    assert torch.equal(ty, tx * 2)


def test_sizes_come_from_shapes_and_may_be_given_too(scaled):
    x, y = np.ones((4, 2), np.float32), np.zeros((4, 2), np.float32)
    scaled(x, y, n=4)
    np.testing.assert_array_equal(y, x * 2)
    with pytest.raises(InputError, match=r"two values of n(.|\n)*It is 5 by the argument, and 4 by shape\[0\] of x"):
        scaled(x, y, n=5)
    with pytest.raises(InputError, match=r"two values of n(.|\n)*4 by shape\[0\] of x, and 3 by shape\[0\] of y"):
        scaled(x, y[:3])
    with pytest.raises(InputError, match=r"no size 'k'(.|\n)*sizes are n, m"):
        scaled(x, y, k=4)
    with pytest.raises(InputError, match="takes an int as n"):
        scaled(x, y, n=4.0)


def test_sizes_that_no_shape_gives():
    @kernel
    def head(x: f32[8], y: f32[8], count: i64):
        for i in range(8):
            y[i] = 0.0
        for i in range(count):
            y[i] = x[i]

    built = taskmap.build(head)
    x, y = torch.arange(8.0), torch.empty(8)
    built(x, y, count=3)
    assert y.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]
    with pytest.raises(InputError, match=r"without count(.|\n)*by keyword: count="):
        built(x, y)


def test_strides_of_the_parameter_are_the_argument_s():
    pitch = dim("pitch")

    @kernel
    def transpose(x: f32[n, m].strided(1, n), y: f32[n, m].strided(pitch, 1)):
        for i in range(n):
            for j in range(m):
                y[i, j] = x[i, j]

    built = taskmap.build(transpose)
    x = torch.randn(3, 4)
    wide = torch.zeros(4, 10)
    built(x.t(), wide[:, 2:5])
    assert torch.equal(wide[:, 2:5], x.t())
    assert not wide[:, :2].any()
    assert not wide[:, 5:].any()
    with pytest.raises(InputError, match=r"takes strides \[1, 3\] of x, not \[4, 1\]"):
        built(torch.randn(3, 4), torch.zeros(3, 4))


def test_strides_that_no_element_tells_apart_are_accepted(scaled):
    x, y = torch.randn(1, 4).as_strided((1, 4), (77, 1)), torch.zeros(1, 4)
    scaled(x, y)
    assert torch.equal(y, x * 2)


def test_views_have_their_own_address(scaled):
    storage = np.arange(20, dtype=np.float32)
    y = np.zeros((2, 3), np.float32)
    scaled(storage[7:13].reshape(2, 3), y)
    np.testing.assert_array_equal(y, storage[7:13].reshape(2, 3) * 2)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_type(dtype):
    @kernel
    def copy(x: dtype[n], y: dtype[n]):
        for i in range(n):
            y[i] = x[i]

    torch_type = getattr(torch, {"bf16": "bfloat16", "u8": "uint8", "bool": "bool"}.get(dtype.name) or
                         dtype.name.replace("f", "float").replace("i", "int"))  # fmt: skip
    x = (torch.randn(9) * 4).to(torch_type)
    y = torch.zeros(9, dtype=torch_type)
    taskmap.build(copy)(x, y)
    assert torch.equal(x, y)


def test_an_output_that_is_read_is_updated():
    @kernel
    def increment(y: f32[n]):
        for i in range(n):
            y[i] += 1.0

    y = torch.arange(5.0)
    taskmap.build(increment)(y)
    assert y.tolist() == [1, 2, 3, 4, 5]


def test_autograd_learns_of_the_write(scaled):
    y = torch.zeros(2, 2)
    w = torch.ones(2, 2, requires_grad=True)
    product = w * y
    with torch.no_grad():
        scaled(torch.ones(2, 2), y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_nothing_to_compute(scaled):
    assert scaled(torch.empty(0, 4), torch.empty(0, 4)) is None

    @kernel
    def row_sums(x: f32[n, m], y: f32[n]):
        for i in range(n):
            total = register(f32[1], init=0.0)
            for j in range(m):
                total[0] += x[i, j]
            y[i] = total[0]

    with pytest.raises(InputError, match=r"m = 0(.|\n)*at least 1"):
        taskmap.build(row_sums)(torch.empty(4, 0), torch.empty(4))


def half(x):
    return x[:, ::2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda x, y: (x,), r"takes 2 tensors, not 1(.|\n)*x: f32\[n, m\], y: f32\[n, m\]"),
        (lambda x, y: (x, y, y), "takes 2 tensors, not 3"),
        (lambda x, y: (x, [1.0]), r"argument y is a list(.|\n)*sizes go by keyword"),
        (lambda x, y: (x.double(), y), "takes a tensor of f32 as x, not of f64"),
        (lambda x, y: (x.to(torch.complex64), y), "x has the element type complex64"),
        (lambda x, y: (x.flatten(), y), r"takes a tensor of 2 dimensions as x, not of shape \[16\]"),
        (lambda x, y: (x.t(), y), r"takes strides \[4, 1\] of x, not \[1, 4\](.|\n)*x.contiguous"),
        (lambda x, y: (half(x), y[:, :2]), r"takes strides \[2, 1\] of x, not \[4, 2\]"),
        (lambda x, y: (x.to_sparse(), y), r"x is not plain memory of the CPU(.|\n)*torch.sparse_coo"),
        (lambda x, y: (x.to("meta"), y), r"it is a meta tensor(.|\n)*torch.empty"),
        (lambda x, y: (x.requires_grad_(), y), r"x requires a gradient(.|\n)*torch.no_grad"),
        (lambda x, y: (x, x), "writes to y, which shares memory with x"),
        (lambda x, y: (y[1:], y[:3]), "writes to y, which shares memory with x"),
        (lambda x, y: (x.numpy().astype(">f4"), y), "byte order of another machine"),
        (lambda x, y: (x.numpy(), np.broadcast_to(y.numpy(), (4, 4))), "writes to y"),
        (lambda x, y: (np.zeros((4, 4), "f4,i1")["f0"], y), r"strides of \(20, 5\) bytes"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(scaled, arguments, message):
    x, y = torch.randn(4, 4), torch.zeros(4, 4)
    with pytest.raises(InputError, match=message):
        scaled(*arguments(x, y))
    assert not y.any()


def test_a_gradient_is_no_matter_where_none_is_taken(scaled):
    x, y = torch.randn(2, 3, requires_grad=True), torch.zeros(2, 3)
    with torch.no_grad():
        scaled(x, y)
    assert torch.equal(y, x.detach() * 2)


def test_data_that_indexes_out_of_range_is_reported():
    @kernel
    def gather(x: f32[n], at: i64[m], y: f32[m]):
        for i in range(m):
            y[i] = x[call("checked_index", at[i], n)]

    built = taskmap.build(gather)
    x, y = torch.randn(5), torch.zeros(3)
    built(x, torch.tensor([0, -1, 4]), y)
    assert torch.equal(y, x[[0, -1, 4]])
    with pytest.raises(IndexOutOfRangeError, match="kernel 'gather'"):
        built(x, torch.tensor([0, 5, 4]), y)


def test_what_is_no_kernel_for_a_cpu_is_refused():
    def plain(x):
        return x

    with pytest.raises(InputError, match=r"cannot build plain(.|\n)*Decorate the function with @kernel"):
        taskmap.build(plain)
    with pytest.raises(InputError, match="it is a int"):
        taskmap.build(7)

    @kernel(grid=(4,), threads=32)
    def on_gpu(x: f32[128]):
        x[thread] = 0.0

    with pytest.raises(UnsupportedError, match="blocks of 32 threads"):
        taskmap.build(on_gpu)
    laid_out = Buffer("x", f32, (1, 16, 2, 2), layout=blocked("NCHW16c", 1, 16, 2, 2))
    with pytest.raises(UnsupportedError, match=r"parameter x has the layout blocked\('NCHW16c'"):
        taskmap.build(Kernel("k", (laid_out,), (), (), ()))
    y = Buffer("y", f32, (n,))
    with pytest.raises(VerifyError, match="is not a size of the kernel"):
        taskmap.build(Kernel("k", (y,), (y,), (), ()))


def test_options(tmp_path):
    with pytest.raises(InvalidOptionError, match="'target' cannot be 'tpu'"):
        taskmap.build(scale, "tpu")
    with pytest.raises(InvalidOptionError, match="unknown option 'thread'"):
        taskmap.build(scale, options={"thread": 1})
    options = {"isa": "generic", "threads": 1, "verify_passes": True, "dump_dir": str(tmp_path / "dump")}
    built = taskmap.build(scale, options=options)
    x, y = torch.randn(6, 7), torch.zeros(6, 7)
    built(x, y)
    assert torch.equal(y, x * 2)
    written = sorted(path.name for path in (tmp_path / "dump" / "000_scale").iterdir())
    assert written[0] == "00_kernel.txt"
    assert written[-1].endswith(".c")
    assert PARALLEL in built.c
    assert repr(built) == "<built kernel scale(x: f32[n, m], y: out f32[n, m], n: i64, m: i64)>"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("script_matmul", (13, 75, 9)),
        ("script_matmul", (3, 2, 5)),
        ("script_softmax", (7, 37)),
        ("script_softmax", (2, 3)),
    ],
)
def test_the_examples_run(name, sizes, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, *map(str, sizes)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "largest error" in capsys.readouterr().out
