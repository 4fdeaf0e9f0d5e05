"""Compares a function compiled by taskmap with the same function in eager PyTorch; shared by the tests here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from taskmap.torch_backend import compile_fx
from taskmap.util.metrics import Metrics, metrics
from tests.independent import note


def compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """``function`` through torch.compile with this backend."""
    result: Callable[..., Any] = torch.compile(function, backend=compile_fx, **how)
    return result


def since(before: Metrics) -> Metrics:
    """The counts since ``before``."""
    now = metrics()
    return Metrics(**{name: getattr(now, name) - getattr(before, name) for name in Metrics.__slots__})


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a nested result, in order."""
    return [t for t in tree_flatten(value)[0] if isinstance(t, torch.Tensor)]


def assert_like(got: Any, want: Any, rtol: float | None = None, atol: float | None = None) -> None:
    """Checks for the same structure, numbers, dtypes, shapes, strides and sharing of memory; values within torch's
    tolerances."""
    mine, structure = tree_flatten(got)
    theirs, wanted = tree_flatten(want)
    assert structure == wanted
    for a, b in zip(mine, theirs, strict=True):
        assert type(a) is type(b)
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
        if b.layout == torch.strided:
            assert all(p == q for p, q, n in zip(a.stride(), b.stride(), b.shape, strict=True) if n > 1)
        assert a.requires_grad == b.requires_grad
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
    pairs = [(i, j) for i in range(len(mine)) for j in range(i) if isinstance(mine[i], torch.Tensor)]
    for i, j in pairs:
        if isinstance(mine[j], torch.Tensor) and mine[i].layout == mine[j].layout == torch.strided:
            assert share(mine[i], mine[j]) == share(theirs[i], theirs[j]), (i, j)


def share(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two tensors share one storage."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and a.numel() > 0


def check(function: Callable[..., Any], *args: Any, rtol: float | None = None, atol: float | None = None) -> None:
    """The compiled function returns what eager returns, and leaves its arguments as eager leaves them."""
    note(function, args)
    mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
    want = function(*theirs)
    got = compiled(function)(*mine)
    assert_like(got, want, rtol, atol)
    for a, b in zip(tensors(mine), tensors(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
    inputs, expected = tensors(mine), tensors(theirs)
    for out, wanted in zip(tensors(got), tensors(want), strict=True):
        for a, b in zip(inputs, expected, strict=True):
            if out.layout == torch.strided == a.layout:
                assert share(out, a) == share(wanted, b), "memory shared with an argument differs"
