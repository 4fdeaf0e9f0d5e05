"""Operators through the importer against PyTorch: special values, types, broadcasting, views."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.graph.tracing import Traced, assert_equal, compile_flat, trace

Function = Callable[..., Any]


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == torch.uint8 else -9, 9, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def check(function: Function, *args: Any, native: bool = True, **kwargs: Any) -> Traced:
    """The imported graph gives eager's results; ``native``: without help from PyTorch."""
    traced = trace(function, args, kwargs)
    assert_equal(traced.outputs, function(*args, **kwargs))
    reasons = [(str(n.target), n.reason) for n in traced.externs]
    assert not (native and reasons), reasons
    return traced


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 30.0, -30.0, float("inf"), -float("inf"), float("nan")])
ROW = SPECIAL.repeat(len(SPECIAL))
COLUMN = SPECIAL.repeat_interleave(len(SPECIAL))

UNARY: dict[str, Function] = {
    "relu": torch.relu,
    "abs": torch.abs,
    "sign": torch.sign,
    "round": torch.round,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "signbit": torch.signbit,
    "logical_not": torch.logical_not,
    "nan_to_num": torch.nan_to_num,
    "clamp": lambda x: torch.clamp(x, -1, 2),
    "clamp_min": lambda x: torch.clamp_min(x, 0.5),
    "square": lambda x: x**2,
    "cube": lambda x: x**3,
    "root": lambda x: x**0.5,
    "inverse root": lambda x: x**-0.5,
    "reciprocal": lambda x: x**-1,
    "power": lambda x: x**2.5,
    "exp2": lambda x: 2**x,
    "silu": F.silu,
    "gelu": lambda x: F.gelu(x.clamp(-1e30, 1e30)),  # in single precision PyTorch makes NaN of infinity
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": F.softplus,
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "mish": F.mish,
    "hardtanh": F.hardtanh,
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": F.leaky_relu,
    "logsigmoid": F.logsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.5, 2.0),
    "softsign": F.softsign,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "to bool": lambda x: x.bool(),
    "fmod": lambda x: torch.fmod(x, 2),
    "remainder": lambda x: x % -3,
}


@pytest.mark.parametrize("name", UNARY)
def test_unary_on_special_values(name: str) -> None:
    check(UNARY[name], SPECIAL)
    check(UNARY[name], SPECIAL.double())


BINARY: dict[str, Function] = {
    "add": lambda x, y: torch.add(x, y, alpha=3),
    "sub": torch.sub,
    "rsub": lambda x, y: torch.rsub(x, y, alpha=2),
    "mul": torch.mul,
    "div": torch.div,
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "hypot": torch.hypot,
    "logaddexp": torch.logaddexp,
    "xlogy": torch.xlogy,
    "lt": torch.lt,
    "le": torch.le,
    "eq": torch.eq,
    "ne": torch.ne,
    "logical_and": torch.logical_and,
    "logical_xor": torch.logical_xor,
    "where": lambda x, y: torch.where(x > y, x, y),
    "clamp": lambda x, y: torch.clamp(x, y, y + 1),
    "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.5),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary_on_special_values(name: str) -> None:
    check(BINARY[name], ROW, COLUMN)


@pytest.mark.parametrize("name", BINARY)
def test_binary_broadcasts(name: str) -> None:
    check(BINARY[name], draw(7, 1, 5), draw(3, 1))
    check(BINARY[name], draw(11, 4).t(), draw(1, 11).t().t())
    check(BINARY[name], draw(6, 10)[::2, 1::3], draw())


TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8]
TYPES.append(torch.bool)


@pytest.mark.parametrize(("left", "right"), list(itertools.combinations_with_replacement(TYPES, 2)))
def test_promotion(left: torch.dtype, right: torch.dtype) -> None:
    x, y = draw(3, 4, dtype=left), draw(4, dtype=right)
    point = draw(1, dtype=right)[0]
    number: float = True if right == torch.bool else 2.5 if right.is_floating_point else 3

    def function(x: torch.Tensor, y: torch.Tensor, point: torch.Tensor) -> list[torch.Tensor]:
        parts = [x + y, x * point, point + x, x * number, x == number, torch.where(x > y, x, point), x / 3]
        return [*parts, torch.maximum(x, y), torch.cat([x.flatten(), y])]

    check(function, x, y, point)


