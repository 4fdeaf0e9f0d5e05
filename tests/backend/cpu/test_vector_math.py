"""The C prelude: accuracy of its functions against f64, special values, casts, masks, memory; for each ISA."""

from __future__ import annotations

import ctypes
import itertools
import math
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taskmap.backend.cpu.host import detect_host, parse_isa
from taskmap.backend.cpu.math.types import LANES
from taskmap.backend.cpu.math.vector_math import BINARY, FUNCTIONS, PREDICATES, TERNARY, UNARY
from taskmap.backend.cpu.prelude import PreludeRequest, prelude, prelude_for, prelude_parts
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.ir.errors import CodegenError

REGISTER = {"avx512": 64, "avx2": 32, "generic": 16}
CONFIGS = [("avx512", 16), ("avx2", 8), ("generic", 4), ("generic", 1)]
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "b8": torch.bool,
}
INTEGERS = ("i64", "i32", "i16", "i8", "u8")
MASKS = ("m64", "m32", "m16", "m8", "b8")
N = 1 << 13

# Largest error in units of the last place, over the inputs of `float_inputs`. The polynomials promise 2 at most; glibc
# has its own bounds for the others.
ULPS = {
    **dict.fromkeys(["abs", "neg", "sign", "floor", "ceil", "trunc", "round"], 0.0),
    **dict.fromkeys(["sqrt", "reciprocal", "square", "digamma", "erfinv"], 0.51),
    **dict.fromkeys(["exp", "log"], 1.1),
    **dict.fromkeys(["asinh", "acosh", "atanh", "erfc"], 0.51),  # by way of f64
    **dict.fromkeys(["exp2", "erf", "tan", "acos"], 1.4),
    **dict.fromkeys(["expm1", "log1p", "log2", "log10", "tanh", "sigmoid", "sin", "cos", "rsqrt"], 2.0),
    **dict.fromkeys(["sinh", "cosh", "asin", "atan"], 2.0),
    "lgamma": 8.0,
}
SPECIAL = [
    *(0.0, 1.0, math.inf, math.nan, 0.5, 1.5, 2.5, 0.3, 0.6, 4.0, 1e5, 3e38, 3.4028235e38, 8388607.5, 1048577.0),
    *(1e-45, 1e-40, 1.1754944e-38, 88.72, 88.73, 87.3, 103.9, 104.1, 149.5, 1e-8, 0.92, 9.02, 17.4, 2.0**-12),
]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], ctypes.CDLL]:
    """`build(source, isa)`: the source behind its prelude, compiled without a warning, once per module."""
    built: dict[tuple[str, str], ctypes.CDLL] = {}
    folder = tmp_path_factory.mktemp("vector_math")

    def compiled(source: str, isa: str) -> ctypes.CDLL:
        if not detect_host().supports(parse_isa(isa)):
            pytest.skip(f"this CPU has no {isa}")
        if (source, isa) not in built:
            built[source, isa] = _compile(source, isa, folder / f"{len(built)}.so")
        return built[source, isa]

    return compiled


def _compile(source: str, isa: str, output: Path) -> ctypes.CDLL:
    toolchain = find_toolchain(isa=isa)
    text = prelude_for(source, REGISTER[isa]) + source
    flags = [*toolchain.flags, "-Wno-psabi", "-Werror"]
    # Libraries behind the source: before it they would define nothing.
    last = ["-x", "none", "-lm", *toolchain.link_flags]
    command = [toolchain.command[0], *flags, "-x", "c", "-", "-o", str(output), *last]
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return ctypes.CDLL(str(output))


def run(library: ctypes.CDLL, kernel: str, out: torch.dtype, *inputs: torch.Tensor) -> torch.Tensor:
    """Element-wise kernel over inputs of one length, into a poisoned output."""
    result = torch.full((len(inputs[0]),), 77, dtype=torch.int64).to(out)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*inputs, result)]
    getattr(library, kernel)(*pointers, ctypes.c_int64(len(result)))
    return result


