"""Coverage: PyTorch's own samples of its operators, through the importer against eager."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from tests.graph.tracing import assert_equal, trace

SAMPLES = 2
LARGEST = 3000

_NATIVE = """
    abs acos acosh add addcdiv addcmul addmm addmv addr all amax amin aminmax any arange argmax argmin asin asinh
    atan atan2 atanh baddbmm bitwise_and bitwise_not bitwise_or bitwise_xor bmm broadcast_to bool cat ceil chunk
    clamp clamp_max clamp_min clone column_stack constant_pad_nd contiguous copysign cos cosh count_nonzero cross
    cumprod cumsum deg2rad diag diagonal diff digamma div dot double einsum eq erf erfc erfinv exp exp2 expand expm1
    eye fill flatten flip float float_power floor floor_divide fmax fmin fmod frac full_like gather ge gradient gt
    half heaviside hstack hypot index_select inner int isclose isfinite isinf isnan kron le lerp lgamma linspace log
    log10 log1p log2 log_softmax logaddexp logical_and logical_not logical_or logical_xor logit logsumexp long lt
    masked_fill matmul maximum mean meshgrid minimum mm mul mv nan_to_num nansum ne neg new_full new_ones
    new_zeros norm ones_like outer permute pow prod rad2deg reciprocal remainder repeat reshape resolve_conj roll
    rot90 round rsqrt rsub scalar_tensor select select_scatter sgn sigmoid sign signbit sin sinc sinh slice
    slice_scatter softmax split split_with_sizes sqrt square squeeze stack std std_mean sub sum sum_to_size t take
    take_along_dim tan tanh tensordot tile to trace transpose trapezoid tril triu true_divide trunc unbind unflatten
    unfold unsqueeze var var_mean vdot view view_as vstack where xlogy zeros_like linalg.vector_norm linalg.cross
    linalg.multi_dot nn.functional.adaptive_avg_pool2d nn.functional.avg_pool1d nn.functional.avg_pool2d
    nn.functional.avg_pool3d nn.functional.batch_norm nn.functional.celu nn.functional.conv1d nn.functional.conv2d
    nn.functional.conv3d nn.functional.conv_transpose1d nn.functional.conv_transpose2d
    nn.functional.conv_transpose3d nn.functional.cosine_similarity nn.functional.cross_entropy nn.functional.elu
    nn.functional.embedding nn.functional.gelu nn.functional.glu nn.functional.group_norm nn.functional.hardshrink
    nn.functional.hardsigmoid nn.functional.hardswish nn.functional.hardtanh nn.functional.huber_loss
    nn.functional.instance_norm nn.functional.interpolate nn.functional.kl_div nn.functional.l1_loss
    nn.functional.layer_norm nn.functional.leaky_relu nn.functional.linear nn.functional.logsigmoid
    nn.functional.max_pool1d nn.functional.max_pool2d nn.functional.max_pool3d nn.functional.mish
    nn.functional.mse_loss nn.functional.nll_loss nn.functional.normalize nn.functional.pad
    nn.functional.pairwise_distance nn.functional.pixel_shuffle nn.functional.pixel_unshuffle nn.functional.prelu
    nn.functional.relu nn.functional.relu6 nn.functional.rms_norm nn.functional.scaled_dot_product_attention
    nn.functional.selu nn.functional.silu nn.functional.smooth_l1_loss nn.functional.softmin nn.functional.softplus
    nn.functional.softshrink nn.functional.softsign nn.functional.tanhshrink nn.functional.threshold
    nn.functional.unfold nn.functional.upsample_bilinear nn.functional.upsample_nearest softmax
    _native_batch_norm_legit native_layer_norm index_add index_copy index_fill index_put scatter scatter_add
    scatter_reduce index_reduce
"""
NATIVE = _NATIVE.split()
"""Operators whose samples must mostly be native throughout."""

_THROUGH = """
    sort topk cummax masked_scatter bucketize searchsorted median mode histc cholesky
    _upsample_bilinear2d_aa nn.functional.grid_sample
"""
THROUGH_PYTORCH = _THROUGH.split()
"""Operators without a lowering: the result must be correct all the same."""

DTYPES = {"f32": torch.float32, "i64": torch.int64, "bool": torch.bool, "bf16": torch.bfloat16, "f64": torch.float64}
EVERYWHERE = ("f32",)
EXCUSED = (
    "a tensor without elements",  # PyTorch makes those
    "integer division by a tensor",  # a zero in it must raise an error
    "element type complex",
    "windows of a 0-d tensor",
    "the average of i64",
    "an integer power",
    "no taskmap operator: aten.embedding_renorm.default",
    "fractional factors",
    "no taskmap operator: aten.native_dropout.default",
)


def samples(op: Any, dtype: torch.dtype) -> list[Any]:
    """A few small samples of the operator that eager accepts, spread over the whole list."""
    every = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), 100))
    small = [s for s in every if all(size(v) < LARGEST for v in pytree.tree_leaves((s.input, s.args, s.kwargs)))]
    return small[:: max(1, len(small) // SAMPLES)][:SAMPLES]


def size(value: Any) -> int:
    return value.numel() if isinstance(value, torch.Tensor) else 0


def cases() -> list[Any]:
    """Each native operator in single precision and, in turn, in one of the other types: of those, half with --long."""
    others = [name for name in DTYPES if name not in EVERYWHERE]
    chosen = [pytest.param(name, kind) for name in NATIVE for kind in EVERYWHERE]
    for i, name in enumerate(NATIVE):
        marks = [pytest.mark.long] if i // len(others) % 2 else []
        chosen.append(pytest.param(name, others[i % len(others)], marks=marks))
    return chosen


@pytest.mark.parametrize(("name", "kind"), cases())
def test_native(name: str, kind: str) -> None:
    infos: list[Any] = [op for op in op_db if op.name == name]
    infos = [op for op in infos if DTYPES[kind] in op.supported_dtypes("cpu")]
    if not infos:
        return
    run_samples(infos[0], DTYPES[kind], native=True)


@pytest.mark.parametrize("name", THROUGH_PYTORCH)
def test_through_pytorch(name: str) -> None:
    (info, *_) = (op for op in op_db if op.name == name)
    run_samples(info, torch.float32, native=False)


def from_f64(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    """The operator's results in float64, rounded to ``dtype``."""

    def to(values: Any, was: torch.dtype, now: torch.dtype) -> Any:
        def one(x: Any) -> Any:
            return x.to(now) if isinstance(x, torch.Tensor) and x.dtype == was else x

        return pytree.tree_map(one, values)

    wide = to((args, kwargs), dtype, torch.float64)
    return to(op(*wide[0], **wide[1]), torch.float64, dtype)


def run_samples(op: Any, dtype: torch.dtype, native: bool) -> None:
    reasons: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(op, dtype):
            args = (sample.input, *sample.args)
            want = op.op(*args, **sample.kwargs)
            traced = trace(op.op, args, sample.kwargs)
            try:
                assert_equal(traced.outputs, want)
            except AssertionError:
                # On CPUs without bf16, some of PyTorch's operators round every partial sum.
                if dtype != torch.bfloat16:
                    raise
                assert_equal(traced.outputs, from_f64(op.op, args, sample.kwargs, dtype))
            reasons += [f"{n.reason}: {n.target}" for n in traced.externs]
    if native:
        assert [r for r in reasons if not r.startswith(EXCUSED)] == []
    assert not any(r.startswith("its lowering gives") for r in reasons)
