"""The numpy references of the functions agree with PyTorch's, special values included."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taskmap.ir.construct import call, const
from taskmap.ir.errors import IndexOutOfRangeError, TypeMismatchError
from taskmap.ir.functions import FUNCTIONS, Result, check_call, function_named
from taskmap.ir.nodes import Call
from taskmap.ir.types import boolean, f32, f64, i64

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 20.25, -20.25, 1e-5, 1e30, np.inf, -np.inf, np.nan]
TORCH = {
    "sign": lambda x: torch.sign(x).nan_to_num(0.0),
    "fmin": torch.fmin,
    "floor_div": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "remainder": torch.remainder,
}


def torch_function(name: str) -> object:
    return TORCH.get(name) or getattr(torch, name)


def draw(name: str) -> np.ndarray:
    ordinary = np.random.default_rng(7).normal(size=400) * 3
    inside = np.random.default_rng(8).uniform(-1, 1, size=400)
    near = np.array([0.999, -0.999, 0.9999999, 1 - 1e-12])
    return np.concatenate([np.array(SPECIAL), *([inside, near] if name == "erfinv" else []), ordinary])


@pytest.mark.parametrize("name", [n for n, f in FUNCTIONS.items() if f.arity == 1])
def test_unary(name: str) -> None:
    x = draw(name)
    with np.errstate(all="ignore"):
        got = FUNCTIONS[name].reference(x)
    want = torch_function(name)(torch.from_numpy(x)).numpy()  # type: ignore[operator]
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", [n for n, f in FUNCTIONS.items() if f.arity == 2 and n != "checked_index"])
def test_binary(name: str) -> None:
    rng = np.random.default_rng(9)
    x = np.concatenate([np.repeat(SPECIAL, len(SPECIAL)), rng.normal(size=300)])
    y = np.concatenate([np.tile(SPECIAL, len(SPECIAL)), rng.normal(size=300)])
    with np.errstate(all="ignore"):
        got = FUNCTIONS[name].reference(x, y)
    want = torch_function(name)(torch.from_numpy(x), torch.from_numpy(y)).numpy()  # type: ignore[operator]
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=0)


def test_single_precision_stays_single() -> None:
    x = np.linspace(-0.9, 0.9, 11, dtype=np.float32)
    for function in FUNCTIONS.values():
        if function.result is Result.SAME:
            with np.errstate(all="ignore"):
                assert function.reference(*[x] * function.arity).dtype == np.float32, function.name


def test_checked_index_wraps_once_and_reports_the_rest() -> None:
    check = FUNCTIONS["checked_index"].reference
    np.testing.assert_array_equal(check(np.array([0, 4, -1, -5]), np.array(5)), [0, 4, 4, 0])
    for wrong in (5, -6):
        with pytest.raises(IndexOutOfRangeError):
            check(np.array([0, wrong]), np.array(5))


def test_calls_are_checked() -> None:
    x = const(1.0, f32)
    check_call(call("exp", x))  # type: ignore[arg-type]
    check_call(call("isnan", x, dtype=boolean))  # type: ignore[arg-type]
    check_call(call("checked_index", const(1, i64), const(2, i64), dtype=i64))  # type: ignore[arg-type]
    wrong = [
        Call("no_such", (x,), f32, 1),
        Call("pow", (x,), f32, 1),
        Call("exp", (x,), f64, 1),
        Call("isnan", (x,), f32, 1),
        Call("exp", (const(1, i64),), i64, 1),
        Call("checked_index", (x, x), i64, 1),
    ]
    for bad in wrong:
        with pytest.raises(TypeMismatchError):
            check_call(bad)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(TypeMismatchError, match="no_such"):
        function_named("no_such")