INTEGERS: dict[str, Function] = {
    "floor": lambda x: x // 3,
    "floor of negative": lambda x: x // -3,
    "trunc": lambda x: torch.div(x, -4, rounding_mode="trunc"),
    "by minus one": lambda x: torch.div(x, -1, rounding_mode="floor"),
    "remainder": lambda x: x % -3,
    "fmod": lambda x: torch.fmod(x, -3),
    "true division": lambda x: x / 4,
    "power": lambda x: x**5,
    "shifted": lambda x: (x & 6) | 1,
    "not": lambda x: ~x,
    "sum": lambda x: x.sum(),
    "prod": lambda x: x.prod(1),
    "mean": lambda x: x.float().mean(),
    "exp": lambda x: torch.exp(x),
    "amax": lambda x: x.amax(0),
    "argmin": lambda x: x.argmin(1),
    "cumsum": lambda x: x.cumsum(0),
    "any": lambda x: x.any(1),
    "matmul": lambda x: x @ x.t(),
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_integers(name: str, dtype: torch.dtype) -> None:
    check(INTEGERS[name], draw(5, 7, dtype=dtype))


def test_a_sum_of_truths_counts() -> None:
    check(lambda x: ((x > 0).sum(), (x > 0).sum(1), (x > 0).cumsum(0)), draw(5, 7))


def test_integer_division_by_a_tensor_is_left_to_pytorch_which_reports_zeros() -> None:
    x, y = draw(5, dtype=torch.int64), torch.tensor([1, -2, 3, -4, 5])
    traced = check(lambda x, y: (x // y, x % y), x, y, native=False)
    assert all("zero" in n.reason for n in traced.externs)
    compiled, tensors = compile_flat(torch.floor_divide, (x, y * 0), {}, Traced())
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(*tensors)


REDUCTIONS: dict[str, Function] = {
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, -1), keepdim=True)),
    "mean": lambda x: (x.mean(), x.mean(-1), x.mean((0, 1), keepdim=True)),
    "var": lambda x: (x.var(), x.var(1, correction=0), x.std(-1, keepdim=True), x.std(0, correction=2)),
    "var_mean": lambda x: torch.var_mean(x, 1, keepdim=True),
    "extrema": lambda x: (x.amax(1), x.amin((0, 2)), x.max(), x.min()),
    "positions": lambda x: (x.argmax(), x.argmin(1), x.argmax(-1, keepdim=True), *x.max(1), *x.min(0)),
    "truth": lambda x: ((x > 0).any(), (x > 0).all(1), x.any(-1)),
    "logsumexp": lambda x: (x.logsumexp(1), x.logsumexp((0, 2), keepdim=True)),
    "norms": lambda x: tuple(torch.linalg.vector_norm(x, p, dim=1) for p in (0, 1, 2, 3.5, torch.inf, -torch.inf)),
    "prod": lambda x: (x.prod(), x.prod(1, keepdim=True)),
    "prefixes": lambda x: (x.cumsum(1), x.cumprod(-1)),
    "softmax": lambda x: (x.softmax(1), x.log_softmax(-1), x.softmax(0, dtype=torch.float64)),
}


