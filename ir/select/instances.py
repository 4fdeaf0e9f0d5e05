"""Random terms for the instances of rules: small vectors, bases and strides, of types that compute exactly."""

from __future__ import annotations

from random import Random

from taskmap.ir.select.terms import Term, binary, broadcast, cast, const, load, ramp, var
from taskmap.ir.types import DType, bf16, f32, i8, i16, i32, u8

__all__ = ["product", "value"]

NARROW = (bf16, f32, i8, u8, i16)


def lanes(rng: Random, most: int = 4) -> int:
    """A number of lanes."""
    return rng.randint(1, most)


def base(rng: Random) -> Term:
    """A scalar address."""
    return rng.choice([const(rng.randint(0, 40)), var("x"), binary("add", var("x"), const(rng.randint(1, 9)))])


def index(rng: Random, n: int) -> Term:
    """The addresses of ``n`` lanes: nested ramps and broadcasts."""
    if n == 1:
        return base(rng)
    inner = rng.choice([d for d in range(1, n) if n % d == 0])
    count = n // inner
    if rng.random() < 0.3:
        return broadcast(index(rng, inner), count)
    return ramp(index(rng, inner), rng.choice([const(rng.randint(0, 9)), var("s")]), count)


def value(rng: Random, n: int, dtype: DType | None = None) -> Term:
    """A vector of ``n`` elements."""
    dtype = dtype or rng.choice(NARROW)
    return load(rng.choice("uvw") + f"_{dtype}", dtype, index(rng, n))


def wide(rng: Random, n: int, dtype: DType | None = None) -> Term:
    """A vector of f32 or i32, perhaps widened."""
    dtype = dtype or rng.choice((f32, i32))
    narrow = {f32: (f32, bf16), i32: (i32, i8, u8, i16)}[dtype]
    kind = rng.choice(narrow)
    x = value(rng, n, kind)
    return x if kind == dtype else cast(dtype, x)


def product(rng: Random, n: int, dtype: DType) -> Term:
    """A product of two vectors, each perhaps a broadcast."""

    def side() -> Term:
        inner = rng.choice([d for d in range(1, n + 1) if n % d == 0])
        x = wide(rng, inner, dtype)
        return x if inner == n else broadcast(x, n // inner)

    return Term("mul", (), (side(), side()))


def dot(rng: Random, out: int, k: int, c: DType, a: DType, b: DType) -> Term:
    """A dot product of ``out`` lanes with rows of A in every lane, as a row of a matrix product has them."""
    total = value(rng, out, c)
    left = load(f"a_{a}", a, broadcast(ramp(base(rng), 1, k), out))
    right = load(f"b_{b}", b, ramp(ramp(base(rng), rng.randint(1, 40), k), 1, out))
    return Term("dot", (k,), (total, left, right))
