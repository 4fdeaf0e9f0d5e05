"""Corners of arithmetic where compilers are easily and silently wrong: rounding, NaN, infinity, zeros, refusals,
forks."""

from __future__ import annotations

import math
import operator
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from taskmap.torch_backend import compile_fx

NAN, INF = math.nan, math.inf
TINY = 1.1754944e-38
VALUES = [
    *(0.0, INF, NAN, 1e-40, 1e-45, TINY, 3.4e38, 1e38, 88.0, 89.0, 100.0, 104.0, 20.0, 20.1, 50.0, 1e10, 1e20, 1.0),
    *(0.9999999, 2.0, 1e-8, 1e-20, 5.0, 5.5, 6.0, 7.0, 9.0, 10.0, 12.0, 15.0),
]

Function = Callable[..., Any]


def compiled(function: Function) -> Function:
    torch._dynamo.reset()
    result: Function = torch.compile(function, backend=compile_fx, dynamic=False)
    return result


@pytest.mark.parametrize("scale", [1000.0, 0.1, 1e-3])
@pytest.mark.parametrize("size", [768, 77])
def test_a_row_of_equal_numbers_is_normalised_to_zero(scale: float, size: int) -> None:
    """No product of one operator is fused with the sum of another, and the mean of equal numbers is that number."""
    x = torch.rand(5, 1).expand(5, size).contiguous()
    assert not compiled(lambda x: F.layer_norm(x * scale, (size,)))(x).any()
    assert not compiled(lambda x: torch.var(x * scale, -1))(x).any()
    grouped = compiled(lambda x: F.group_norm((x * scale).view(5, 1, size), 1))(x)
    assert not grouped.any()


@pytest.mark.parametrize("shape", [(), (1,), (4, 1), (3, 5)])
@pytest.mark.parametrize("function", [torch.sum, torch.mean, torch.nansum])
def test_a_sum_begins_with_zero(function: Function, shape: tuple[int, ...]) -> None:
    """Of negative zeros, be it one of no dimension, it is no negative zero: atan2 tells them apart."""
    x = torch.full(shape, -0.0)
    assert not torch.signbit(function(x)).any()
    assert not torch.signbit(compiled(lambda x: function(x))(x)).any()


@pytest.mark.parametrize("weight", [None, 0.0])
@pytest.mark.parametrize("norm", ["layer", "group"])
def test_a_norm_without_a_bias_has_the_signs_of_eagers_zeros(norm: str, weight: float | None) -> None:
    """Eager adds a bias of 0, so no zero is negative; an operator such as copysign tells them apart."""

    def normalized(x: torch.Tensor, w: torch.Tensor | None) -> torch.Tensor:
        y = F.layer_norm(x, [4], w) if norm == "layer" else F.group_norm(x, 4, w)
        return torch.copysign(torch.ones_like(y), y)

    x = torch.tensor([[-1.0, 1.0, 2.0, -2.0], [0.5, 0.0, -0.5, 0.0]])
    x = x if norm == "layer" else x[..., None].repeat(1, 1, 3)
    w = None if weight is None else torch.full((4,), weight)
    assert torch.equal(compiled(normalized)(x, w), normalized(x, w))


def test_a_product_is_rounded_before_another_operator_subtracts_from_it() -> None:
    x, y = torch.rand(2, 999) + 1
    assert not compiled(lambda x, y, z: x * y - z)(x, y, x * y).any()
    assert not compiled(lambda x, y, z: (x * y - z).sum(-1))(x.view(9, 111), y.view(9, 111), (x * y).view(9, 111)).any()


def test_an_epilogue_rounds_the_product_of_matrices() -> None:
    a, b, y = torch.rand(33, 40), torch.rand(40, 50), torch.rand(33, 50)
    product = compiled(torch.mm)(a, b)
    assert not compiled(lambda a, b, y, z: torch.mm(a, b) * y - z)(a, b, y, product * y).any()


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e5])
def test_variance_far_from_zero(offset: float) -> None:
    x = torch.randn(7, 300) + offset
    want = x.double().var(-1), x.double().mean(-1)
    for got, eager, exact in zip(
        compiled(lambda x: torch.var_mean(x, -1))(x), torch.var_mean(x, -1), want, strict=True
    ):
        error, allowed = (got - exact).abs().max(), (eager - exact).abs().max()
        assert error <= 4 * allowed + 1e-6 * exact.abs().max()


