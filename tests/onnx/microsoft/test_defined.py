"""ONNX Runtime's operators that its CPU provider lacks, against their definition written in PyTorch, in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from taskmap.ir.errors import TaskmapError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.rival import Array, Case

RANDOM = np.random.default_rng(33)


def f32(*shape: int) -> Array:
    """Normal numbers."""
    return RANDOM.standard_normal(shape).astype(np.float32)


def bias_softmax(data: Tensor, bias: Tensor, axis: int, inner: bool) -> Tensor:
    """Softmax over the dimensions from ``axis`` on, taken as one. An inner bias repeats after its first dimensions."""
    if inner:
        last = data.dim() - axis
        leading = bias.shape[: bias.dim() - last]
        bias = bias.reshape(*leading, *[1] * (axis - len(leading)), *data.shape[axis:])
    return (data + bias).flatten(axis).softmax(-1).reshape(data.shape)


def group_norm(x: Tensor, gamma: Tensor, beta: Tensor, groups: int, silu: bool, last: bool = True) -> Tensor:
    """Channels in the last dimension, or in the second."""
    made = F.group_norm(x.movedim(-1, 1) if last else x, groups, gamma, beta, 1e-5)
    made = F.silu(made) if silu else made
    return made.movedim(1, -1) if last else made


def of_last(x: Tensor, weight: Tensor, bias: Tensor | None, **settings: Any) -> Tensor:
    """A convolution of a tensor with channels last."""
    return F.conv2d(x.movedim(-1, 1), weight, bias, **settings).movedim(1, -1)


X, GAMMA, BETA = f32(2, 5, 3, 8), f32(8), f32(8)
SKIP: dict[str, Array] = {"X": X, "gamma": GAMMA, "beta": BETA}
GROUPS: dict[str, Any] = {"groups": 4, "activation": 1}
IMAGE, KERNEL = f32(2, 7, 6, 4), f32(6, 2, 3, 3)
WINDOW: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 1], "group": 2}
A, B = f32(2, 5, 3), f32(2, 3, 4)
CASES: list[tuple[Case, Callable[..., Any]]] = [
    (
        Case("BiasAdd", {"X": f32(2, 3, 8), "bias": f32(8), "skip": f32(2, 3, 8)}),
        lambda x, bias, skip: x + bias + skip,
    ),
    (
        Case("BiasSplitGelu", {"X": f32(2, 3, 8), "bias": f32(8)}),
        lambda x, bias: (x + bias)[..., :4] * F.gelu((x + bias)[..., 4:]),
    ),
    (Case("BiasDropout", {"data": f32(3, 8), "bias": f32(8)}, name="bare"), lambda x, bias: x + bias),
    (
        Case("BiasDropout", {"data": f32(3, 8), "bias": f32(8), "residual": f32(3, 8)}),
        lambda x, bias, residual: x + bias + residual,
    ),
    (
        Case(
            "BiasSoftmax",
            {"data": f32(2, 3, 4, 5), "bias": f32(2, 1, 1, 5)},
            {"axis": 3, "is_inner_broadcast": 0},
            name="outer",
        ),
        lambda x, bias: bias_softmax(x, bias, 3, False),
    ),
    (
        Case(
            "BiasSoftmax",
            {"data": f32(2, 3, 4, 5), "bias": f32(2, 4, 5)},
            {"axis": 2, "is_inner_broadcast": 1},
            name="inner",
        ),
        lambda x, bias: bias_softmax(x, bias, 2, True),
    ),
    (
        Case("FusedMatMulActivation", {"A": A, "B": B}, {"activation": "LeakyRelu", "activation_alpha": 0.2}),
        lambda a, b: F.leaky_relu(a @ b, 0.2),
    ),
    (
        Case(
            "FusedMatMulActivation",
            {"A": f32(2, 3, 5), "B": B},
            {"activation": "Softmax", "activation_axis": 1, "transA": 1, "alpha": 0.5},
            name="softmax",
        ),
        lambda a, b: (0.5 * a.mT @ b).softmax(1),
    ),
    (Case("GroupNorm", SKIP, GROUPS), lambda x, g, b: group_norm(x, g, b, 4, True)),
    (
        Case(
            "GroupNorm",
            {"X": f32(2, 8, 5, 3), "gamma": GAMMA, "beta": BETA},
            {"groups": 2, "activation": 0, "channels_last": 0},
            name="first",
        ),
        lambda x, g, b: group_norm(x, g, b, 2, False, last=False),
    ),
    (
        Case("SkipGroupNorm", {**SKIP, "skip": f32(2, 5, 3, 8), "bias": f32(8)}, GROUPS, results=2),
        lambda x, g, b, skip, bias: (group_norm(x + skip + bias, g, b, 4, True), x + skip + bias),
    ),
    (
        Case("SkipGroupNorm", {**SKIP, "skip": f32(2, 8)}, GROUPS, name="flat"),
        lambda x, g, b, skip: group_norm(x + skip[:, None, None], g, b, 4, True),
    ),
    (
        Case("NhwcConv", {"X": IMAGE, "W": KERNEL, "B": f32(6)}, WINDOW),
        lambda x, w, b: of_last(x, w, b, stride=(2, 1), padding=1, groups=2),
    ),
    (
        Case(
            "NhwcFusedConv",
            {"X": IMAGE, "W": KERNEL, "B": None, "Z": f32(2, 4, 6, 6)},
            {**WINDOW, "activation": "Relu"},
        ),
        lambda x, w, z: (of_last(x, w, None, stride=(2, 1), padding=1, groups=2) + z).relu(),
    ),
]


@pytest.mark.parametrize(("case", "definition"), CASES, ids=[str(c) for c, _ in CASES])
@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes", "names"])
def test_an_operator(case: Case, definition: Callable[..., Any], symbolic: bool) -> None:
    feeds = case.feeds()
    if symbolic and case.op.startswith("Nhwc"):  # a filter's sizes are part of the model
        case = Case(case.op, case.inputs, case.attributes, case.results, stored=("W", "B"))
    want = definition(*(torch.from_numpy(v).double() for v in feeds.values()))
    ours = load_model(case.model(symbolic), engine=by_definition)({n: feeds[n] for n in case.feeds()})
    for got, exact in zip(ours, want if isinstance(want, tuple) else (want,), strict=True):
        assert got.dtype == np.float32
        assert got.shape == tuple(exact.shape)
        np.testing.assert_allclose(got, exact.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_a_mean_of_quantised_numbers(keepdims: int, kind: Any) -> None:
    bounds = np.iinfo(kind)
    data = RANDOM.integers(bounds.min, bounds.max, (2, 3, 4, 5), endpoint=True).astype(kind)
    scales = {"data_scale": np.float32(0.25), "reduced_scale": np.float32(0.125)}
    points = {"data_zero_point": kind(3), "reduced_zero_point": kind(5)}
    inputs = {
        "data": data,
        **{n: np.array(v) for n, v in (*scales.items(), *points.items())},
    }
    order = ("data", "data_scale", "data_zero_point", "reduced_scale", "reduced_zero_point")
    case = Case(
        "QLinearReduceMean",
        {n: inputs[n] for n in order},
        {"axes": [1, 3], "keepdims": keepdims},
        stored=order[1:],
    )
    mean = ((data.astype(np.float64) - 3) * 0.25).mean((1, 3), keepdims=bool(keepdims))
    want = np.clip(np.rint(mean / 0.125) + 5, bounds.min, bounds.max)
    (got,) = load_model(case.model(), engine=by_definition)(case.feeds())
    assert got.dtype == kind
    assert got.shape == want.shape
    assert np.abs(got.astype(np.float64) - want).max() <= 1  # a tie may round either way


def test_dropout_while_training_is_refused() -> None:
    inputs: dict[str, Array | None] = {
        "data": f32(3, 8),
        "bias": f32(8),
        "residual": None,
        "ratio": np.array(0.5, np.float32),
        "training_mode": np.array(True),
    }
    case = Case("BiasDropout", inputs, stored=("ratio", "training_mode"))
    with pytest.raises(TaskmapError, match="training"):
        load_model(case.model(), engine=by_definition)(case.feeds())
