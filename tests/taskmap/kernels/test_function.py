"""Kernels that are called on tensors: outputs, specialisation, torch.compile, parameters, and refusals."""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportArgumentType=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

import taskmap
from taskmap.decompose import BLOCK, CORE, REGISTER, THREAD, WARP, MatMul, Strategy, param
from taskmap.errors import InputError
from taskmap.ir.nodes import Dim
from taskmap.ir.script.read import block, ceil_div, dim, kernel, parallel, thread
from taskmap.ir.types import DType, f32
from taskmap.tuning.database import Database
from taskmap.tuning.here import database_path

N = dim("n")


@taskmap.kernel
def double(x: f32[N], y: f32[N]):
    for i in parallel(N):
        y[i] = x[i] * 2.0


@taskmap.kernel(grid=ceil_div(N, 32), threads=32)
def triple(x: f32[N], y: f32[N]):
    y[block.x * 32 + thread] = x[block.x * 32 + thread] * 3.0


@taskmap.kernel
def add_to(x: f32[N], y: f32[N]):
    for i in parallel(N):
        y[i] = y[i] + x[i]


@taskmap.kernel(signature="a[..., m, k], b[..., k, n]")
def product(
    m: Dim, n: Dim, k: Dim, a: DType, b: DType, batch: tuple[Dim, ...] = (), rows: int = param("rows", (6, 4))
) -> Strategy:
    """A product on a CPU."""
    return MatMul(m, n, k, a=a, b=b, batch=batch).tile(rows, 32).to(CORE).accumulate_in(REGISTER).split(1).done()


@taskmap.kernel(signature="a[m, k], b[k, n]")
def known_depth(m: Dim, n: Dim, k: int) -> Strategy:
    """A product on a GPU, with a known sum."""
    return (
        MatMul(m, n, k).tile(8, 16).to(BLOCK).accumulate_in(REGISTER).tile(2, 16).to(WARP).tile(1, 1).to(THREAD)
        .split(1).done()
    )  # fmt: skip


def test_outputs_are_allocated() -> None:
    x = torch.randn(1000)
    assert torch.equal(double(x), x * 2)
    array = np.arange(7, dtype=np.float32)
    np.testing.assert_array_equal(double(array), array * 2)
    assert double(torch.randn(0)).shape == (0,)


def test_a_kernel_of_a_gpu_on_a_cpu_is_simulated() -> None:
    x = torch.randn(70)
    assert torch.equal(triple(x), x * 3)


def test_outputs_may_be_given_and_must_be_if_they_are_read() -> None:
    x, y = torch.randn(10), torch.zeros(10)
    assert double(x, y) is y
    assert torch.equal(y, x * 2)
    assert torch.equal(add_to(x, y.clone()), x * 3)
    with pytest.raises(InputError, match=r"reads y, which it writes\n.*Pass all of its tensors: x, y"):
        add_to(x)


def test_types_ranks_and_declared_sizes() -> None:
    a, b = torch.randn(13, 5), torch.randn(5, 40)
    before = len(product._kernels)
    torch.testing.assert_close(product(a, b), a @ b)
    torch.testing.assert_close(product(a[:7].contiguous(), b), a[:7] @ b)
    assert len(product._kernels) == before + 1
    torch.testing.assert_close(product(torch.stack([a, a]), torch.stack([b, -b])), torch.stack([a @ b, -a @ b]))
    torch.testing.assert_close(product(a.double(), b.double(), rows=4), a @ b)
    assert len(product._kernels) == before + 3
    for depth in (3, 5, 3):
        a, b = torch.randn(9, depth), torch.randn(depth, 17)
        torch.testing.assert_close(known_depth(a, b), a @ b)
    assert len(known_depth._kernels) == 2


@pytest.mark.parametrize("backend", ["eager", "taskmap"])
def test_inside_torch_compile(backend: str) -> None:
    a, b = torch.randn(13, 5), torch.randn(5, 40)
    torch._dynamo.reset()
    f = torch.compile(
        lambda a, b: torch.relu(product(a, b, rows=4)).sum(0) + double(b.sum(0)), fullgraph=True, backend=backend
    )
    torch.testing.assert_close(f(a, b), torch.relu(a @ b).sum(0) + 2 * b.sum(0))
    a = torch.randn(21, 5)
    torch.testing.assert_close(f(a, b), torch.relu(a @ b).sum(0) + 2 * b.sum(0))