@pytest.mark.parametrize("ord", [-1, 1, 2, 3.5, torch.inf, -torch.inf])
def test_the_norm_of_one_element_is_its_magnitude(ord: float) -> None:
    """Powers of these elements are beyond the type."""
    x = torch.tensor([[1e-30, 1e30, -3.0, torch.inf]])
    norms: tuple[Function, ...] = (
        lambda x: torch.linalg.vector_norm(x, ord, dim=0),
        lambda x: torch.linalg.vector_norm(x, ord, dim=0, keepdim=True, dtype=torch.float64),
        lambda x: torch.linalg.vector_norm(x[0, 1], ord, dim=0),
        lambda x: torch.linalg.vector_norm(x[0, 1], ord),
        lambda x: torch.linalg.vector_norm(x[None, :, 1:2], ord, dim=(0, 2)),
    )
    check(lambda x: tuple(f(x) for f in norms), x)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_reductions(name: str, dtype: torch.dtype) -> None:
    check(REDUCTIONS[name], draw(3, 7, 5, dtype=dtype))
    check(REDUCTIONS[name], draw(5, 11, 4, dtype=dtype).permute(2, 0, 1))


def test_reductions_of_nan_and_ties() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0], [1.0, float("nan"), float("nan"), 9.0], [-float("inf")] * 4])
    check(lambda x: (x.amax(1), x.amin(1), x.argmax(1), x.argmin(1), *x.max(1), x.sum(1), x.logsumexp(1)), x)
    check(lambda x: (x.softmax(1), x.log_softmax(1)), x)


def test_reductions_of_points() -> None:
    check(lambda x: (x.sum(), x.mean(0), x.amax(0), x.argmax(), x.prod()), draw())
    check(lambda x: (x.softmax(0), x.cumsum(0), x.norm(), x.var(correction=0)), draw())
    check(lambda x: (x.any(), x.all(), x.sum()), torch.tensor(True))


VIEWS: dict[str, Function] = {
    "reshape": lambda x: (x.reshape(4, 15), x.reshape(-1, 2), x.flatten(), x.reshape(2, 2, 3, 5), x.reshape(1, 60, 1)),
    "permute": lambda x: (x.permute(2, 0, 1), x.transpose(0, -1), x[0].t(), x.permute(2, 0, 1).reshape(5, 12)),
    "expand": lambda x: (x[:, :1].expand(4, 6, 5), x.unsqueeze(1).expand(4, 2, 3, 5), x.sum().expand(3)),
    "slice": lambda x: (x[1:], x[:, ::2], x[..., -2:], x[:-1, 1:2, 1:4:2]),
    "select": lambda x: (x[0], x[:, -1], x.select(2, 3), x[1, 2, 3]),
    "squeeze": lambda x: (x[:, :1].squeeze(1), x[:, :1].squeeze(), x.squeeze(0), x.unsqueeze(-1)),
    "split": lambda x: (*x.split(2, 2), *x.chunk(2), *x.split([1, 2], 1), *x.unbind(1)),
    "flip": lambda x: (x.flip(0, 2), x.roll(2, 1), x.roll((1, -3), (0, 2)), x.roll(7), x.rot90()),
    "repeat": lambda x: (x.repeat(1, 2, 1), x.repeat(2, 1, 1, 3), x.repeat_interleave(2, 1), x.tile(2)),
    "pad": lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, -1, 0, 2, 3, 0), value=2.5), F.pad(x, (0, 0, -1, -1))),
    "mirror": lambda x: (F.pad(x, (2, 3), "reflect"), F.pad(x, (1, 4), "replicate"), F.pad(x, (2, 1), "circular")),
    "join": lambda x: (torch.cat([x, x[:, :2]], 1), torch.stack([x, x], -1), torch.cat([x, x[:, :0]], 1)),
    "scatter slices": lambda x: (x.slice_scatter(x[:, :2] * 2, 1, 1, 3), x.select_scatter(x[0] + 1, 0, -1)),
    "strided slices": lambda x: x.slice_scatter(x[:, :, :2] + 1, 2, 1, 5, 2),
    "triangles": lambda x: (x.tril(), x.triu(1), x[0].tril(-2), x.diagonal(0, 1, 2), x[0].diagonal(-1), x[0].trace()),
    "windows": lambda x: (x.unfold(2, 3, 2), x.unfold(0, 2, 1)),
    "windows as columns": lambda x: (F.unfold(x, 2, padding=1), F.unfold(x[:, None], (2, 3), 1, (0, 1), (1, 2))),
    "storage": lambda x: ((x + 1).as_strided((3, 4), (2, 5), 7), (x * 2)[0].as_strided((2, 2), (7, 1), 30)),
    "masks": lambda x: (x.masked_fill(x > 0, -1.5), torch.where(x > 0, 1, x)),
    "creation": lambda x: (torch.zeros_like(x), x.new_full((2, 3), 4), torch.eye(3)),
    "ranges": lambda x: (torch.arange(2, 9, 3) + x[0, 0, 0], torch.arange(0.5, 3, 0.25), torch.linspace(0, 1, 7)),
    "meshes": lambda x: torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    check(VIEWS[name], draw(4, 3, 5))
    check(VIEWS[name], draw(4, 3, 5, dtype=torch.int32).float())


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "corners"])
@pytest.mark.parametrize("size", [(9, 14), (4, 7), (5, 3)])
def test_resizing(mode: str, size: Sequence[int]) -> None:
    options: dict[str, Any] = {"mode": "bilinear", "align_corners": True} if mode == "corners" else {"mode": mode}
    check(lambda x: F.interpolate(x, size=size, **options), draw(2, 3, 4, 7))
    check(lambda x: F.interpolate(x, scale_factor=1.7, **options), draw(2, 3, 4, 7))


