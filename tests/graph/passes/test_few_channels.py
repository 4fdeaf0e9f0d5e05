"""Images of few channels: zeros fill them up to a vector, and the sums stay the same."""

from __future__ import annotations

import numpy as np
import pytest

from taskmap.graph.analysis.placement import choose_strides
from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.ops.activations import relu
from taskmap.graph.ops.convolution import convolution, window_of
from taskmap.graph.passes.few_channels import FillChannels
from taskmap.graph.reference import run
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.passes import run_pipeline
from taskmap.ir.types import DType, bf16, f16, f32


def given(*shapes: tuple[Dim, ...], dtype: DType = f16) -> list[InputNode]:
    return [InputNode((), shape, dtype, i) for i, shape in enumerate(shapes)]


def filled(inputs: list[InputNode], output: Node) -> Node:
    (made,) = run_pipeline((FillChannels(),), Graph(inputs, [output]), verify=True).outputs
    assert made is not None
    return made


@pytest.mark.parametrize("channels", [3, 5, 7])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "after"), [(1, 0, 1, None), (2, 3, 1, (2, 1)), (1, 1, 2, None)]
)
def test_zeros_fill_a_vector(
    channels: int, stride: int, padding: int, dilation: int, after: tuple[int, int] | None
) -> None:
    inputs = given((2, channels, 9, 8), (16, channels, 3, 2))
    x, w = inputs
    y = relu(convolution(x, w, [stride], [padding], [dilation], padding_after=after))
    z = filled(inputs, y)
    made = z.inputs[0]
    assert [n.shape[1] for n in made.inputs] == [8, 8]
    assert window_of(made) == window_of(y.inputs[0])
    assert z.shape == y.shape
    rng = np.random.default_rng()
    arrays = [rng.integers(-4, 5, [size_of(n, {}) for n in i.shape]).astype(np.float16) for i in inputs]
    a, b = (run(Graph(inputs, [n]), arrays)[0] for n in (y, z))
    np.testing.assert_array_equal(b, a)


def test_a_pixel_is_one_vector_in_memory_whatever_the_order_of_the_image() -> None:
    n = Var("n")
    inputs = given((n, 3, 9, 8), (16, 3, 3, 3), dtype=bf16)
    x, w = inputs
    image = filled(inputs, convolution(x, w, [1], [1], [1])).inputs[0]
    assert image.attrs["stored"]
    assert choose_strides([x, image])[image] == (576, 1, 64, 8)


def test_filled_images_stay() -> None:
    inputs = given((2, 3, 9, 8), (16, 3, 3, 3))
    x, w = inputs
    y = filled(inputs, convolution(x, w, [1], [1], [1]))
    assert filled(inputs, y) is y


@pytest.mark.parametrize(
    ("shape", "kernel", "filters", "groups", "dtype"),
    [
        ((2, 4, 9, 8), 3, 16, 1, f16),
        ((2, 8, 9, 8), 3, 16, 1, f16),
        ((2, 19, 9, 8), 3, 16, 1, f16),
        ((2, 2, 9, 8), 3, 16, 1, f16),
        ((2, 3, 9, 8), 1, 16, 1, f16),
        ((2, 3, 9, 8), 3, 8, 1, f16),
        ((2, 6, 9, 8), 3, 16, 2, f16),
        ((2, 3, 9, 8), 3, 16, 1, f32),
    ],
    ids=["4 channels", "8 channels", "many channels", "2 channels", "one pixel", "few filters", "groups", "f32"],
)
def test_others_stay(shape: tuple[int, ...], kernel: int, filters: int, groups: int, dtype: DType) -> None:
    inputs = given(shape, (filters, shape[1] // groups, kernel, kernel), dtype=dtype)
    x, w = inputs
    y = convolution(x, w, [1], [0], [1], groups=groups)
    assert filled(inputs, y) is y


def test_transposed_convolutions_stay() -> None:
    inputs = given((2, 3, 9, 8), (3, 16, 3, 3))
    x, w = inputs
    y = convolution(x, w, [2], [1], [1], transposed=True)
    assert filled(inputs, y) is y