@pytest.mark.parametrize("size", [1e19, 1e25, 1e35])
def test_deviations_of_numbers_whose_squares_are_no_f32(size: float) -> None:
    """Eager computes variances of f32 in f64; only a result beyond f32's range is infinite."""

    def statistics(x: Tensor) -> list[Tensor]:
        return [x.std(-1), x.var(-1), *torch.std_mean(x, 0), x.std(), x.bfloat16().std(-1)]

    x = torch.randn(6, 70) * size
    for got, want in zip(compiled(statistics)(x), statistics(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5 if want.dtype == torch.float32 else 1e-2, atol=0)


def norms(x: Tensor) -> list[Tensor]:
    grouped = x.view(4, 6, 50)
    return [
        F.layer_norm(x, (300,)),
        F.group_norm(grouped, 2),
        F.batch_norm(grouped, None, None, training=True),
        F.instance_norm(grouped),
        F.rms_norm(x, (300,)),
    ]


@pytest.mark.parametrize("size", [1e10, 1e19, 1e25])
def test_norms_of_large_numbers(size: float) -> None:
    x = torch.randn(4, 300) * size
    for got, want in zip(compiled(norms)(x), norms(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_norms_of_numbers_whose_sum_is_no_f32() -> None:
    x = torch.randn(4, 300)
    x[0, 60], x[2, 70] = 2.55e38, 2.5e38  # of one channel
    for got, want in zip(compiled(norms)(x), norms(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


LONG: dict[str, tuple[Function, tuple[int, ...]]] = {
    "sum": (torch.sum, (1 << 24,)),
    "mean": (torch.mean, (1 << 22,)),
    "dot": (lambda x: torch.dot(x, x), (1 << 22,)),
    "var of all": (torch.var, (1 << 22,)),
    "rows": (lambda x: x.sum(1), (3, 1 << 18)),
    "norms of rows": (lambda x: x.norm(dim=1), (3, 1 << 18)),
    "columns": (lambda x: x.sum(0), (16_384, 37)),
    "variances of columns": (lambda x: x.var(0), (16_384, 37)),
    "columns between": (lambda x: x.mean(1), (3, 16_384, 9)),
    "softmax": (lambda x: x.softmax(1), (3, 1 << 18)),
    "softmax of columns": (lambda x: x.softmax(0), (1 << 16, 5)),
    "gradient of a bias": (lambda x: x.sum((0, 2)), (256, 3, 256)),
    "running": (lambda x: x.cumsum(0), (1 << 16,)),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_long_sums_are_as_exact_as_eagers(dynamic: bool) -> None:
    """Positive numbers, whose rounding errors cannot cancel; half a unit of the last place is unavoidable."""
    torch._dynamo.reset()
    functions = [function for function, _ in LONG.values()]
    program = torch.compile(
        lambda *xs: [f(x) for f, x in zip(functions, xs, strict=True)], backend=compile_fx, dynamic=dynamic
    )
    inputs = [torch.rand(shape) for _, shape in LONG.values()]
    for name, x, got in zip(LONG, inputs, program(*inputs), strict=True):
        function = LONG[name][0]
        exact = function(x.double())
        error, allowed = (((y.double() - exact) / exact).abs().max() for y in (got, function(x)))
        assert error <= max(allowed, 2.0**-23), f"{name}: {error:.2e}, eager {allowed:.2e}"


PRODUCTS: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...]]] = {
    "matrices": (torch.matmul, (7, 65_536), (65_536, 33)),
    "a row": (torch.matmul, (1, 20_000), (20_000, 100)),
    "a column": (torch.matmul, (20, 14_336), (14_336, 1)),
    "two summed axes": (lambda x, y: torch.einsum("abm,abn->mn", x, y), (16, 700, 9), (16, 700, 20)),
    "two summed axes, one long": (lambda x, y: torch.einsum("abm,abn->mn", x, y), (4, 5_000, 9), (4, 5_000, 20)),
    "batches": (torch.bmm, (3, 8, 5_001), (3, 5_001, 17)),
}


CONVOLUTIONS: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...]]] = {
    "of many channels": (lambda x, w: F.conv2d(x, w, padding=1), (1, 2048, 5, 5), (9, 2048, 3, 3)),
    "of a long window": (F.conv1d, (1, 4, 5_000), (4, 4, 4_990)),
    "gradient of weights": (lambda x, w: _of_weights(x, w, F.conv2d), (16, 24, 28, 28), (24, 24, 1, 1)),
    "gradient of weights of a window": (lambda x, w: _of_weights(x, w, F.conv2d), (8, 17, 56, 56), (16, 17, 3, 3)),
}


