"""A model of the benchmarks and tests: how to build it, and how to read its outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
"""A module in eval mode, with the positional and keyword arguments of one call."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model with random weights.

    Attributes:
        name: the name used on the command line and in results.
        make: `make(small)` returns module and arguments, drawing from torch's global generator.
        parameters: number of parameters of the full-size model.
        source: where the architecture comes from.
    """

    name: str
    make: Callable[[bool], Example]
    parameters: int
    source: str

    def build(self, seed: int = 0, small: bool = False) -> Example:
        """Module in eval mode, positional and keyword arguments; batch 1, float32; a function of `seed` alone.

        `small` asks for a variant with the same operators in the same order of magnitude of layers, but narrow enough
        for a unit test. The caller's random state is left as it was.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module, args, kwargs = self.make(small)
        return module.eval(), args, kwargs


def as_tensors(output: Any) -> tuple[Tensor, ...]:
    """The tensors of a model's output, in order: a tensor, a (nested) tuple or list, or a mapping such as the
    output classes of transformers. `None` is left out; anything else is a `TypeError`."""
    if output is None:
        return ()
    if isinstance(output, Tensor):
        return (output,)
    if isinstance(output, Mapping):
        return tuple(t for value in output.values() for t in as_tensors(value))
    if isinstance(output, (tuple, list)):
        return tuple(t for value in output for t in as_tensors(value))
    raise TypeError(f"a model output holds {type(output).__name__}, which is neither a tensor nor a collection of them")


def to_float64(module: nn.Module, args: tuple[Any, ...]) -> tuple[nn.Module, tuple[Any, ...]]:
    """A copy of `module` and of its floating-point arguments in float64, for reference results."""
    wide = tuple(a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
    return copy.deepcopy(module).double(), wide


def relative_error(outputs: tuple[Tensor, ...], reference: tuple[Tensor, ...]) -> float:
    """The largest over the outputs of ||x - r|| / ||r|| (Euclidean norms, computed in float64).

    A NaN anywhere makes the result NaN, which compares false with every bound; outputs of another number or shape are a
    `ValueError`.
    """
    if len(outputs) != len(reference):
        raise ValueError(f"{len(outputs)} outputs compared with {len(reference)} reference outputs")
    worst = 0.0
    for x, r in zip(outputs, reference, strict=True):
        if x.shape != r.shape:
            raise ValueError(f"an output of shape {tuple(x.shape)} compared with a reference of {tuple(r.shape)}")
        wide = r.detach().double()
        error = float((x.detach().double() - wide).norm() / wide.norm().clamp_min(torch.finfo(torch.float64).tiny))
        worst = error if error != error else max(worst, error)
        if worst != worst:
            return worst
    return worst
