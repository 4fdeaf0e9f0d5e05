"""Gradients of interpolation: those of float64, and gathers, never scatters, where sizes are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

from taskmap.compile.early_rules import early_rules
from tests.taskmap.compare import compiled
from tests.taskmap.compile.training.test_work import compilations

HOW: list[dict[str, Any]] = [
    {"scale_factor": 2},
    {"scale_factor": 3},
    {"size": (14, 22)},
    {"size": (13, 5)},
    {"size": (1, 1)},
    {"size": (7, 29)},
    {"size": (97, 100)},
    {"scale_factor": 1.7},
    {"scale_factor": 1.7, "recompute_scale_factor": True},
    {"scale_factor": (0.5, 2.3)},
]
MODES: list[tuple[str, bool | None]] = [
    ("nearest", None), ("nearest-exact", None), ("bilinear", False), ("bilinear", True),
]  # fmt: skip


def resizing(**how: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x, **how)


def results(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """The result and the gradient of x, each with the form that eager gives it."""
    x = x.detach().requires_grad_()
    y = function(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).sin().view(y.shape)
    (gradient,) = torch.autograd.grad(y, x, weights.to(y))
    return y.detach(), gradient


def assert_as_good(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """At most four times eager's error against float64."""
    exact, eager, mine = results(function, x.double()), results(function, x), results(compiled(function), x)
    for a, b, e in zip(mine, eager, exact, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        floor = 16 * torch.finfo(torch.float64).eps * e.abs().max()  # for f64, where eager is the reference
        assert (a - e).abs().max() <= 4 * (b - e).abs().max() + floor


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels"])
@pytest.mark.parametrize(("mode", "aligned"), MODES)
def test_images(mode: str, aligned: bool | None, layout: torch.memory_format) -> None:
    for how in HOW:
        x = torch.randn(2, 3, 7, 11).contiguous(memory_format=layout)
        assert_as_good(resizing(mode=mode, align_corners=aligned, **how), x)


@pytest.mark.parametrize(
    ("mode", "shape"), [("linear", (9,)), ("trilinear", (4, 5, 6)), ("nearest", (9,)), ("nearest-exact", (4, 5, 6))]
)
def test_other_ranks(mode: str, shape: tuple[int, ...]) -> None:
    for how in ({"scale_factor": 2}, {"size": tuple(2 * n + 3 for n in shape)}, {"size": tuple(n - 1 for n in shape)}):
        assert_as_good(resizing(mode=mode, **how), torch.randn(2, 3, *shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    assert_as_good(lambda x: F.interpolate(x, size=(9, 20), mode="bilinear"), torch.randn(2, 3, 7, 11, dtype=dtype))


def test_infinite_gradients_stay_where_they_belong() -> None:
    """No result is read beyond those that an element is a neighbour of, not even with weight zero."""

    def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
        x = torch.zeros(1, 1, 11, requires_grad=True)
        y = function(x)
        g = torch.zeros_like(y)
        g[..., 7] = torch.inf
        return torch.autograd.grad(y, x, g)[0]

    for size in (22, 31, 8):
        for mode in ("linear", "nearest-exact"):
            function = resizing(size=size, mode=mode)
            assert torch.equal(gradient(compiled(function, dynamic=False)), gradient(function))


@pytest.mark.parametrize(("mode", "aligned"), MODES)
@pytest.mark.parametrize("size", [(14, 22), (13, 31)])
def test_no_scatters(mode: str, aligned: bool | None, size: tuple[int, int]) -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Upsample(size, mode=mode, align_corners=aligned))
    _, backward = compilations(module, torch.randn(2, 2, 7, 11))
    assert not [n for n in backward.graph.nodes() if "index_put" in n.op or n.op == "extern"]
    assert {n.op for n in backward.graph.nodes()} & {"upsample_nearest_backward", "upsample_linear_backward"}


def test_symbolic_sizes_are_compiled_once() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="bilinear") * F.interpolate(y, size=x.shape[-1] * 2).mean(1, True)

    counter = CompileCounterWithBackend("taskmap")
    run = torch.compile(function, backend=counter, dynamic=True)
    for n in (5, 7, 11):
        x, y = torch.randn(2, 3, n, n, requires_grad=True), torch.randn(2, 3, n + 1, n + 2, requires_grad=True)
        got, want = (torch.autograd.grad(f(x, y).sin().sum(), (x, y)) for f in (run, function))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert counter.frame_count == 1


def test_other_backends_keep_their_rules() -> None:
    """All that early_rules replaces, which they have while a graph is traced, and after it no longer."""
    linear = (torch.ops.aten.upsample_linear1d, torch.ops.aten.upsample_bilinear2d, torch.ops.aten.upsample_trilinear3d)
    nearest = (f"{name}{d}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for d in (1, 2, 3))
    resizing = [op.vec for op in (*linear, *(getattr(torch.ops.aten, name) for name in nearest))]
    operators = [*resizing, torch.ops.aten._pad_circular.default]
    rules = [dict(op.py_kernels) for op in operators]
    with early_rules():
        assert all(op.py_kernels != before for op, before in zip(operators, rules, strict=True))
    assert [op.py_kernels for op in operators] == rules
    compiled(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"))(torch.randn(1, 1, 3, 3))
    assert [op.py_kernels for op in operators] == rules