def _of_weights(x: Tensor, w: Tensor, convolve: Function) -> Tensor:
    w = w.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(convolve(x, w).sum(), w)
    return gradient


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", [*PRODUCTS, *(n for n in CONVOLUTIONS if n.startswith("of"))])
def test_long_products_are_exact(name: str, dynamic: bool) -> None:
    function, *shapes = {**PRODUCTS, **CONVOLUTIONS}[name]
    _as_exact_as_eager(torch.compile(function, backend=compile_fx, dynamic=dynamic), function, *map(torch.rand, shapes))


@pytest.mark.parametrize("name", [n for n in CONVOLUTIONS if n.startswith("gradient")])
def test_long_gradients_of_weights_are_exact(name: str) -> None:
    function, *shapes = CONVOLUTIONS[name]

    def program(x: Tensor, w: Tensor) -> Tensor:
        return _of_weights(x, w, compiled(F.conv2d))

    _as_exact_as_eager(program, function, *map(torch.rand, shapes))


def _as_exact_as_eager(mine: Function, function: Function, x: Tensor, y: Tensor) -> None:
    """Positive numbers; each BLAS splits sums in its own way, so that eager's error alone is not the limit."""
    exact = function(x.double(), y.double())
    error, allowed = (((z.double() - exact) / exact).abs().max() for z in (mine(x, y), function(x, y)))
    assert error <= max(2 * allowed, 2.0**-20), f"{error:.2e}, eager {allowed:.2e}"


NORMS: dict[str, Function] = {
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "layer norm of all": lambda x: F.layer_norm(x, x.shape),
    "group norm": lambda x: F.group_norm(x[None], 1),
    "rms norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "deviation": lambda x: x.std(-1),
    "norm": lambda x: x.norm(dim=-1),
}


@pytest.mark.parametrize("scale", [3e37, 1e36, 1e19, 1e-19, 1e-38, 1e-44])
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_the_largest_and_smallest_elements(name: str, scale: float) -> None:
    """Our result is finite if eager's is, and as near to float64's."""
    function, run = NORMS[name], compiled(NORMS[name])
    for unit in (torch.ones(5, 33), torch.rand(5, 33), torch.randn(5, 33).clamp(-1, 1)):
        x = unit * scale
        want, exact, got = function(x), function(x.double()), run(x)
        finite = want.isfinite()
        assert got[finite].isfinite().all()
        if not finite.any():
            continue
        error, allowed = ((y.double() - exact)[finite].abs() for y in (got, want))
        nothing = 1e-42  # beside 1e-5, which norms add to variances, a few units in the last place of the least numbers
        assert (error <= allowed + 4e-6 * exact[finite].abs().max() + nothing).all()


POOLS: dict[str, tuple[Function, int]] = {
    "1d": (F.max_pool1d, 1),
    "2d": (F.max_pool2d, 2),
    "3d": (F.max_pool3d, 3),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", POOLS)
def test_max_pooling_finds_the_last_nan(name: str, channels_last: bool) -> None:
    pool, rank = POOLS[name]
    x = torch.randn(2, 5, *([9] * rank))
    x[torch.rand_like(x) < 0.3] = NAN
    x[torch.rand_like(x) < 0.3] = -INF
    if channels_last:
        if rank == 1:
            pytest.skip("there is no such format")
        x = x.to(memory_format=torch.channels_last if rank == 2 else torch.channels_last_3d)
    for options in ({"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": 3, "stride": 1, "dilation": 2}):
        values, indices = pool(x, return_indices=True, **options)
        got = compiled(lambda x, o=options: pool(x, return_indices=True, **o))(x)
        torch.testing.assert_close(got[0], values, equal_nan=True)
        torch.testing.assert_close(got[1], indices)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


def assert_attends(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> None:
    got, want = compiled(attention)(q, k, v, mask, causal), attention(q, k, v, mask, causal)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e30])
