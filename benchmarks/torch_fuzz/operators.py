"""Steps without memory of their own to share: pointwise operators, reductions, scans and sorts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.torch_fuzz.scope import Accepts, Scope, any_, boolean, full, integer, number, ranked, real

Write = Callable[[Scope, str], str]


@dataclass(frozen=True, slots=True)
class Operator:
    """Writes one line about a tensor that it accepts: an expression, or a statement if ``results`` is 0."""

    accepts: Accepts
    write: Write
    results: int = 1


def op(accepts: Accepts, write: Write, results: int = 1) -> Operator:
    return Operator(accepts, write, results)


def _call(name: str, accepts: Accepts = real) -> Operator:
    return Operator(accepts, lambda s, x: f"torch.{name}({x})")


def _activation(name: str) -> Operator:
    return Operator(real, lambda s, x: f"F.{name}({x})")


def _binary(name: str, accepts: Accepts = any_) -> Operator:
    return Operator(accepts, lambda s, x: f"torch.{name}({x}, {s.beside(x, accepts)})")


def on(x: str) -> str:
    """The argument that makes a tensor beside ``x``."""
    return f"device={x}.device"


def keep(s: Scope) -> str:
    return s.one_of("", ", keepdim=True")


SCALARS = (2, -1, 0.5, 3, 0, 1.5, 1e-3)

UNARY = [
    *map(_call, ("exp", "sin", "cos", "tanh", "sigmoid", "erf", "atan", "expm1", "log1p", "rsqrt", "sqrt", "log")),
    *map(_call, ("sinh", "asinh", "log2", "exp2", "floor", "ceil", "round", "trunc", "frac", "reciprocal", "tan")),
    *map(_call, ("cosh", "acos", "asin", "atanh", "lgamma", "digamma", "erfc", "erfinv", "log10", "logit")),
    *(_call(name, number) for name in ("abs", "sign", "square", "neg", "positive", "sgn")),
    *(_call(name, any_) for name in ("isnan", "isinf", "isfinite", "logical_not", "nan_to_num")),
    *map(_activation, ("relu", "gelu", "silu", "mish", "softplus", "elu", "hardswish", "leaky_relu", "logsigmoid")),
    *map(_activation, ("hardtanh", "relu6", "selu", "softsign", "tanhshrink", "hardsigmoid", "celu", "softshrink")),
    op(real, lambda s, x: f"F.gelu({x}, approximate='tanh')"),
    op(any_, lambda s, x: f"torch.signbit({x}.nan_to_num())"),  # the sign of a NaN is nobody's
    op(lambda t: not t.dtype.is_floating_point, lambda s, x: f"torch.bitwise_not({x})"),
    op(number, lambda s, x: f"{x}.clamp({s.one_of('-1, 2', 'min=0', 'max=1', '0, 0')})"),
    op(real, lambda s, x: f"{x}.nan_to_num(0.5, 1, -1).clamp(0, 100).to({s.dtype()})"),
    op(lambda t: not t.dtype.is_floating_point, lambda s, x: f"{x}.to({s.dtype()})"),
    op(real, lambda s, x: f"{x}.to({s.one_of('torch.float32', 'torch.float64', 'torch.bfloat16', 'torch.float16')})"),
    op(number, lambda s, x: f"{x} ** {s.one_of(2, 3, 0, 1)}"),
    op(real, lambda s, x: f"{x}.abs() ** {s.one_of(0.5, -0.5, -1, 1.5, -2)}"),
    op(any_, lambda s, x: f"torch.{s.one_of('zeros', 'ones')}_like({x})"),
    op(any_, lambda s, x: f"torch.full_like({x}, {s.one_of(1, 0, 2)})"),
    op(any_, lambda s, x: f"{x}.clone()"),
    op(any_, lambda s, x: f"{x}.contiguous()"),
    op(integer, lambda s, x: f"{x} >> {s.one_of(0, 1, 2)}"),
    op(integer, lambda s, x: f"{x} << {s.one_of(0, 1, 2)}"),
]

BINARY = [
    *(_binary(name) for name in ("add", "mul", "maximum", "minimum", "true_divide", "eq", "ne", "lt", "ge")),
    *(_binary(name) for name in ("logical_and", "logical_or", "logical_xor")),
    *(_binary(name, number) for name in ("sub", "fmax", "fmin", "atan2")),
    *(_binary(name, real) for name in ("hypot", "xlogy", "logaddexp", "nextafter")),
    *(_binary(name, lambda t: not t.dtype.is_floating_point) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")),
    op(number, lambda s, x: f"torch.add({x}, {s.beside(x, number)}, alpha={s.one_of(2, -1, 3)})"),
    op(real, lambda s, x: f"torch.sub({x}, {s.beside(x, number)}, alpha={s.one_of(0.5, -2)})"),
    op(real, lambda s, x: f"torch.copysign({x}, {s.beside(x, real)}.nan_to_num())"),
    op(real, lambda s, x: f"{x} / (abs({s.beside(x, number)}) + 1)"),
    op(number, lambda s, x: f"{x} // ({s.beside(x, number)}.abs().clamp(0, 50) + 1)"),
    op(number, lambda s, x: f"{x} % ({s.beside(x, number)}.abs().clamp(0, 50) + 1)"),
    op(number, lambda s, x: f"torch.fmod({x}, {s.one_of(2, 3, -3, 1.5)})"),
    op(number, lambda s, x: f"torch.remainder({x}, {s.one_of(2, 3, -3, 1.5)})"),
    op(number, lambda s, x: f"{x} {s.one_of('+', '-', '*', '/')} {s.one_of(*SCALARS)}"),
    op(number, lambda s, x: f"{s.one_of(*SCALARS)} {s.one_of('+', '-', '*')} {x}"),
    op(number, lambda s, x: f"{x} {s.one_of('>', '<=', '==', '!=')} {s.one_of(*SCALARS)}"),
    op(any_, lambda s, x: f"torch.where({s.beside(x, boolean)}.bool(), {x}, {s.beside(x)})"),
    op(number, lambda s, x: f"torch.where({s.beside(x, number)} > 0, {x}, {s.one_of(0, 1.5, '-torch.inf')})"),
    op(any_, lambda s, x: f"{x}.masked_fill({s.beside(x, number)} < 0, {s.one_of(0, 1)})"),
    op(real, lambda s, x: f"torch.lerp({x}, {x}.flip({s.axis(x)}), {s.one_of(0.3, 0.5, 1)})"),
    op(real, lambda s, x: f"torch.addcmul({x}, {s.beside(x, real)}.to({x}.dtype), {x}, value={s.one_of(1, 0.5)})"),
    op(real, lambda s, x: f"torch.addcdiv({x}, {x}, {s.beside(x, real)}.to({x}.dtype).abs() + 1)"),
    op(real, lambda s, x: f"{x} * {s.pick()}.shape[0]" if s.dynamic else f"torch.float_power({x}.abs(), 2)"),
    op(real, lambda s, x: f"{x} / ({s.pick()}.numel() + 1)"),
]

REDUCTIONS = [
    op(ranked(1), lambda s, x: f"{x}.{s.one_of('sum', 'prod')}({s.axis(x)}{keep(s)})"),
    op(ranked(1), lambda s, x: f"{x}.sum({s.axes(x)}{keep(s)})"),
    op(any_, lambda s, x: f"{x}.sum()"),
    op(any_, lambda s, x: f"{x}.sum(dtype={s.one_of('torch.float32', 'torch.float64', 'torch.int64')})"),
    op(ranked(1, real), lambda s, x: f"{x}.mean({s.axes(x)}{keep(s)})"),
    op(real, lambda s, x: f"{x}.mean()"),
    op(full(1), lambda s, x: f"{x}.{s.one_of('amax', 'amin')}({s.axes(x)}{keep(s)})"),
    op(full(1), lambda s, x: f"{x}.{s.one_of('max', 'min')}()"),
    op(full(1, real), lambda s, x: f"{x}.{s.one_of('var', 'std')}({s.axes(x)}{keep(s)}, correction={s.one_of(0, 1)})"),
    op(full(1, real), lambda s, x: f"torch.logsumexp({x}, {s.axes(x)}{keep(s)})"),
    op(ranked(1), lambda s, x: f"{x}.{s.one_of('any', 'all')}({s.axis(x)}{keep(s)})"),
    op(any_, lambda s, x: f"{x}.{s.one_of('any', 'all')}()"),
    op(full(1, number), lambda s, x: f"{x}.{s.one_of('argmax', 'argmin')}({s.axis(x)}{keep(s)})"),
    op(full(1, number), lambda s, x: f"{x}.{s.one_of('argmax', 'argmin')}()"),
    op(ranked(1, real), lambda s, x: f"torch.linalg.vector_norm({x}, {s.one_of(1, 2, 3, 'torch.inf')})"),
    op(ranked(1, real), lambda s, x: f"{x}.norm(dim={s.axis(x)}{keep(s)})"),
    op(ranked(1), lambda s, x: f"torch.count_nonzero({x}, {s.axis(x)})"),
    op(ranked(1, real), lambda s, x: f"F.{s.one_of('softmax', 'log_softmax', 'softmin')}({x}, {s.axis(x)})"),
    op(full(1, real), lambda s, x: f"F.normalize({x}, dim={s.axis(x)})"),
    op(full(1), lambda s, x: f"{x}.{s.one_of('cumsum', 'cumprod')}({s.axis(x)})"),
    op(full(1, real), lambda s, x: f"torch.logcumsumexp({x}, {s.axis(x)})"),
    op(full(1, real), lambda s, x: f"{x}.nansum({s.axis(x)})"),
    op(full(1, real), lambda s, x: f"torch.aminmax({x}, dim={s.axis(x)})[{s.one_of(0, 1)}]"),
    op(full(1, number), lambda s, x: f"{x}.{s.one_of('max', 'min', 'cummax')}({s.axis(x)})", 2),
    op(full(1, number), lambda s, x: f"{x}.sort({s.axis(x)}, stable=True, descending={s.one_of(True, False)})", 2),
    op(full(1, number), lambda s, x: f"{x}.sort({s.axis(x)})[0]"),
    op(full(1, real), lambda s, x: f"torch.var_mean({x}, {s.axes(x)}{keep(s)})", 2),
    op(full(1, number), lambda s, x: f"{x}.median({s.axis(x)})[0]"),
    op(full(1, number), lambda s, x: f"{x}.kthvalue(1, {s.axis(x)})[0]"),
    op(full(1, number), lambda s, x: f"{x}.topk(1, {s.axis(x)})[0]"),
]
