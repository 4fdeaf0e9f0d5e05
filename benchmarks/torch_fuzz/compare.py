"""Compares two runs of a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.torch_fuzz.run import Run, aliases, largest, layout

RELATIVE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
"""The difference that is taken for rounding without a closer look, as a part of the element or the largest one."""


@dataclass(frozen=True, slots=True)
class Difference:
    """``kind``: type (with shape and device), layout, alias, value, or mutation (an argument afterwards)."""

    kind: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.name}: {self.text}"


def differences(want: Run, got: Run) -> list[Difference]:
    """All differences between ``got`` and ``want``, except rounding."""
    if len(want.results) != len(got.results):
        return [Difference("type", "all results", f"{len(got.results)} for {len(want.results)}")]
    found: list[Difference] = []
    for (name, w), (_, g) in zip(want.named(), got.named(), strict=True):
        found += _one(name, w, g)
    if not any(d.kind == "type" for d in found):
        found += _aliases(want, got)
    return found


def _one(name: str, want: Any, got: Any) -> list[Difference]:
    if not isinstance(want, Tensor) or not isinstance(got, Tensor):
        return [] if type(want) is type(got) and want == got else [Difference("type", name, f"{got!r} for {want!r}")]
    if want.dtype != got.dtype or want.shape != got.shape or want.device != got.device:
        told = f"{got.dtype}{list(got.shape)} on {got.device} for {want.dtype}{list(want.shape)} on {want.device}"
        return [Difference("type", name, told)]
    found: list[Difference] = []
    if want.requires_grad != got.requires_grad and not name.startswith("input"):
        found.append(Difference("type", name, f"requires_grad {got.requires_grad} for {want.requires_grad}"))
    if layout(want) != layout(got):
        found.append(Difference("layout", name, f"strides {got.stride()} for {want.stride()} of {list(want.shape)}"))
    wrong = unequal(want.detach(), got.detach())
    if wrong.any():
        place = tuple(int(k) for k in wrong.nonzero()[0])
        told = f"{int(wrong.sum())} of {want.numel()} elements, {got[place].item()} for {want[place].item()} at {place}"
        found.append(Difference("mutation" if name.startswith("input") else "value", name, told))
    return found


def unequal(want: Tensor, got: Tensor) -> Tensor:
    """A mask of the elements that differ by more than a little rounding."""
    if not want.dtype.is_floating_point:
        return want != got
    tolerance = RELATIVE.get(want.dtype, 1e-5)
    w, g = want.double(), got.double()
    # Inputs are of the order of 1: the variance of equal elements is the square of a rounding.
    limit = tolerance * (w.abs() + min(largest(want), 1e30)) + 4 * torch.finfo(want.dtype).eps ** 2
    close = w.isfinite() & ((w - g).abs() <= limit)
    return ~(close | (w == g) | (w.isnan() & g.isnan()))


def _aliases(want: Run, got: Run) -> list[Difference]:
    expected, found = aliases(want), aliases(got)
    told: list[Difference] = []
    for pair in sorted(expected.keys() | found.keys()):
        if expected.get(pair) != found.get(pair):
            what = "share memory" if pair in found else "do not share memory"
            if pair in found and pair in expected:
                what = f"are {found[pair]} bytes apart, not {expected[pair]}"
            told.append(Difference("alias", " and ".join(pair), what))
    return told