def test_attention_to_a_key_that_is_no_number(value: float, causal: bool) -> None:
    """The key is in the middle or at the end, where few queries see it if the attention is causal."""
    q, k, v = torch.randn(3, 1, 2, 70, 8)
    for position in (35, 69):
        wild = k.clone()
        wild[0, 0, position, 0] = value
        assert_attends(q, wild, v, causal=causal)


@pytest.mark.parametrize("keys", [20, 300])
def test_attention_with_rows_masked_in_full(keys: int) -> None:
    q, k, v = torch.randn(1, 2, 40, 8), torch.randn(1, 2, keys, 8), torch.randn(1, 2, keys, 8)
    mask = torch.rand(40, keys) > 0.5
    mask[1] = False
    added = torch.where(mask, 0.0, -INF)
    lowest = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    for m in (mask, added, lowest):
        assert_attends(q, k, v, m)
    added[0, 0], lowest[3, 0] = INF, NAN
    assert_attends(q, k, v, added)
    assert_attends(q, k, v, lowest)
    k[0, 0, -1, 0] = NAN
    mask[:, -1] = False
    assert_attends(q, k, v, mask)


ACTIVATIONS: dict[str, Function] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "mish": F.mish,
    "relu": F.relu,
    "relu6": F.relu6,
    "clamp": lambda x: x.clamp(0.0, 1.0),
    "erf": torch.erf,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "exp": torch.exp,
    "log": torch.log,
    "log_sigmoid": F.logsigmoid,
    "hardswish": F.hardswish,
    "elu": F.elu,
    "rsqrt": torch.rsqrt,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_elementary_functions_at_the_edges(dtype: torch.dtype) -> None:
    """Equal to eager's vectors or to eager's scalars, which differ. All values in full vectors and in tails."""
    once = torch.tensor([s * x for x in VALUES for s in (1, -1)], dtype=torch.float64).to(dtype)
    x = torch.cat([once, once.flip(0), once[:7]])
    rtol, atol = {
        torch.float32: (1e-5, 1e-36), torch.float64: (1e-13, 1e-300),
        torch.bfloat16: (8e-3, 1e-36), torch.float16: (2e-3, 1e-6),
    }[dtype]  # fmt: skip
    results = compiled(lambda x: [f(x) for f in ACTIVATIONS.values()])(x)
    for (name, function), got in zip(ACTIVATIONS.items(), results, strict=True):
        vectors = function(x)
        scalars = torch.cat([function(one) for one in once.unsqueeze(1)])
        scalars = torch.cat([scalars, scalars.flip(0), scalars[:7]])
        right = torch.zeros(len(x), dtype=torch.bool)
        exact = function(x.double()).to(dtype)  # where eager's 16-bit floats lose more than their last place
        for want in (vectors, scalars, exact):
            close = torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
            right |= close & ((want != 0) | (got != 0) | (torch.signbit(want) == torch.signbit(got)))
        assert right.all(), f"{name}({x[~right][:5]}) = {got[~right][:5]}, not {vectors[~right][:5]}"


