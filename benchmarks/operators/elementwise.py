"""Operators on each element, with broadcasting and all element types."""

from __future__ import annotations

import torch
from torch.nn import functional

from benchmarks.operators.case import Cases, across, bf16, bools, each, f16, f32, f64, ints, of, unit

_BIG = (1024, 1021)

ELEMENTWISE: Cases = {
    **each("", (torch.exp, torch.sin, torch.tanh, torch.erf, torch.sigmoid), f32(*_BIG)),
    **each("", (torch.expm1, torch.sinh, torch.atan, torch.round, torch.sign, torch.frac), f32(*_BIG)),
    **each("", (torch.tan, torch.cosh, torch.asinh, torch.sinc, torch.exp2), f32(*_BIG)),
    **each("", (torch.log, torch.log1p, torch.sqrt, torch.rsqrt, torch.lgamma, torch.digamma), unit(*_BIG)),
    **each("", (torch.erfinv, torch.asin, torch.logit, torch.atanh, torch.log2, torch.reciprocal), unit(*_BIG)),
    **each("", (torch.special.i0, torch.special.ndtr, torch.special.entr), unit(*_BIG)),
    **each("f64 ", (torch.exp, torch.sin, torch.tanh, torch.log1p, torch.sigmoid), f64(*_BIG)),
    **each("bf16 ", (torch.exp, torch.sin, torch.tanh, torch.sigmoid), bf16(*_BIG)),
    **each("f16 ", (torch.exp, torch.tanh, torch.neg), f16(*_BIG)),
    "gelu": of(functional.gelu, f32(*_BIG), backward=True),
    "gelu, tanh": of(lambda x: functional.gelu(x, approximate="tanh"), f32(*_BIG), backward=True),
    "silu": of(functional.silu, f32(*_BIG), backward=True),
    "mish": of(functional.mish, f32(*_BIG), backward=True),
    "elu": of(functional.elu, f32(*_BIG), backward=True),
    "softplus": of(functional.softplus, f32(*_BIG), backward=True),
    "hardswish": of(functional.hardswish, f32(*_BIG), backward=True),
    "prelu": of(functional.prelu, f32(64, 64, 16, 17), f32(64), backward=True),
    "glu": of(functional.glu, f32(1024, 2048), backward=True),
    "bf16 gelu": of(functional.gelu, bf16(*_BIG), backward=True),
    "pow 2.5": of(lambda x: x**2.5, unit(*_BIG), backward=True),
    "pow 3": of(lambda x: x**3, f32(*_BIG)),
    "pow of tensors": of(torch.pow, unit(*_BIG), unit(*_BIG)),
    **each("", (torch.atan2, torch.fmod, torch.remainder, torch.hypot, torch.logaddexp), f32(*_BIG), f32(*_BIG)),
    **each("", (torch.maximum, torch.fmin, torch.floor_divide, torch.copysign), f32(*_BIG), f32(*_BIG)),
    **each("", (torch.nextafter, torch.heaviside, torch.eq, torch.xlogy), f32(*_BIG), unit(*_BIG)),
    "where": of(torch.where, bools(*_BIG), f32(*_BIG), f32(*_BIG), backward=False),
    "clamp": of(lambda x: x.clamp(-1, 1), f32(*_BIG), backward=True),
    "lerp": of(torch.lerp, f32(*_BIG), f32(*_BIG), unit(*_BIG)),
    "addcdiv": of(torch.addcdiv, f32(*_BIG), f32(*_BIG), unit(*_BIG)),
    "nan_to_num": of(torch.nan_to_num, f32(*_BIG)),
    "isfinite": of(torch.isfinite, f32(*_BIG)),
    "i64 + i64": of(torch.add, ints(99, *_BIG), ints(99, *_BIG)),
    "i64 // 7": of(lambda x: x // 7, ints(999, *_BIG)),
    "i64 % 7": of(lambda x: x % 7, ints(999, *_BIG)),
    "i64 % i64": of(lambda x, y: x % (y + 1), ints(999, *_BIG), ints(99, *_BIG)),
    "i32 * i32": of(torch.mul, ints(99, *_BIG, dtype=torch.int32), ints(99, *_BIG, dtype=torch.int32)),
    "i32 // i32": of(lambda x, y: x // (y + 1), *(ints(99, *_BIG, dtype=torch.int32),) * 2),
    "u8 + u8": of(torch.add, *(ints(99, *_BIG, dtype=torch.uint8),) * 2),
    "i16 shifts": of(lambda x: (x << 3) ^ (x >> 2), ints(99, *_BIG, dtype=torch.int16)),
    "bool and": of(lambda x, y: x & ~y, bools(*_BIG), bools(*_BIG)),
    "u8 image to f32": of(lambda x: (x.float() / 255 - 0.45) / 0.22, ints(256, 8, 3, 224, 224, dtype=torch.uint8)),
    "image to u8": of(lambda x: (x * 255).clamp(0, 255).to(torch.uint8), unit(8, 3, 224, 224)),
    "f32 to i64": of(lambda x: x.to(torch.int64), f32(*_BIG)),
    "i64 to f32": of(lambda x: x.float(), ints(99, *_BIG)),
    "f32 to f64": of(lambda x: x.double(), f32(*_BIG)),
    "f32 to bf16": of(lambda x: x.bfloat16(), f32(*_BIG)),
    "f16 to f32": of(lambda x: x.float(), f16(*_BIG)),
    "f32 to bool": of(lambda x: x.bool(), f32(*_BIG)),
    "row + column": of(torch.add, f32(1024, 1), f32(1021), backward=True),
    "bias of channels": of(torch.add, f32(8, 64, 56, 56), f32(64, 1, 1), backward=True),
    "bias of the middle": of(torch.mul, f32(64, 128, 65), f32(128, 1), backward=True),
    "a scalar tensor": of(torch.mul, f32(*_BIG), lambda: torch.randn(()), backward=True),
    "x + x.T": of(lambda x: x + x.T, f32(1021, 1021), backward=True),
    "x + columns": of(torch.add, f32(*_BIG), across(f32(*_BIG)), backward=True),
    "every second": of(lambda x: x[:, ::2] * 2, f32(1024, 2042), backward=True),
    "reversed": of(lambda x: x.flip(-1) * 2, f32(*_BIG), backward=True),
    "outer difference": of(lambda x, y: (x[:, None] - y[None]).abs(), f32(1024), f32(1021), backward=True),
    "rotary embedding": of(
        lambda x, c, s: x * c + torch.cat([-x[..., 32:], x[..., :32]], -1) * s,
        f32(4, 12, 256, 64),
        f32(256, 64),
        f32(256, 64),
        backward=True,
    ),
    "complex multiply": of(
        lambda x, y: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(y)), *(f32(1024, 512, 2),) * 2
    ),
    "polynomial": of(lambda x: ((x * 0.1 + 0.2) * x + 0.3) * x + 0.4, f32(*_BIG), backward=True),
    "one element": of(lambda x: x * 2 + 1, f32(1)),
    "clone": of(torch.clone, f32(*_BIG)),
}
"""Cases by name."""