def elementwise(name: str, source: str, target: str, lanes: int, expression: str, operands: str = "x") -> str:
    """C of a kernel that stores `expression` of the operands, vectors of `source`, as vectors of `target`."""
    arguments = "".join(f"const {source} *{x}s, " for x in operands)
    loads = "".join(f"{source}x{lanes} {x} = tm_load_{source}x{lanes}({x}s + i); " for x in operands)
    return (
        f"void {name}({arguments}{target} *out, i64 n) {{\n"
        f"  for (i64 i = 0; i < n; i += {lanes}) {{ {loads}tm_store_{target}x{lanes}(out + i, {expression}); }}\n}}\n"
    )


def functions_of(dtype: str, names: Sequence[str], lanes: int) -> str:
    kernels = []
    for name in names:
        operands = "xyz" if name in TERNARY else "xy" if name in BINARY else "x"
        call = f"tm_{name}_{dtype}x{lanes}({', '.join(operands)})"
        if name in PREDICATES:
            call = f"tm_mask_m{re.sub('[a-z]', '', dtype)}x{lanes}_to_b8x{lanes}({call})"
            kernels.append(elementwise(f"{name}_{dtype}", dtype, "b8", lanes, call))
        else:
            kernels.append(elementwise(f"{name}_{dtype}", dtype, dtype, lanes, call, operands))
    return "".join(kernels)


def float_inputs(dtype: torch.dtype) -> torch.Tensor:
    """Random bit patterns, random numbers at several scales, special values of both signs; a multiple of 64 of them."""
    rng = np.random.default_rng()
    bits = torch.from_numpy(rng.integers(0, 1 << 32, N, dtype=np.uint32).view(np.float32)).double().numpy()
    scales = [rng.standard_normal(N) * scale for scale in (0.1, 1, 3, 40, 1e4, 3e5)]
    special = np.resize(np.array([s * x for s in (1, -1) for x in SPECIAL]), 128)
    values = np.concatenate([bits, *scales, 1 + rng.standard_normal(N) / 8, special])
    return torch.from_numpy(values).to(dtype)


def integer_inputs(dtype: torch.dtype) -> torch.Tensor:
    info = torch.iinfo(dtype)
    wide = torch.randint(info.min, info.max, (N,), dtype=torch.int64)
    small = torch.randint(max(info.min, -9), 10, (N,), dtype=torch.int64)
    edges = torch.tensor([info.min, info.min + 1, info.max, info.max - 1, 0, 1, -1, 2] * 8, dtype=torch.int64)
    return torch.cat([wide, small, edges]).to(dtype)


def reference(name: str) -> Callable[..., torch.Tensor]:
    """PyTorch's function of that name."""
    special: dict[str, Callable[..., torch.Tensor]] = {
        "trunc_div": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        "floor_div": lambda x, y: torch.div(x, y, rounding_mode="floor"),
        "max": torch.maximum,
        "min": torch.minimum,
        "isnan": lambda x: x != x,
    }
    if name in special:
        return special[name]
    found: Callable[..., torch.Tensor] = getattr(torch, name, None) or getattr(torch.special, name)
    return found


