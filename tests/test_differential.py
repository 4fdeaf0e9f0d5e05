"""Random programs against eager: any dtype, any strides, sizes 0 and 1, all kinds of operators fused at random."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from taskmap.torch_backend import compile_fx
from tests.independent import note

DTYPES = [
    *[torch.float32] * 4,
    *(torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
]
TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-9, torch.bfloat16: 0.06, torch.float16: 0.01}
PROGRAMS = 14

Draw = random.Random
Function = Callable[[Tensor, Tensor, Draw], Tensor]
"""An operator of a tensor of the program, another one that broadcasts with it, and random choices."""


def real(x: Tensor) -> Tensor:
    return x if x.dtype.is_floating_point else x.float()


def weight(x: Tensor, *shape: int) -> Tensor:
    numbers = torch.arange(math.prod(shape), dtype=torch.float64).mul(0.7).sin() / 4
    return numbers.to(x.dtype).reshape(shape)


def rows(x: Tensor) -> Tensor:
    return real(x).reshape(-1, x.shape[-1])


def matrices(x: Tensor) -> Tensor:
    return real(x).reshape(-1, *x.shape[-2:])


def images(x: Tensor) -> Tensor:
    return real(x).reshape(1, 1, -1, x.shape[-1]) if x.dim() < 4 else real(x).reshape(-1, *x.shape[-3:])


def axis(x: Tensor, draw: Draw) -> int:
    return draw.randrange(x.dim())


POINTWISE: list[Function] = [
    lambda x, y, r: -x,
    lambda x, y, r: x.abs().sqrt(),
    lambda x, y, r: x.abs().log1p(),
    lambda x, y, r: x.clamp(max=8).exp(),
    lambda x, y, r: x.tanh() if r.random() < 0.5 else x.sigmoid(),
    lambda x, y, r: F.gelu(real(x)),
    lambda x, y, r: F.relu(x),
    lambda x, y, r: (x * x + 1).rsqrt(),
    lambda x, y, r: x.clamp(1, 3),
    lambda x, y, r: x.clamp(0, 100).to(r.choice(DTYPES)),
    lambda x, y, r: torch.add(x, y, alpha=r.choice([1, 2])),
    lambda x, y, r: x - y,
    lambda x, y, r: x * (y if r.random() < 0.5 else r.choice([2, 0.5])),
    lambda x, y, r: x / (abs(y) + 1),
    lambda x, y, r: x // (abs(y) + 2),
    lambda x, y, r: x % (abs(y) + 2),
    lambda x, y, r: torch.maximum(x, y) if r.random() < 0.5 else torch.minimum(x, y),
    lambda x, y, r: torch.where(x > 0, x, y),
    lambda x, y, r: (x > 0) & (y > 0) | x.isnan(),
    lambda x, y, r: x.abs().clamp(max=5) ** r.choice([2, 3, 0.5]),
    lambda x, y, r: torch.atan2(x, y),
]
REDUCTIONS: list[Function] = [
    lambda x, y, r: x.sum(axis(x, r), keepdim=r.random() < 0.5),
    lambda x, y, r: real(x).mean(axis(x, r), keepdim=r.random() < 0.5),
    lambda x, y, r: x.sum(),
    lambda x, y, r: x.amax(axis(x, r)),
    lambda x, y, r: x.min(axis(x, r))[0],
    lambda x, y, r: real(x).var(axis(x, r)),
    lambda x, y, r: F.softmax(real(x), axis(x, r)),
    lambda x, y, r: torch.logsumexp(real(x), axis(x, r)),
    lambda x, y, r: (x > 0).any(axis(x, r)),
    lambda x, y, r: x.int().argmax(axis(x, r)),
    lambda x, y, r: x.cumsum(axis(x, r)),
    lambda x, y, r: real(x).norm(dim=axis(x, r)),
    lambda x, y, r: F.layer_norm(real(x), real(x).shape[-1:]),
]
VIEWS: list[Function] = [
    lambda x, y, r: x.transpose(0, -1),
    lambda x, y, r: x.reshape(-1, x.shape[-1]),
    lambda x, y, r: x.flatten(),
    lambda x, y, r: x[1:],
    lambda x, y, r: x[..., ::2],
    lambda x, y, r: x.select(axis(x, r), 0),
    lambda x, y, r: x.unsqueeze(axis(x, r)),
    lambda x, y, r: x.unsqueeze(0).expand(3, *x.shape),
    lambda x, y, r: x.flip(axis(x, r)),
    lambda x, y, r: torch.cat([x, x + 1], axis(x, r)),
    lambda x, y, r: x.roll(2, axis(x, r)),
    lambda x, y, r: F.pad(x, (r.randrange(3), r.randrange(3)), value=1),
    lambda x, y, r: x.chunk(2, axis(x, r))[-1],
    lambda x, y, r: x.tril(),
    lambda x, y, r: x.narrow(0, 0, r.randrange(x.shape[0] + 1)),
]
CONTRACTIONS: list[Function] = [
    lambda x, y, r: rows(x) @ rows(x).t(),
    lambda x, y, r: rows(x) @ rows(x)[0],
    lambda x, y, r: F.linear(real(x), weight(real(x), 6, x.shape[-1]), weight(real(x), 6)),
    lambda x, y, r: torch.bmm(matrices(x), matrices(x).transpose(1, 2)),
    lambda x, y, r: F.conv1d(matrices(x), weight(real(x), 4, x.shape[-2], 3), padding=1, stride=r.choice([1, 2])),
    lambda x, y, r: F.conv2d(images(x), weight(real(x), 5, images(x).shape[1], 3, 3), padding=1),
    lambda x, y, r: F.max_pool2d(images(x), 2, padding=1, stride=r.choice([1, 2])),
    lambda x, y, r: F.avg_pool2d(images(x), 2, padding=1),
    lambda x, y, r: F.scaled_dot_product_attention(matrices(x)[None], matrices(x)[None], matrices(x)[None]),
    lambda x, y, r: F.group_norm(matrices(x), 1),
]
KINDS = (POINTWISE, REDUCTIONS, VIEWS, CONTRACTIONS)

Step = tuple[Function, int, int, int]
"""An operator, the values it takes, and the seed of its choices."""


def tensor(draw: Draw, shape: list[int]) -> Tensor:
    """Random numbers, contiguous or not: every other element, permuted or expanded axes."""
    dtype, layout = draw.choice(DTYPES), draw.random()
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    size = [n * 2 if layout < 0.15 else n for n in shape]
    if dtype.is_floating_point:
        x = torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)
    else:
        x = torch.randint(0 if dtype in (torch.uint8, torch.bool) else -9, 10, size, generator=generator).to(dtype)
    if layout < 0.15:
        return x[tuple(slice(None, None, 2) for _ in shape)]
    if layout < 0.3:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    return x.narrow(0, 0, min(1, shape[0])).expand(shape) if layout < 0.36 else x


def run(steps: list[Step], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The value of every step."""
    values = list(inputs)
    for function, a, b, seed in steps:
        x, y = values[a], values[b]
        if torch.broadcast_shapes(x.shape, y.shape) != x.shape:  # type: ignore[no-untyped-call]
            y = x
        values.append(function(x, y, random.Random(seed)))
    return values[len(inputs) :]


