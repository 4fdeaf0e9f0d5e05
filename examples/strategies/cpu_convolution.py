"""Convolutions in f32 on a CPU: each core keeps 8 channels of 16 neighbouring pixels in vector registers, and adds one
weight times 16 pixels for each channel and place of the window (Georganas et al., SC 2018)."""

from taskmap.decompose import CORE, LANES, REGISTER, Reduce, Strategy, Task, reduced, stage, tensor
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f32


def convolution(n: Dim, o: Dim, h: Dim, w: Dim, c: Dim, window: tuple[int, int]) -> Task:
    """y[b, o, i, j] = sum over c, r, s of x[b, c, i + r, j + s] * weight[o, c, r, s]; x is padded already."""
    r, s = window
    x, weight = tensor("x", f32[n, c, h + r - 1, w + s - 1]), tensor("weight", f32[o, c, r, s])

    def element(b: Dim, out: Dim, i: Dim, j: Dim) -> Dim:
        return reduced("sum", (c, r, s), lambda k, r, s: x[b, k, i + r, j + s] * weight[out, k, r, s])

    return Task.of("convolution", stage("y", (n, o, h, w), element))


def cpu_convolution(n: Dim, o: Dim, h: Dim, w: Dim, c: Dim, window: tuple[int, int] = (3, 3)) -> Strategy:
    """Results of h×w, for n images and o channels; c channels of the input."""
    return (
        Reduce(convolution(n, o, h, w, c, window))
        .tile(1, 8, 1, 16).to(CORE)
        .accumulate_in(REGISTER)
        .split(1).split(1).split(1).unroll()
        .tile(1, 1, 1, 16)
        .tile(1, 1, 1, 1).to(LANES)
        .done()
    )  # fmt: skip
