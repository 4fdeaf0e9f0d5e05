"""The values that a program has so far, at the sizes of every call, and random choices among them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
Accepts = Callable[[Tensor], bool]
FLOATS = (torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *FLOATS, *INTEGERS, torch.bool)
FEW_ELEMENTS = 4096


class NoChoiceError(Exception):
    """No value of the program is suitable."""


@dataclass(slots=True)
class Scope:
    """Values by name, one dictionary for each call; the choices follow those of the first call."""

    random: random.Random
    calls: list[dict[str, Any]]
    inputs: tuple[str, ...]
    dynamic: bool
    fresh: int = 0
    names: list[str] = field(default_factory=list)

    def tensor(self, name: str) -> Tensor:
        value: Tensor = self.calls[0][name]
        return value

    def pick(self, accepts: Accepts = lambda t: True) -> str:
        """The name of a tensor, more often one of the latest. Raises NoChoiceError."""
        names = [n for n in self.names if accepts(self.tensor(n))]
        if not names:
            raise NoChoiceError
        if self.random.random() < 0.4:
            return names[-1 - min(int(self.random.expovariate(1.0)), len(names) - 1)]
        return self.random.choice(names)

    def beside(self, name: str, accepts: Accepts = lambda t: True) -> str:
        """A tensor that broadcasts with ``name``; itself at worst."""
        shape = self.tensor(name).shape
        others = [n for n in self.names if accepts(self.tensor(n)) and _broadcasts(shape, self.tensor(n).shape)]
        return self.random.choice(others or [name])

    def axis(self, name: str) -> int:
        """An axis of a tensor that has some, counted from either end. Raises NoChoiceError."""
        rank = self.tensor(name).dim()
        if rank == 0:
            raise NoChoiceError
        k = self.random.randrange(rank)
        return k - rank if self.random.random() < 0.4 else k

    def axes(self, name: str) -> list[int]:
        """Some axes, or all of them."""
        rank = self.tensor(name).dim()
        return sorted(self.random.sample(range(rank), self.random.randint(min(1, rank), rank)))

    def one_of(self, *choices: T) -> T:
        return self.random.choice(choices)

    def size(self, name: str, axis: int) -> str:
        """The size of an axis as text: a number, or the expression for it."""
        if self.dynamic or self.random.random() < 0.2:
            return f"{name}.shape[{axis}]"
        return str(self.tensor(name).shape[axis])

    def new(self) -> str:
        """A name that is not in use."""
        self.fresh += 1
        return f"v{self.fresh - 1}"

    def dtype(self) -> str:
        return str(self.random.choice(DTYPES))


def _broadcasts(a: torch.Size, b: torch.Size) -> bool:
    return all(p == q or 1 in (p, q) for p, q in zip(reversed(a), reversed(b), strict=False))


def any_(t: Tensor) -> bool:
    return True


def real(t: Tensor) -> bool:
    return t.dtype.is_floating_point


def wide(t: Tensor) -> bool:
    """f32 or f64."""
    return t.dtype in (torch.float32, torch.float64)


def number(t: Tensor) -> bool:
    return t.dtype != torch.bool


def integer(t: Tensor) -> bool:
    return not t.dtype.is_floating_point and t.dtype != torch.bool


def boolean(t: Tensor) -> bool:
    return t.dtype == torch.bool


def ranked(rank: int, accepts: Accepts = any_) -> Accepts:
    """At least ``rank`` axes."""
    return lambda t: t.dim() >= rank and accepts(t)


def exactly(rank: int, accepts: Accepts = any_) -> Accepts:
    return lambda t: t.dim() == rank and accepts(t)


def full(rank: int, accepts: Accepts = any_) -> Accepts:
    """At least ``rank`` axes, and elements."""
    return lambda t: t.dim() >= rank and t.numel() > 0 and accepts(t)