def program(seed: int) -> tuple[list[Step], tuple[Tensor, ...]]:
    """Inputs, and steps that eager takes on them."""
    draw = random.Random(seed)
    shape = [
        draw.choice([0, 1, 33] if draw.random() < 0.2 else [2, 3, 4, 5, 8, 16, 17]) for _ in range(draw.randint(1, 4))
    ]
    inputs = tuple(tensor(draw, shape) for _ in range(draw.randint(1, 3)))
    steps: list[Step] = []
    for _ in range(12):
        count = len(inputs) + len(steps)
        a = count - 1 if draw.random() < 0.6 else draw.randrange(count)
        step = (draw.choice(draw.choices(KINDS, [6, 3, 4, 2])[0]), a, draw.randrange(count), draw.randrange(1 << 30))
        try:
            small = run([*steps, step], inputs)[-1].numel() < 20_000
        except (RuntimeError, IndexError, NotImplementedError, ValueError):
            continue
        steps += [step] if small else []
    return steps, inputs


def assert_same(got: Tensor, want: Tensor, tolerance: float) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert not want.numel() or all(
        a == b for a, b, n in zip(got.stride(), want.stride(), want.shape, strict=True) if n > 1
    )
    if not want.dtype.is_floating_point:
        assert torch.equal(got, want)
        return
    scale = max(1.0, float(want.double().nan_to_num(0, 0, 0).abs().max())) if want.numel() else 1.0
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_programs(seed: int) -> None:
    steps, inputs = program(seed)

    def function(*values: Any) -> list[Tensor]:
        return run(steps, values)

    note(function, inputs)
    compiled = compile_fx(make_fx(function)(*inputs), list(inputs))
    tolerance = 0.0  # that of the coarsest type so far
    for got, want in zip(compiled(*inputs), function(*inputs), strict=True):
        tolerance = max(tolerance, *(TOLERANCE.get(x.dtype, 2e-4) for x in (*inputs, want)))
        assert_same(got, want, tolerance)