def ulps(y: NDArray[np.float32], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Errors in units of the last place of f32; infinite if a NaN, an infinity or the sign of a zero is wrong."""
    with np.errstate(all="ignore"):
        rounded = expected.astype(np.float32)
        unit = np.spacing(np.abs(np.where(np.isfinite(rounded), rounded, np.float32(3e38))))
        error = np.abs(y.astype(np.float64) - expected) / unit.astype(np.float64)
        right = (y == rounded) & (np.signbit(y) == np.signbit(rounded)) | np.isnan(y) & np.isnan(expected)
        close = np.isfinite(error) & (expected != 0)
        # Half a unit below infinity, a small error overflows.
        overflow = np.isinf(y) & (np.abs(expected) > 3.4028e38) & (np.sign(y) == np.sign(expected))
        return np.where(right & ~close | overflow, 0, np.where(close, error, np.inf))


def assert_same(y: torch.Tensor, expected: torch.Tensor, *inputs: torch.Tensor) -> None:
    wrong = (y != expected) & ~((y != y) & (expected != expected))
    assert not wrong.any(), f"{[t[wrong][:4] for t in inputs]} gave {y[wrong][:4]}, not {expected[wrong][:4]}"


@pytest.mark.parametrize(("isa", "lanes"), CONFIGS)
def test_unary_f32_is_accurate(build: Callable[[str, str], ctypes.CDLL], isa: str, lanes: int) -> None:
    assert set(ULPS) == UNARY, "a function without a bound on its error"
    library = build(functions_of("f32", sorted(UNARY), lanes), isa)
    x = float_inputs(torch.float32)
    for name, bound in ULPS.items():
        y = run(library, f"{name}_f32", torch.float32, x)
        error = ulps(y.numpy(), reference(name)(x.double()).numpy())
        if name == "lgamma":  # near its zeros left of 0 the C library is accurate absolutely, not relatively
            error = error[x.numpy() > 0]
        worst = int(np.nanargmax(error))
        assert error[worst] <= bound, f"{name}({x[worst]!r}) = {y[worst]!r}: {error[worst]} ulp"


def test_every_lane_count_of_f64_computes_the_same(build: Callable[[str, str], ctypes.CDLL]) -> None:
    names = [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "log2",
        "log10",
        "sin",
        "cos",
        "tan",
        "tanh",
        "sinh",
        "cosh",
        "erf",
    ]
    names += ["asin", "acos", "atan", "atan2", "fmod"]
    x = float_inputs(torch.float32).nan_to_num().double()
    for name in names:
        results = []
        for lanes in (1, 2, 4, 8):
            library = build(functions_of("f64", names, lanes), "avx2")
            inputs = (x, x.flip(0).contiguous()) if name in BINARY else (x,)
            results.append(run(library, f"{name}_f64", torch.float64, *inputs))
        for result in results[1:]:
            assert_same(result, results[0], x)


@pytest.mark.parametrize(("isa", "lanes"), [("avx512", 16), ("avx2", 8), ("generic", 4)])
def test_large_and_small_integers_divide(build: Callable[[str, str], ctypes.CDLL], isa: str, lanes: int) -> None:
    """Of 64 bits: next to 2^51, where vectors give way to one lane after another, and beside small ones."""
    library = build(functions_of("i64", ["floor_div", "trunc_div", "remainder"], lanes), isa)
    edges = [s * (2**p + d) for p in (31, 50, 51, 52, 62) for d in (-1, 0, 1) for s in (1, -1)]
    values = torch.tensor([*edges, *range(-9, 10), 5], dtype=torch.int64)
    x, y = (v.contiguous() for v in (values.repeat(len(values)), values.repeat_interleave(len(values))))
    count = len(x) // 64 * 64
    x, y = x[:count], y[:count]
    some = y != 0
    for name in ("floor_div", "trunc_div", "remainder"):
        found = run(library, f"{name}_i64", torch.int64, x, y)
        assert_same(found[some], reference(name)(x[some], y[some]), x[some], y[some])


def test_every_lane_count_computes_the_same(build: Callable[[str, str], ctypes.CDLL]) -> None:
    """A tail computed with fewer lanes, or with one, equals the result of full vectors."""
    names = ["exp", "expm1", "exp2", "erf", "tanh", "log", "log2", "log10", "log1p", "sigmoid", "sin", "floor", "max"]
    names += ["tan", "asin", "acos", "atan", "sinh", "cosh", "atanh", "erfc", "erfinv", "pow", "atan2", "fmod", "hypot"]
    x = float_inputs(torch.float32)
    x, y = x.nan_to_num(), x.flip(0).contiguous()
    for name in names:
        results = []
        for lanes in LANES:
            library = build(functions_of("f32", names, lanes), "avx2")
            inputs = (x, y) if name in BINARY else (x,)
            results.append(run(library, f"{name}_f32", torch.float32, *inputs))
        for result in results[1:]:
            assert_same(result, results[0], x)


@pytest.mark.parametrize(("isa", "lanes"), [*CONFIGS, ("avx512", 8)])
def test_unary_f64_is_accurate(build: Callable[[str, str], ctypes.CDLL], isa: str, lanes: int) -> None:
    library = build(functions_of("f64", sorted(UNARY), lanes), isa)
    x = float_inputs(torch.float32).double()
    loose = {"erfinv": 1e-13, "digamma": 1e-12, "lgamma": 1e-12, "sigmoid": 1e-15, "rsqrt": 1e-15}
    for name in sorted(UNARY):
        y = run(library, f"{name}_f64", torch.float64, x)
        expected = reference(name)(x)
        where = x > 0 if name in ("lgamma", "digamma") else x == x
        if name == "erfinv":  # PyTorch's own error grows towards 1
            where = x.abs() < 0.999
        if name in ("sinh", "cosh"):  # PyTorch's overflow too early
            where = x.abs() < 709
        rtol, atol = (loose[name], 1e-13) if name in loose else (1e-15, 1e-307)
        close = torch.isclose(y[where], expected[where], rtol=rtol, atol=atol, equal_nan=True)
        assert close.all(), (
            f"{name}({x[where][~close][:4]}) = {y[where][~close][:4]}, not {expected[where][~close][:4]}"
        )


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("isa", "lanes"), CONFIGS)
def test_binary_float(build: Callable[[str, str], ctypes.CDLL], isa: str, lanes: int, dtype: str) -> None:
    library = build(functions_of(dtype, sorted(BINARY), lanes), isa)
    pairs = list(itertools.product([s * x for s in (1.0, -1.0) for x in SPECIAL], repeat=2))
    pairs += [(3.0, 2.0)] * (-len(pairs) % 64)
    rng = np.random.default_rng()
    table = torch.tensor(pairs, dtype=torch.float64)
    x = torch.cat([table[:, 0], torch.from_numpy(rng.standard_normal(N) * 10)]).to(DTYPES[dtype])
    y = torch.cat([table[:, 1], torch.from_numpy(rng.standard_normal(N) * 3)]).to(DTYPES[dtype])
    for name in sorted(BINARY):
        z = run(library, f"{name}_{dtype}", DTYPES[dtype], x, y)
        if name in ("pow", "atan2", "hypot"):
            expected = reference(name)(x.double(), y.double()).to(DTYPES[dtype])
            torch.testing.assert_close(z, expected, rtol=2.5e-7, atol=1e-44, equal_nan=True)
        else:
            # PyTorch's fmod gives NaN if x / y overflows.
            near = ~((x / y).isinf() & (y != 0) & x.isfinite()) | (name in ("max", "min", "copysign"))
            assert_same(z[near], reference(name)(x, y)[near], x[near], y[near])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("isa", "lanes"), [*CONFIGS, ("avx512", 2), ("avx2", 4), ("avx2", 16)])
def test_fma_is_rounded_once_where_the_cpu_can(
    build: Callable[[str, str], ctypes.CDLL], isa: str, lanes: int, dtype: str
) -> None:
    library = build(functions_of(dtype, ["fma"], lanes), isa)
    x, y = torch.rand(2, N, dtype=DTYPES[dtype]) + 1
    product = x * y
    z = run(library, f"fma_{dtype}", DTYPES[dtype], x, y, -product)
    if isa == "generic":
        assert not z.any()
    else:
        assert (z != 0).float().mean() > 0.5
    if dtype == "f32" and isa != "generic":
        assert_same(z, (x.double() * y.double() - product.double()).float(), x, y)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(("isa", "lanes"), CONFIGS)
def test_integers(build: Callable[[str, str], ctypes.CDLL], isa: str, lanes: int, dtype: str) -> None:
    names = ["abs", "neg", "square", "sign", "floor", "isnan", "isinf", "isfinite", "signbit"]
    pairs = ["add", "sub", "mul", "max", "min", "fmod", "remainder", "floor_div", "trunc_div", "pow"]
    library = build(functions_of(dtype, names + pairs, lanes), isa)
    x = integer_inputs(DTYPES[dtype])
    for name in names:
        out = torch.bool if name in PREDICATES else DTYPES[dtype]
        assert_same(run(library, f"{name}_{dtype}", out, x), reference(name)(x).to(out), x)
    y = x[torch.randperm(len(x))]
    for name in pairs:
        divides = name in ("fmod", "remainder", "floor_div", "trunc_div")
        divisor = torch.where(y == 0, 3, y).to(DTYPES[dtype]) if divides else y
        z = run(library, f"{name}_{dtype}", DTYPES[dtype], x, divisor)
        # PyTorch crashes, or differs between machines, for the least integer divided by -1.
        least = (x == torch.iinfo(DTYPES[dtype]).min) & (divisor == -1) if divides else x != x
        safe = torch.where(least, 1, divisor).to(DTYPES[dtype])
        expected = reference(name)(x, safe)
        assert_same(z[~least], expected[~least], x[~least], divisor[~least])


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(("isa", "lanes"), CONFIGS)
def test_division_by_zero_returns(build: Callable[[str, str], ctypes.CDLL], isa: str, lanes: int, dtype: str) -> None:
    names = ["floor_div", "trunc_div", "fmod", "remainder"]
    library = build(functions_of(dtype, names, lanes), isa)
    x = integer_inputs(DTYPES[dtype])
    for name in names:
        z = run(library, f"{name}_{dtype}", DTYPES[dtype], x, torch.zeros_like(x))
        expected = torch.full_like(x, -1 if dtype != "u8" else 255) if name.endswith("div") else x
        assert_same(z, expected, x)
    least = torch.full((64,), torch.iinfo(DTYPES[dtype]).min, dtype=DTYPES[dtype])
    if dtype != "u8":
        minus_one = torch.full_like(least, -1)
        assert_same(run(library, f"floor_div_{dtype}", least.dtype, least, minus_one), least)
        assert_same(run(library, f"remainder_{dtype}", least.dtype, least, minus_one), torch.zeros_like(least))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("isa", "lanes"), [*CONFIGS, ("avx512", 32)])
def test_half_floats_are_computed_in_f32(
    build: Callable[[str, str], ctypes.CDLL], isa: str, lanes: int, dtype: str
) -> None:
    names = ["exp", "tanh", "erf", "sqrt", "abs", "sigmoid", "add", "max", "isnan", "isfinite", "signbit", "floor_div"]
    library = build(functions_of(dtype, names, lanes), isa)
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(DTYPES[dtype])
    other = every[torch.randperm(len(every))]
    for name in names:
        inputs = (every, other) if name in BINARY else (every,)
        out = torch.bool if name in PREDICATES else DTYPES[dtype]
        y = run(library, f"{name}_{dtype}", out, *inputs)
        # Rounded once from f64, or from f32 if the function is plain f32 arithmetic.
        wide = torch.float32 if name in BINARY else torch.float64
        expected = reference(name)(*(t.to(wide) for t in inputs)).to(out)
        if name in ("exp", "tanh", "erf", "sigmoid"):
            steps = (y.view(torch.int16).int() - expected.view(torch.int16).int()).abs()
            assert int(torch.where(expected == expected, steps, 0).max()) <= 1
            assert torch.equal(y != y, expected != expected)
        else:
            assert_same(y, expected, *inputs)


def cast_inputs(source: str, target: str) -> torch.Tensor:
    if source == "b8":
        return torch.rand(512) < 0.5
    if source in INTEGERS:
        return integer_inputs(DTYPES[source])
    if target in INTEGERS:  # out of range the result is unspecified, in torch as here
        return (torch.rand(N, dtype=torch.float64) * 127).to(DTYPES[source])
    bits = torch.randint(0, 1 << 16, (N, DTYPES[source].itemsize // 2)).to(torch.int16)
    edges = [*(65504, 65519, 65520, 2.0**-24, 2.0**-25, 2.0**-26, 3.3895e38, 3.39e38, 1e300), *SPECIAL]
    edges += [1.00390625, 1.01171875]  # between two numbers of bf16
    special = torch.tensor([s * x for s in (1, -1) for x in edges], dtype=torch.float64)
    values = torch.cat([bits.view(DTYPES[source]).flatten(), special.to(DTYPES[source])])
    return values[: len(values) // 64 * 64]


@pytest.mark.parametrize(("isa", "lanes"), [*CONFIGS, ("avx512", 64), ("avx2", 2)])
def test_casts_are_those_of_torch(build: Callable[[str, str], ctypes.CDLL], isa: str, lanes: int) -> None:
    pairs = list(itertools.product(DTYPES, DTYPES))
    kernels = (elementwise(f"{s}_{t}", s, t, lanes, f"tm_cast_{s}x{lanes}_to_{t}x{lanes}(x)") for s, t in pairs)
    library = build("".join(kernels), isa)
    for s, t in pairs:
        x = cast_inputs(s, t)
        assert_same(run(library, f"{s}_{t}", DTYPES[t], x), x.to(DTYPES[t]), x)


@pytest.mark.parametrize(("isa", "lanes"), [*CONFIGS, ("avx512", 64)])
def test_steps_of_quantisation_are_the_casts_that_they_replace(
    build: Callable[[str, str], ctypes.CDLL], isa: str, lanes: int
) -> None:
    f, i = f"f32x{lanes}", f"i32x{lanes}"
    text = elementwise("near", "f32", "i32", lanes, f"tm_nearest_{f}_to_{i}(x)")
    text += elementwise("rounded", "f32", "i32", lanes, f"tm_cast_{f}_to_{i}(tm_round_{f}(x))")
    bytes_ = {"i8": (torch.int8, -128, 127), "u8": (torch.uint8, 0, 255)}
    for b in bytes_:
        text += elementwise(f"clamped_{b}", "i32", b, lanes, f"tm_clamped_{i}_to_{b}x{lanes}(x)")
    library = build(text, isa)
    halves = torch.arange(-600, 600, 0.25)
    x = torch.cat(
        [halves, torch.randn(N) * 1e4, torch.tensor([2.0**31, -(2.0**31), -1e30, 1e30, torch.inf, -torch.inf])]
    )
    x = torch.cat([x, torch.full((64,), torch.nan)])[: (len(x) + 64) // 64 * 64]
    assert_same(run(library, "near", torch.int32, x), run(library, "rounded", torch.int32, x), x)
    inside = x.abs() < 1e9
    assert_same(run(library, "near", torch.int32, x)[inside], x[inside].round().int(), x[inside])
    whole = integer_inputs(torch.int32)
    for b, (dtype, low, high) in bytes_.items():
        assert_same(run(library, f"clamped_{b}", dtype, whole), whole.clamp(low, high).to(dtype), whole)


@pytest.mark.parametrize(("isa", "lanes"), [*CONFIGS, ("avx512", 64)])
def test_masks(build: Callable[[str, str], ctypes.CDLL], isa: str, lanes: int) -> None:
    def through(first: str, second: str) -> str:
        b8, a, b = (f"{m}x{lanes}" for m in ("b8", first, second))
        return f"tm_mask_{b}_to_{b8}(tm_mask_{a}_to_{b}(tm_mask_{b8}_to_{a}(x)))"

    pairs = list(itertools.product(MASKS, MASKS))
    source = "".join(elementwise(f"{a}_{b}", "b8", "b8", lanes, through(a, b)) for a, b in pairs)
    for m in MASKS[:4]:
        mask, b8 = f"{m}x{lanes}", f"b8x{lanes}"
        inverse = f"tm_mask_{mask}_to_{b8}(tm_not_{mask}(tm_mask_{b8}_to_{mask}(x)))"
        source += elementwise(f"not_{m}", "b8", "b8", lanes, inverse)
        for question in ("any", "all"):
            call = f"tm_splat_{b8}(tm_{question}_{mask}(tm_mask_{b8}_to_{mask}(x)))"
            source += elementwise(f"{question}_{m}", "b8", "b8", lanes, call)
    library = build(source, isa)
    x = torch.rand(64 * 64) < 0.5
    for a, b in pairs:
        assert torch.equal(run(library, f"{a}_{b}", torch.bool, x), x)
    groups = torch.cat([x, torch.zeros(64, dtype=torch.bool), torch.ones(64, dtype=torch.bool)])
    for m in MASKS[:4]:
        assert torch.equal(run(library, f"not_{m}", torch.bool, x), ~x)
        for question, expected in (("any", torch.any), ("all", torch.all)):
            y = run(library, f"{question}_{m}", torch.bool, groups)
            assert torch.equal(y, expected(groups.view(-1, lanes), 1).repeat_interleave(lanes))


def memory_kernels(dtype: str, lanes: int) -> str:
    v, d = f"{dtype}x{lanes}", dtype
    wide, narrow = (f"{i}x{lanes} l = tm_load_{i}x{lanes}(i);" for i in ("i64", "i32"))
    return f"""
void move_{d}(const {d} *x, {d} *y, i64 n) {{ tm_store_masked_{v}(y, tm_load_masked_{v}(x, n), n); }}
void fill_{d}(const {d} *x, {d} *y, i64 n) {{ tm_store_{v}(y, tm_load_masked_{v}(x, n)); }}
void gather_{d}(const {d} *x, {d} *y, const i64 *i) {{ {wide} tm_store_{v}(y, tm_gather_{d}_i64x{lanes}(x, l)); }}
void gather32_{d}(const {d} *x, {d} *y, const i32 *i) {{ {narrow} tm_store_{v}(y, tm_gather_{d}_i32x{lanes}(x, l)); }}
void scatter_{d}(const {d} *x, {d} *y, const i64 *i) {{ {wide} tm_scatter_{d}_i64x{lanes}(y, l, tm_load_{v}(x)); }}
void splat_{d}(const {d} *x, {d} *y) {{ tm_store_{v}(y, tm_splat_{v}(*x)); }}
"""


@pytest.mark.parametrize(("isa", "lanes"), [*CONFIGS, ("avx512", 64), ("avx512", 8)])
def test_memory(build: Callable[[str, str], ctypes.CDLL], isa: str, lanes: int) -> None:
    library = build("".join(memory_kernels(dtype, lanes) for dtype in DTYPES), isa)
    for dtype, torch_dtype in DTYPES.items():
        x = torch.randint(1, 100, (256,)).to(torch_dtype)
        zeros, ones = torch.zeros(256, dtype=torch_dtype), torch.ones(256, dtype=torch_dtype)

        def call(name: str, into: torch.Tensor, *more: object, x: torch.Tensor = x, dtype: str = dtype) -> torch.Tensor:
            into = into.clone()
            getattr(library, f"{name}_{dtype}")(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(into.data_ptr()), *more)
            return into

        for n in (-1, 0, 1, lanes // 2, lanes - 1, lanes, lanes + 3):
            first = torch.arange(256) < min(n, lanes)
            assert torch.equal(call("move", ones, ctypes.c_int64(n)), torch.where(first, x, ones))
            assert torch.equal(call("fill", zeros, ctypes.c_int64(n)), torch.where(first, x, zeros))
        index = torch.randperm(256)[:lanes]
        for name, i in (("gather", index), ("gather32", index.int())):
            assert torch.equal(call(name, zeros, ctypes.c_void_p(i.data_ptr()))[:lanes], x[index])
        scattered = call("scatter", zeros, ctypes.c_void_p(index.data_ptr()))
        assert torch.equal(scattered, zeros.index_put((index,), x[:lanes]))
        assert torch.equal(call("splat", zeros)[:lanes], x[0].expand(lanes))


REDUCTIONS = ("hsum", "hprod", "hmax", "hmin")


def reduction_kernels(dtype: str, lanes: int) -> str:
    v = f"{dtype}x{lanes}"
    calls = {name: f"tm_splat_{v}(tm_{name}_{v}(x))" for name in REDUCTIONS} | {"iota": f"tm_iota_{v}()"}
    return "".join(elementwise(f"{name}_{dtype}", dtype, dtype, lanes, call) for name, call in calls.items())


@pytest.mark.parametrize(("isa", "lanes"), [*CONFIGS, ("avx512", 64), ("generic", 2)])
def test_reductions_and_iota(build: Callable[[str, str], ctypes.CDLL], isa: str, lanes: int) -> None:
    numbers = {name: torch_dtype for name, torch_dtype in DTYPES.items() if name != "b8"}
    library = build("".join(reduction_kernels(dtype, lanes) for dtype in numbers), isa)
    for dtype, torch_dtype in numbers.items():
        # At most 15 factors that are not a unit: no product overflows on the way, in whatever order it is taken.
        x = torch.randint(0, 2, (64, lanes)) * 2 - 1
        x[:, : min(lanes, 15)] *= torch.randint(0, 9, (64, min(lanes, 15))).clamp(0, 2)
        x = x.to(torch_dtype)
        expected = {"hsum": x.sum(1), "hprod": x.prod(1), "hmax": x.amax(1), "hmin": x.amin(1)}
        for name in REDUCTIONS:
            y = run(library, f"{name}_{dtype}", torch_dtype, x.flatten()).view(64, lanes)[:, 0]
            assert_same(y, expected[name].to(torch_dtype))
        iota = run(library, f"iota_{dtype}", torch_dtype, x.flatten()).view(64, lanes)
        assert torch.equal(iota, torch.arange(lanes).to(torch_dtype).expand(64, lanes))
        if not torch_dtype.is_floating_point:
            continue
        holed = torch.ones(lanes, lanes, dtype=torch_dtype).fill_diagonal_(math.nan)
        for name in REDUCTIONS:
            assert run(library, f"{name}_{dtype}", torch_dtype, holed.flatten()).isnan().all()


def test_only_what_is_needed_is_emitted() -> None:
    text = prelude([PreludeRequest.function("exp", "f32", 16), PreludeRequest.cast("bf16", "f32", 16)])
    assert text == prelude([PreludeRequest.cast("bf16", "f32", 16), PreludeRequest.function("exp", "f32", 16)])
    assert "tm_exp_f32x16" in text
    for other in ("#include", "tm_log", "f64x16", "_Float16", "f32x8", "libm"):
        assert other not in text
    assert len(text.splitlines()) < 120
    assert prelude([]) == prelude_for("int main(void) { return 0; }")


def test_vectors_wider_than_a_register_are_filled_by_halves() -> None:
    text = prelude([PreludeRequest.function("splat", "f32", 64)], 32)
    filled = {int(lanes): body.count("x,") + 1 for lanes, body in re.findall(r"\(f32x(\d+)\)\{([x, ]+)\}", text)}
    assert filled == {8: 8}
    assert "half = tm_splat_f32x32(x)" in text


def test_the_prelude_of_a_source_is_found_by_reading_it() -> None:
    source = "f32x8 f(bf16x8 x) { return tm_exp_f32x8(tm_cast_bf16x8_to_f32x8(x)); }"
    requests = [
        PreludeRequest.type("f32", 8),
        PreludeRequest.function("exp", "f32", 8),
        PreludeRequest.cast("bf16", "f32", 8),
    ]
    assert sorted(prelude_for(source).splitlines()) == sorted(prelude(requests).splitlines())
    assert len(set(prelude_parts(source))) == len(prelude_parts(source)), "parts that are shared must not repeat"
    assert PreludeRequest.type("bool", 16) == PreludeRequest("b8x16")


@pytest.mark.parametrize(
    "symbol",
    [
        "tm_gelu_f32x16",
        "tm_exp_f32x3",
        "tm_exp_f8x16",
        "tm_cast_f32x16_to_f64x8",
        "tm_mask_f32x16_to_m32x16",
        "tm_gather_q3_i64x8",
        "f32x128",
        "tm_exp",
    ],
)
def test_unknown_names_are_refused(symbol: str) -> None:
    with pytest.raises(CodegenError, match=re.escape(symbol)):
        prelude([PreludeRequest(symbol)])


@pytest.mark.parametrize("name", ["exp", "sqrt", "atan2", "erfinv"])
def test_float_functions_of_integers_are_refused(name: str) -> None:
    with pytest.raises(CodegenError, match="Cast to f32 or f64 first"):
        prelude([PreludeRequest.function(name, "i32", 8)])


@settings(max_examples=12)
@given(
    names=st.lists(st.sampled_from(sorted(FUNCTIONS)), min_size=1, max_size=4, unique=True),
    dtype=st.sampled_from(["f64", "f32", "f16", "bf16"]),
    lanes=st.sampled_from(LANES),
    isa=st.sampled_from(["avx512", "avx2", "generic"]),
)
def test_any_request_compiles(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], dtype: str, lanes: int, isa: str
) -> None:
    if not detect_host().supports(parse_isa(isa)):
        return
    _compile(functions_of(dtype, names, lanes), isa, tmp_path_factory.mktemp("request") / "k.so")