def test_a_strategy_and_a_kernel_may_be_given() -> None:
    a, b = torch.randn(13, 5), torch.randn(5, 40)
    m, n, k = dim("m"), dim("n"), dim("k")
    tree = MatMul(m, n, k).tile(4, 32).to(CORE).accumulate_in(REGISTER).split(1).done()
    torch.testing.assert_close(taskmap.kernel(tree)(a, b), a @ b)
    torch.testing.assert_close(taskmap.kernel(tree.kernel())(a, b), a @ b)


def test_the_tuned_choice_is_used_and_remembered() -> None:
    a, b = torch.randn(24, 16), torch.randn(16, 64)
    best = product.tune(a, b, seconds=600.0)
    assert best["rows"] in (6, 4)
    with closing(Database(database_path())) as database:
        records = [r for r in database.records() if r.operator.name.endswith(".product")]
        assert {r.config for r in records} == {"rows=6", "rows=4"}
    again = taskmap.kernel(signature="a[..., m, k], b[..., k, n]")(product.make)
    again.module = product.module
    torch.testing.assert_close(again(a, b), a @ b)
    assert next(iter(again._tuned.values())) == best
    assert product.tune(a, b, seconds=600.0) == best  # known: nothing is measured


def test_a_first_call_may_tune() -> None:
    tuned = taskmap.kernel(signature="a[m, k], b[k, n]", tune_seconds=600.0)(_tall)
    a, b = torch.randn(24, 16), torch.randn(16, 64)
    torch.testing.assert_close(tuned(a, b), a @ b)
    (found,) = tuned._tuned.values()
    assert found is not None
    assert found["rows"] in (4, 2)


def _tall(m: Dim, n: Dim, k: Dim, rows: int = param("rows", (4, 0, 2))) -> Strategy:
    """One of the choices is refused."""
    return MatMul(m, n, k).tile(rows, 32).to(CORE).accumulate_in(REGISTER).split(1).done()


REFUSED = {
    "one tensor": (lambda: product(torch.ones(2, 2)), r"takes 2 tensors \(a, b\), not 1"),
    "two sizes": (lambda: product(torch.ones(2, 3), torch.ones(2, 3)), "two values of k: 3 and 2"),
    "no tensor": (lambda: double(), "called without tensors"),
    "a rank": (lambda: known_depth(torch.ones(2, 2, 3), torch.ones(3, 2)), r"takes a\[m, k\], not 3 dimensions"),
    "an argument": (lambda: product(torch.ones(2, 2), torch.ones(2, 2), columns=3), "no argument 'columns'"),
    "a type": (lambda: double(torch.ones(2, dtype=torch.int32)), "takes a tensor of f32 as x, not of i32"),
    "a gradient": (lambda: double(torch.ones(2, requires_grad=True)), "requires a gradient"),
    "no parameters": (lambda: double.tune(torch.ones(2)), "nothing to tune"),
    "no choices": (lambda: param("rows", ()), "cannot have the choices"),
    "equal choices": (lambda: param("rows", (2, 2)), "cannot have the choices"),
    "no signature": (lambda: taskmap.kernel(_tall), "has no signature"),
    "a wrong signature": (lambda: taskmap.kernel(signature="a, b")(_tall), "is not the signature of a tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, says = REFUSED[name]
    with pytest.raises(InputError, match=says):
        call()


def test_a_bare_kernel_that_is_called_says_how() -> None:
    @kernel
    def plain(x: f32[N], y: f32[N]) -> None:
        for i in parallel(N):
            y[i] = x[i]

    with pytest.raises(InputError, match=r"@taskmap\.kernel"):
        plain(torch.ones(3))


def test_in_a_file_of_its_own(tmp_path: Path) -> None:
    """A script function needs its text: that of a file is found, also without future annotations."""
    file = tmp_path / "own.py"
    file.write_text(
        "import taskmap, numpy\nfrom taskmap.ir.script.read import dim, parallel\nfrom taskmap.ir.types import f32\n"
        "n = dim('n')\n@taskmap.kernel\ndef half(x: f32[n], y: f32[n]):\n    for i in parallel(n):\n"
        "        y[i] = x[i] * 0.5\nprint(half(numpy.ones(3, numpy.float32)))\n",
        encoding="utf-8",
    )
    found = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout == "[0.5 0.5 0.5]\n"
