"""Convolution, pooling, attention and norms through the importer against PyTorch, and their gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from taskmap.ir.interp.definitions import Array, evaluate
from tests.graph.importers.test_operators import check, draw
from tests.graph.tracing import Traced, compile_flat

CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 3, 17), (5, 3, 4), {"padding": 2}),
    "1d dilated": ((1, 4, 19), (6, 2, 3), {"dilation": 3, "groups": 2, "stride": 2}),
    "pointwise": ((2, 7, 5, 6), (4, 7, 1, 1), {}),
    "3x3": ((1, 3, 11, 13), (8, 3, 3, 3), {"padding": 1, "stride": 2}),
    "uneven": ((1, 2, 9, 7), (3, 2, 1, 5), {"padding": (0, 2), "stride": (1, 3)}),
    "depthwise": ((2, 6, 8, 8), (6, 1, 3, 3), {"padding": 1, "groups": 6}),
    "depthwise with multiplier": ((1, 3, 8, 8), (6, 1, 3, 3), {"groups": 3, "dilation": 2, "padding": 2}),
    "grouped": ((1, 8, 6, 7), (12, 2, 3, 2), {"groups": 4, "padding": (1, 0)}),
    "same": ((1, 3, 8, 9), (2, 3, 5, 3), {"padding": "same"}),
    "3d": ((1, 2, 5, 6, 7), (4, 2, 3, 3, 2), {"padding": 1, "stride": (1, 2, 2)}),
}
TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 3, 7), (3, 5, 4), {"stride": 3, "padding": 1}),
    "2d": ((1, 4, 5, 6), (4, 3, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "2d dilated": ((1, 4, 5, 6), (4, 2, 3, 2), {"stride": (1, 2), "dilation": 2, "groups": 2}),
    "3d": ((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), {"stride": 2, "padding": (0, 1, 0)}),
}


def convolve(transposed: bool, rank: int) -> Callable[..., torch.Tensor]:
    function: Callable[..., torch.Tensor] = getattr(F, f"conv{'_transpose' if transposed else ''}{rank}d")
    return function


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convolution(name: str, dtype: torch.dtype) -> None:
    shape, weight, options = CONVOLUTIONS[name]
    x, w, b = draw(*shape, dtype=dtype), draw(*weight, dtype=dtype), draw(weight[0], dtype=dtype)
    traced = check(convolve(False, len(shape) - 2), x, w, b, **options)
    (node,) = (n for n in traced.graphs[0].nodes() if n.op == "convolution")
    assert node.attrs["groups"] == options.get("groups", 1)
    assert node.attrs["transposed"] is False
    check(convolve(False, len(shape) - 2), x, w, None, **options)


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution(name: str) -> None:
    shape, weight, options = TRANSPOSED[name]
    channels = weight[1] * options.get("groups", 1)
    check(convolve(True, len(shape) - 2), draw(*shape), draw(*weight), draw(channels), **options)


@pytest.mark.parametrize("fmt", [torch.channels_last, torch.contiguous_format])
def test_convolution_in_channels_last_keeps_the_strides(fmt: torch.memory_format) -> None:
    x = draw(2, 4, 5, 6).contiguous(memory_format=fmt)
    traced = check(lambda x, w: F.conv2d(x, w).relu(), x, draw(3, 4, 2, 2))
    (result,) = traced.graphs[0].outputs
    assert result is not None
    assert result.strides == F.conv2d(x, draw(3, 4, 2, 2)).stride()


def check_gradients(function: Callable[..., Any], *args: Any, native: bool = True, **options: Any) -> Traced:
    """Forward and backward through the importer, against PyTorch's."""
    given = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
    wanted = [a for a in given if a.requires_grad]

    def gradients(call: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
        result = call(*given)
        floats = [r for r in result if r.is_floating_point()]
        total: Any = sum((r * torch.linspace(0.5, 1.5, r.numel()).view_as(r)).sum() for r in floats)
        return torch.autograd.grad(total, wanted)

    def flat(*x: torch.Tensor) -> list[torch.Tensor]:
        made = function(*x, **options)
        return list(made) if isinstance(made, (tuple, list)) else [made]

    traced = Traced()
    compiled, _ = compile_flat(flat, given, {}, traced)
    for got, want in zip(gradients(compiled), gradients(flat), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)
    assert len(traced.graphs) == 2
    assert not (native and traced.externs), [n.reason for n in traced.externs]
    return traced


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_convolution(name: str) -> None:
    shape, weight, options = CONVOLUTIONS[name]
    check_gradients(convolve(False, len(shape) - 2), draw(*shape), draw(*weight), draw(weight[0]), **options)


@pytest.mark.parametrize("name", TRANSPOSED)
def test_gradients_of_transposed_convolution(name: str) -> None:
    shape, weight, options = TRANSPOSED[name]
    channels = weight[1] * options.get("groups", 1)
    check_gradients(convolve(True, len(shape) - 2), draw(*shape), draw(*weight), draw(channels), **options)


MAX_POOLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "plain": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "padded": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "dilated": lambda x: F.max_pool2d(x, 3, 1, 1, dilation=2, return_indices=True),
    "dilated by more": lambda x: F.max_pool2d(x, 2, 3, 1, dilation=3, return_indices=True),
    "ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True, return_indices=True),
    "uneven": lambda x: F.max_pool2d(x, (2, 5), (1, 3), (1, 2), return_indices=True),
    "1d": lambda x: F.max_pool1d(x[0], 3, 2, 1),
}
MEAN_POOLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "plain": lambda x: F.avg_pool2d(x, 2),
    "padded": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "without padding": lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    "ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "ceil without padding": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "divisor": lambda x: F.avg_pool2d(x, (3, 2), divisor_override=5),
    "1d": lambda x: F.avg_pool1d(x[0], 3, 2, 1),
    "3d": lambda x: F.avg_pool3d(x[None], 2, 1, 1, ceil_mode=True, count_include_pad=False),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1),
    "larger than the image": lambda x: F.avg_pool2d(x, 40, ceil_mode=True),
    "larger, several": lambda x: F.avg_pool2d(x, (12, 13), 1, (6, 4), count_include_pad=False),
    "larger, padded": lambda x: F.avg_pool2d(x, (14, 3), (2, 1), (7, 1), ceil_mode=True),
}


