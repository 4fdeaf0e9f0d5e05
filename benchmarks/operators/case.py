"""One operator at one size, and how it is written in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

Draw = Callable[[], Tensor]
"""Draws an input."""


@dataclass(frozen=True, slots=True)
class Case:
    """An operator and its inputs.

    Attributes:
        function: tensors to a tensor, or to several.
        draws: one for each input.
        backward: also measured with gradients of its inputs.
    """

    function: Callable[..., Any]
    draws: tuple[Draw, ...]
    backward: bool = False

    def inputs(self) -> tuple[Tensor, ...]:
        """Inputs, drawn afresh."""
        return tuple(draw() for draw in self.draws)

    @property
    def narrows(self) -> bool:
        """True if some input is of f32, so that the case exists in narrower types."""
        return any(x.dtype == torch.float32 for x in self.inputs())

    def of_type(self, dtype: torch.dtype) -> Case:
        """The case with inputs of ``dtype`` instead of f32, in the same layout."""

        def cast(draw: Draw) -> Draw:
            return lambda: x.to(dtype) if (x := draw()).dtype == torch.float32 else x

        return replace(self, draws=tuple(map(cast, self.draws)))


Cases = Mapping[str, Case]


def of(function: Callable[..., Any], *draws: Draw, backward: bool = False) -> Case:
    """A case in a table."""
    return Case(function, draws, backward)


def f32(*shape: int) -> Draw:
    """Normally distributed numbers."""
    return lambda: torch.randn(*shape)


def f64(*shape: int) -> Draw:
    """Normally distributed numbers in f64."""
    return lambda: torch.randn(*shape, dtype=torch.float64)


def bf16(*shape: int) -> Draw:
    """Normally distributed numbers in bf16."""
    return lambda: torch.randn(*shape).bfloat16()


def f16(*shape: int) -> Draw:
    """Normally distributed numbers in f16."""
    return lambda: torch.randn(*shape).half()


def unit(*shape: int) -> Draw:
    """Numbers between 0 and 1, neither included."""
    return lambda: torch.rand(*shape).clamp(1e-3, 1 - 1e-3)


def ints(most: int, *shape: int, dtype: torch.dtype = torch.int64) -> Draw:
    """Whole numbers from 0 to ``most - 1``."""
    return lambda: torch.randint(0, most, shape, dtype=dtype)


def bools(*shape: int) -> Draw:
    """Half of them true."""
    return lambda: torch.rand(*shape) < 0.5


def together(draw: Draw) -> Draw:
    """Images (N, C, H, W) whose channels lie together."""
    return lambda: draw().to(memory_format=torch.channels_last)


def across(draw: Draw) -> Draw:
    """A matrix whose columns lie together."""
    return lambda: draw().mT.contiguous().mT


def each(prefix: str, functions: Iterable[Callable[..., Any]], *draws: Draw, backward: bool = False) -> Cases:
    """One case for each function, with the same inputs."""
    return {f"{prefix}{function.__name__}": of(function, *draws, backward=backward) for function in functions}