def test_positions_from_data() -> None:
    x, i = draw(5, 4, 3), torch.tensor([[0, -1], [2, 1]])
    check(lambda x, i: (x[i], x[:, i], x[i, i], x[i, :, i[0]], x[:, i, i], x[:, i[0]]), x, i.clamp(-3, 2))
    j = i.abs().expand(3, 2, 2)
    check(lambda x, j: (x.gather(1, j), x.index_select(2, j[0, 0]), x.take(j[0, 0])), x, j)
    check(lambda w, i: (F.embedding(i, w), F.embedding(i.int(), w, padding_idx=1)), draw(7, 5), i.abs())


def test_scatters_of_one_position() -> None:
    x, i, s = draw(4, 5), torch.tensor([[3], [0], [4], [2]]), draw(4, 1)
    check(lambda x, i, s: (x.scatter(1, i, 2.5), x.scatter(1, i, s), x.scatter_add(1, i, s)), x, i, s)


POSITIONED: dict[str, Function] = {
    "index": lambda x, i: x[i],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i),
    "embedding": lambda x, i: F.embedding(i, x[:, None]),
    "take": lambda x, i: x.take(i),
    "scatter": lambda x, i: x.scatter(0, i, 2.0),
}


@pytest.mark.parametrize("name", POSITIONED)
@pytest.mark.parametrize("position", [5, -6, -1])
def test_a_position_out_of_range_is_reported(name: str, position: int) -> None:
    function, args = POSITIONED[name], (draw(5), torch.tensor([position]))
    if position == -1 and name in ("index", "take"):
        check(function, *args)
        return
    with pytest.raises((IndexError, RuntimeError)):
        function(*args)
    compiled, tensors = compile_flat(function, (args[0], args[1] * 0), {}, Traced())
    compiled(*tensors)
    with pytest.raises(IndexError):
        compiled(*args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products(dtype: torch.dtype) -> None:
    a, b, c = draw(7, 11, dtype=dtype), draw(11, 5, dtype=dtype), draw(5, dtype=dtype)
    check(lambda a, b, c: (a @ b, torch.addmm(c, a, b), torch.addmm(c, a, b, beta=0.5, alpha=2)), a, b, c)
    check(lambda a, b, c: (a @ b @ c, b[0] @ c, torch.addmm(c * torch.nan, a, b, beta=0)), a, b, c)
    check(lambda a, b, c: (F.linear(a.t(), a.t()), F.linear(a, b.t(), c)), a, b, c)
    p, q = draw(2, 3, 5, 7, dtype=dtype), draw(3, 7, 4, dtype=dtype)
    check(lambda p, q: (p @ q, torch.einsum("abij,bjk->abik", p, q), torch.baddbmm(p[0, :, :, :4], p[0], q)), p, q)