@pytest.mark.parametrize("name", MAX_POOLS)
@pytest.mark.parametrize("size", [(7, 11), (8, 9)])
def test_max_pooling(name: str, size: tuple[int, int]) -> None:
    check(MAX_POOLS[name], draw(2, 3, *size))
    x = draw(2, 3, *size)
    x[0, 0], x[1, 2, 3, 4] = -torch.inf, torch.nan
    check(lambda x: MAX_POOLS[name](x)[0], x)
    check_gradients(MAX_POOLS[name], draw(2, 3, *size))


@pytest.mark.parametrize("name", MEAN_POOLS)
@pytest.mark.parametrize("size", [(7, 11), (8, 9)])
def test_mean_pooling(name: str, size: tuple[int, int]) -> None:
    check(MEAN_POOLS[name], draw(2, 3, *size))
    check_gradients(MEAN_POOLS[name], draw(2, 3, *size))


@pytest.mark.parametrize("target", [(3, 5), (2, 3), (4, 6), (7, 11), (9, 13)])
def test_adaptive_pooling(target: tuple[int, int]) -> None:
    check(lambda x: (F.adaptive_avg_pool2d(x, target), F.adaptive_avg_pool1d(x[0], target[0])), draw(2, 3, 8, 12))


ATTENTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "grouped": {"enable_gqa": True, "is_causal": True},
}


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("lengths", [(5, 5), (7, 3), (1, 9)])
def test_attention(name: str, lengths: tuple[int, int]) -> None:
    heads = 2 if name == "grouped" else 6
    q, k, v = draw(2, 6, lengths[0], 8), draw(2, heads, lengths[1], 8), draw(2, heads, lengths[1], 8, seed=1)
    attend = F.scaled_dot_product_attention
    traced = check(attend, q, k, v, **ATTENTIONS[name])
    assert "attention" in {n.op for n in traced.graphs[0].nodes()}
    check(attend, q.bfloat16(), k.bfloat16(), v.bfloat16(), **ATTENTIONS[name])
    check_gradients(attend, q, k, v, **ATTENTIONS[name])


@pytest.mark.parametrize("shape", [(5, 7), (1, 1, 5, 7), (2, 1, 1, 7), (2, 6, 5, 7)])
def test_attention_with_masks(shape: tuple[int, ...]) -> None:
    q, k, v = draw(2, 6, 5, 8), draw(2, 6, 7, 8), draw(2, 6, 7, 8, seed=1)
    allowed = draw(*shape, dtype=torch.bool)
    allowed[..., 0, :] = False
    check(F.scaled_dot_product_attention, q, k, v, allowed)
    added = torch.where(allowed, draw(*shape), -torch.inf)
    traced = check(F.scaled_dot_product_attention, q, k, v, added)
    assert "attention" in {n.op for n in traced.graphs[0].nodes()}


def test_attention_without_batch() -> None:
    check(F.scaled_dot_product_attention, draw(5, 8), draw(7, 8), draw(7, 8, seed=1))
    check(F.scaled_dot_product_attention, draw(2, 5, 8), draw(2, 7, 8), draw(2, 7, 6))


