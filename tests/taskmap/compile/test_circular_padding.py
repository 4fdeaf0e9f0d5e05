"""Padding around: values, strides and gradients as eager's, and one pass over the result."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from taskmap.compile.session import Compilation, new_session
from taskmap.options import Options
from taskmap.torch_backend import compile_captured
from tests.taskmap.compare import assert_like, compiled

CASES = [
    ((2, 3, 8, 9), (3, 3, 3, 3)), ((2, 3, 8, 9), (0, 1, 2, 0)), ((2, 3, 8, 9), (9, 9, 8, 8)), ((2, 3, 8), (3, 0)),
    ((2, 3, 4, 5, 6), (1, 1, 1, 1, 1, 1)), ((2, 3, 8, 9), (-1, 2, 0, 0)), ((2, 3, 8, 9), (0, 0, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("shape", "pad"), CASES)
def test_as_eager(shape: tuple[int, ...], pad: tuple[int, ...], last: bool) -> None:
    if last and len(shape) != 4:
        return
    x = torch.randn(shape).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    x.requires_grad_()

    def function(x: Tensor) -> Tensor:
        return F.pad(x, pad, "circular")

    got, want = compiled(function)(x), function(x)
    assert_like(got, want, 0, 0)
    weights = torch.randn_like(want)
    assert_like(torch.autograd.grad(got, x, weights), torch.autograd.grad(want, x, weights), 1e-5, 1e-5)


def test_sizes_may_vary() -> None:
    function = compiled(lambda x: F.pad(x, (2, 2, 1, 1), "circular"), dynamic=True)
    for n in (5, 7, 9):
        x = torch.randn(2, 3, n, n + 1)
        assert_like(function(x), F.pad(x, (2, 2, 1, 1), "circular"))


def test_going_round_more_than_once_is_refused_as_in_eager() -> None:
    x = torch.randn(2, 3, 4)
    with pytest.raises(RuntimeError, match="more than once"):
        F.pad(x, (5, 0), "circular")
    with pytest.raises(Exception, match="more than once"):
        compiled(lambda x: F.pad(x, (5, 0), "circular"))(x)


def test_sides_are_written_where_they_belong() -> None:
    """No side is a pass over the whole result: three kernels write its three parts."""
    session = new_session(Options(threads=1))
    session.record = []
    run = torch.compile(
        lambda x: F.pad(x, (3,) * 4, "circular"), backend=lambda gm, given: compile_captured(gm, given, session)
    )
    with torch.no_grad():
        run(torch.randn(2, 3, 32, 32))
    (found,) = [c for c in session.record if isinstance(c, Compilation)]
    assert not [n for n in found.graph.nodes() if n.op == "slice_scatter"]
    assert sorted(n.op for n in found.graph.nodes() if n.op == "cat") == ["cat", "cat"]
