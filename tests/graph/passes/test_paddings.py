"""Borders of zeros become the padding of convolutions, on both sides as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.ops.activations import relu
from taskmap.graph.ops.convolution import convolution, window_of
from taskmap.graph.ops.rearrange import constant_pad
from taskmap.graph.passes.paddings import FoldPaddings
from taskmap.graph.reference import run
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.passes import run_pipeline
from taskmap.ir.types import DType, bf16, f32, i32
from taskmap.report.explain import explain


def given(*shapes: tuple[Dim, ...], dtype: DType = f32) -> list[InputNode]:
    return [InputNode((), shape, dtype, i) for i, shape in enumerate(shapes)]


def folded(inputs: list[InputNode], *outputs: Node) -> list[Node]:
    made = run_pipeline((FoldPaddings(),), Graph(inputs, list(outputs)), verify=True).outputs
    return [n for n in made if n is not None]


def ops_behind(node: Node) -> list[str]:
    return [n.op for n in Graph([], [node]).nodes() if not isinstance(n, InputNode)]


@pytest.mark.parametrize("border", [(0, 1, 0, 1), (1, 2, 0, 3), (2, 2, 2, 2)])
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (3, 2, 2)])
@pytest.mark.parametrize("groups", [1, 4])
def test_a_border_becomes_padding(
    border: tuple[int, ...], stride: int, padding: int, dilation: int, groups: int
) -> None:
    inputs = given((2, 4, 9, 8), (8, 4 // groups, 3, 3))
    x, w = inputs
    y = relu(convolution(constant_pad(x, border), w, [stride], [padding], [dilation], groups=groups))
    (z,) = folded(inputs, y)
    assert ops_behind(z) == ["convolution", "relu"]
    assert z.inputs[0].inputs == (x, w)
    left, right, above, below = (n + padding for n in border)
    assert window_of(z.inputs[0]).pairs == ((above, below), (left, right))
    rng = np.random.default_rng()
    arrays = [rng.standard_normal([size_of(n, {}) for n in i.shape]).astype(np.float32) for i in inputs]
    a, b = (run(Graph(inputs, [n]), arrays)[0] for n in (y, z))
    np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)


def test_two_borders_and_symbolic_sizes() -> None:
    n = Var("n")
    inputs = given((2, 4, n), (8, 4, 3))
    x, w = inputs
    y = convolution(constant_pad(x, (1, 2)), w, [2], [0], [1])
    (z,) = folded(inputs, y)
    assert ops_behind(z) == ["convolution"]
    assert z.shape == y.shape


def test_others_that_read_the_border_keep_it() -> None:
    inputs = given((1, 4, 6, 6), (8, 4, 3, 3))
    x, w = inputs
    wide = constant_pad(x, (0, 1, 0, 1))
    made = folded(inputs, convolution(wide, w, [1], [0], [1]), relu(wide))
    assert [ops_behind(n) for n in made] == [["convolution"], ["constant_pad", "relu"]]


@pytest.mark.parametrize("why", ["value", "negative", "channels", "batch", "transposed", "integers"])
def test_what_is_no_padding_stays(why: str) -> None:
    inputs = given((2, 4, 6, 6), (4, 4, 3, 3), dtype=i32 if why == "integers" else f32)
    x, w = inputs
    borders = {"negative": (0, -1, 0, 1), "channels": (0, 0, 0, 0, 1, 0), "batch": (0, 0, 0, 0, 0, 0, 1, 0)}
    wide = constant_pad(x, borders.get(why, (0, 1, 0, 1)), 1 if why == "value" else 0)
    if why == "channels":
        w = inputs[1] = InputNode((), (4, 5, 3, 3), f32, 1)
    y = convolution(wide, w, [1], [0], [1], transposed=why == "transposed")
    assert folded(inputs, y) == [y]


def test_narrow_floats_too() -> None:
    inputs = given((1, 4, 6, 6), (8, 4, 3, 3), dtype=bf16)
    x, w = inputs
    (z,) = folded(inputs, convolution(constant_pad(x, (0, 1, 0, 1)), w, [2], [0], [1]))
    assert ops_behind(z) == ["convolution"]


class _Padded(torch.nn.Module):
    def __init__(self, channels: int, filters: int, groups: int, stride: int, border: tuple[int, ...]) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(channels, filters, 3, stride, padding=1, groups=groups)
        self.border = border

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """relu(conv(pad(x)))"""
        return torch.relu(self.convolution(torch.nn.functional.pad(x, self.border)))


BORDERS = ((0, 1, 0, 1), (1, 2, 0, 3), (2, 0, 1, 0))


@pytest.mark.parametrize(("channels", "filters", "groups"), [(3, 24, 1), (32, 48, 1), (32, 32, 32), (32, 16, 4)])
@pytest.mark.parametrize("stride", [1, 2])
def test_every_template_of_the_cpu_pads_each_side_as_it_is(
    channels: int, filters: int, groups: int, stride: int
) -> None:
    model = _Padded(channels, filters, groups, stride, BORDERS[(filters + stride) % 3]).eval()
    x = torch.randn(2, channels, 13, 8)
    with torch.no_grad():
        made = torch.compile(model, backend="taskmap", dynamic=False)(x)
        names = [g.roles.anchor or str(g.roles.fused) for g in explain(model, x).groups]
        wanted = model.double()(x.double())
    assert not any("constant_pad" in name for name in names), names
    torch.testing.assert_close(made.double(), wanted, rtol=1e-5, atol=1e-5)