NORMS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "layer": lambda x, w, b: F.layer_norm(x, (6,), w, b),
    "layer over two": lambda x, w, b: F.layer_norm(x, (5, 6)),
    "layer with weight": lambda x, w, b: F.layer_norm(x, (6,), w),
    "rms": lambda x, w, b: F.rms_norm(x, (6,), w, 1e-5),
    "rms by default": lambda x, w, b: F.rms_norm(x, (6,)),
    "group": lambda x, w, b: F.group_norm(x.transpose(1, 3), 3, w, b),
    "instance": lambda x, w, b: F.instance_norm(x),
    "batch": lambda x, w, b: F.batch_norm(x.transpose(1, 3), b.abs(), w.abs() + 1, w, b),
    "batch without affine": lambda x, w, b: F.batch_norm(x.transpose(1, 3), b.abs(), w.abs() + 1),
    "normalize": lambda x, w, b: F.normalize(x, dim=1),
    "cosine": lambda x, w, b: F.cosine_similarity(x, w + x * x, dim=-1),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str) -> None:
    x = draw(4, 3, 5, 6) + 2
    check(NORMS[name], x, draw(6), draw(6, seed=1))
    check(NORMS[name], x.bfloat16(), draw(6).bfloat16(), draw(6, seed=1).bfloat16(), native="rms" not in name)


def test_local_response_norm() -> None:
    check(lambda x: F.local_response_norm(x, 2), draw(4, 3, 5, 6))


@pytest.mark.parametrize("name", ["layer", "layer over two", "layer with weight", "rms", "normalize"])
def test_gradients_of_norms(name: str) -> None:
    check_gradients(lambda x, w, b: NORMS[name](x, w, b) + 0 * (w.sum() + b.sum()), draw(4, 3, 5, 6), draw(6), draw(6))


@pytest.mark.parametrize("momentum", [0.1, 0.7])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_in_training_updates_its_statistics(momentum: float, affine: bool) -> None:
    def function(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        state = mean.clone(), var.clone()
        scale, shift = (w, b) if affine else (None, None)
        return F.batch_norm(x, state[0], state[1], scale, shift, True, momentum), *state

    x, mean, var = draw(5, 3, 4, 7) * 3 + 1, draw(3), draw(3).abs()
    check(function, x, mean, var, draw(3), draw(3, seed=1))
    check_gradients(
        lambda x, w, b, m, v: function(x, m.detach(), v.detach(), w, b)[0] + 0 * (w + b + m + v).sum(),
        *(x, draw(3), draw(3, seed=1), mean, var),
    )


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "cross entropy": F.cross_entropy,
    "smoothed": lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
    "ignoring": lambda x, t: F.cross_entropy(x, t, ignore_index=2, reduction="sum"),
    "likelihood": lambda x, t: F.nll_loss(x.log_softmax(1), t, reduction="none"),
    "squares": lambda x, t: F.mse_loss(x, t[:, None].float()),
    "smooth": lambda x, t: F.smooth_l1_loss(x, t[:, None].float()),
    "huber": lambda x, t: F.huber_loss(x, t[:, None].float()),
    "binary": lambda x, t: F.binary_cross_entropy_with_logits(x, (t[:, None] > 3).float().expand(6, 9)),
    "divergence": lambda x, t: F.kl_div(x.log_softmax(1), x.detach().flip(0).softmax(1), reduction="batchmean"),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    x, t = draw(6, 9), torch.tensor([0, 2, 8, 5, 2, 1])
    check(LOSSES[name], x, t)
    check_gradients(LOSSES[name], x, t)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    **{f.__name__: f for f in (F.silu, F.gelu, F.softplus, F.elu, F.mish, F.hardtanh, F.hardswish, F.hardsigmoid)},
    **{f.__name__: f for f in (F.leaky_relu, F.logsigmoid, torch.tanh, torch.sigmoid, torch.relu, F.selu, F.celu)},
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "glu": F.glu,
    "softmax": lambda x: x.softmax(1),
    "log softmax": lambda x: x.log_softmax(0),
    "prelu": lambda x: F.prelu(x, x[0, :1] * 0 + 0.3),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_of_activations(name: str) -> None:
    check_gradients(ACTIVATIONS[name], draw(7, 10) * 2)


def test_every_definition_stays_in_bounds_at_every_size() -> None:
    """The evaluator refuses a load out of bounds, so evaluating at awkward sizes is the test."""
    for h, w, k, p, s in itertools.product((1, 2, 5), (3, 4), (1, 2, 3), (0, 1), (1, 2)):
        if h + 2 * p < k or 2 * p > k:
            continue
        for pool in (F.max_pool2d, F.avg_pool2d):
            check(lambda x, pool=pool, k=k, s=s, p=p: pool(x, k, s, p), draw(1, 1, h, w))


def test_arrays_are_not_shared_with_the_inputs() -> None:
    traced = check(lambda x: x.transpose(0, 1).contiguous(), draw(3, 4))
    (node,) = (n for n in traced.graphs[0].outputs if n is not None)
    assert node.define is not None
    x: Array = draw(3, 4).numpy()
    evaluate(node.define, [x.T])[:] = 0
    assert x.any()