INTEGERS = torch.randint(-9, 9, (37,))
BOOLS = torch.rand(37) > 0.5
FLOATS = torch.randn(37)
ZEROS = torch.zeros(37, dtype=torch.int64)
REFUSED: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "int8 - bool": (operator.sub, (INTEGERS.to(torch.int8), BOOLS)),
    "bool - int": (operator.sub, (BOOLS, INTEGERS)),
    "bool - bool": (operator.sub, (BOOLS, BOOLS)),
    "float - bool": (operator.sub, (FLOATS, BOOLS)),
    "int - True": (lambda x: x - True, (INTEGERS,)),
    "1 - bool": (lambda x: 1 - x, (BOOLS,)),
    "alpha=True": (lambda x: torch.sub(x, x, alpha=True), (FLOATS,)),
    "-bool": (operator.neg, (BOOLS,)),
    "~float": (operator.invert, (FLOATS,)),
    "float << 1": (lambda x: x << 1, (FLOATS,)),
    "int >> float": (operator.rshift, (INTEGERS, FLOATS)),
    "float & float": (operator.and_, (FLOATS, FLOATS)),
    "int // 0": (lambda x: x // 0, (INTEGERS,)),
    "int // zeros": (operator.floordiv, (INTEGERS, ZEROS)),
    "int % zeros": (operator.mod, (INTEGERS, ZEROS)),
    "int fmod 0": (lambda x: torch.fmod(x, 0), (INTEGERS,)),
    "trunc int / zeros": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (INTEGERS, ZEROS)),
    "int ** -1": (lambda x: x**-1, (INTEGERS,)),
    "relu of bools": (F.relu, (BOOLS,)),
    "abs of bools": (torch.abs, (BOOLS,)),
    "ceil of bools": (torch.ceil, (BOOLS,)),
    "gelu of ints": (F.gelu, (INTEGERS,)),
    "silu of ints": (F.silu, (INTEGERS,)),
    "lerp of ints": (lambda x: torch.lerp(x, x, 0.5), (INTEGERS,)),
    "argmax of bools": (torch.argmax, (BOOLS,)),
    "clamp of bools": (lambda x: x.clamp(False, True), (BOOLS,)),
    "frac of ints": (torch.frac, (INTEGERS,)),
    "300 as int8": (lambda x: torch.full_like(x, 300, dtype=torch.int8), (INTEGERS,)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    function, arguments = REFUSED[name]
    with pytest.raises(Exception):  # noqa: B017 (whatever eager raises; torch.compile wraps some of them)
        function(*arguments)
    with pytest.raises(Exception):  # noqa: B017
        compiled(function)(*arguments)


INTEGER_FUNCTIONS: dict[str, Function] = {
    "shifts by the width or more": lambda x: (x << 70, x >> 70, x.int() >> 32, x.to(torch.int8) << 8, x << -1),
    "powers": lambda x: (2 ** x.abs(), (-2) ** x.abs(), x ** x.abs(), x.to(torch.int8) ** 3, 0 ** x.abs()),
    "wrapping": lambda x: (
        x.to(torch.int8) * 57,
        x.to(torch.uint8) + 300,
        -x.to(torch.uint8),
        abs(x.to(torch.int8) - 128),
    ),
    "comparisons": lambda x: (x.to(torch.uint8) > -1, x.to(torch.int8) < 300, x.to(torch.int8) == 0.5),
}


@pytest.mark.parametrize("name", INTEGER_FUNCTIONS)
def test_integers_wrap_as_eager_wraps_them(name: str) -> None:
    function = INTEGER_FUNCTIONS[name]
    for got, want in zip(compiled(function)(INTEGERS), function(INTEGERS), strict=True):
        torch.testing.assert_close(got, want)


FORK = """
import os, time, torch
import torch.nn.functional as F
torch.set_num_threads(4)
x, w = torch.randn(512, 768), torch.randn(768, 768)
f = torch.compile(lambda x: F.gelu(x @ w).softmax(-1), backend="taskmap")
with torch.no_grad():
    y = f(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if f(x).numpy().tobytes() == y.numpy().tobytes() else 3)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
        raise SystemExit("the child hangs")
    assert status == 0, status
    assert torch.equal(f(x), y)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="fork")
@pytest.mark.parametrize("scalar", [-3, -1, -200, 1000])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_a_divisor_is_what_its_type_holds(dtype: torch.dtype, scalar: int) -> None:
    x = torch.tensor([0, 1, 5, 100, 127, 128, 200, 255]).to(dtype)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        rounded = [torch.div(x, scalar, rounding_mode=mode) for mode in ("floor", "trunc")]
        return (torch.fmod(x, scalar), torch.remainder(x, scalar), x // scalar, *rounded)

    for got, want in zip(compiled(function)(x), function(x), strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_a_number_that_its_type_does_not_hold_is_refused(dtype: torch.dtype) -> None:
    x = torch.arange(8).to(dtype)
    functions: list[Function] = [
        lambda x: x.clamp(min=2**33), lambda x: x.clamp(max=2**33), lambda x: x.masked_fill(x > 3, 2**33),
        lambda x: torch.fmod(x, 2**33), lambda x: x // 2**33,
    ]  # fmt: skip
    for function in functions:
        for run in (function, compiled(function)):
            with pytest.raises(RuntimeError):
                run(x)


def test_a_forked_child_runs_kernels() -> None:
    # Compiled calls only: PyTorch's own parallel operators hang or fail in a child, whoever compiled what before.
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
