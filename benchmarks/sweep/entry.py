"""An architecture of the sweep: how to build it, and how to draw its inputs for a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.models import ModelSpec

Inputs = tuple[Tensor, ...]
Maker = Callable[[bool], nn.Module]
"""A module; True asks for a small variant with the same operators."""
Drawer = Callable[[int, bool], Inputs]
"""Inputs of a batch, of the module or of its small variant."""
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, slots=True)
class Entry:
    """An architecture with random weights.

    ``kind`` groups architectures in the table; ``source`` is where the architecture comes from.
    """

    name: str
    kind: str
    make: Maker
    draw: Drawer
    source: str

    def build(self, seed: int, small: bool = False) -> nn.Module:
        """The module in eval mode, a function of the seed alone; its norms have the statistics of one drawn batch."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            module = self.make(small)
            settle(module, self.draw(2, small))
        return module.eval()

    def inputs(self, seed: int, batch: int, small: bool = False) -> Inputs:
        """Inputs of ``batch`` examples, a function of the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            return self.draw(batch, small)


def settle(module: nn.Module, inputs: Inputs) -> None:
    """Draws the weights of convolutions of a network with batch norms as He et al. (2015) do, and gives each norm the
    statistics of its inputs, so that activations keep their scale through deep networks.

    Otherwise values would fade to denormals, which take many times as long to compute.
    """
    norms = [part for part in module.modules() if isinstance(part, _NORMS) and part.track_running_stats]
    if not norms:
        return
    for part in module.modules():
        if isinstance(part, _CONVOLUTIONS):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    module.eval()
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    module(*inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def of_spec(spec: ModelSpec, kind: str) -> Entry:
    """A model of ``benchmarks.models`` with other batches than one."""

    def make(small: bool) -> nn.Module:
        return _Called(*spec.make(small))

    def draw(batch: int, small: bool) -> Inputs:
        _, args, _ = spec.make(small)
        return tuple(_again(a, batch) for a in args)

    return Entry(spec.name, kind, make, draw, spec.source)


class _Called(nn.Module):
    """A module with fixed keyword arguments."""

    def __init__(self, inner: nn.Module, args: Inputs, kwargs: dict[str, object]) -> None:
        super().__init__()
        self.inner, self.kwargs = inner, kwargs

    def forward(self, *args: Tensor) -> object:
        return self.inner(*args, **self.kwargs)


def _again(one: Tensor, batch: int) -> Tensor:
    """A batch of inputs like ``one``, a batch of 1: other numbers, or the same tokens in other orders."""
    if one.is_floating_point():
        return torch.randn(batch, *one.shape[1:])
    return torch.stack([one[0][torch.randperm(one.shape[1])] for _ in range(batch)])


def images(size: int, tiny: int = 64, channels: int = 3) -> Drawer:
    """Square images."""

    def draw(batch: int, small: bool) -> Inputs:
        side = tiny if small else size
        return (torch.randn(batch, channels, side, side),)

    return draw


def tokens(vocabulary: int, length: int, texts: int = 1, tiny: int = 19) -> Drawer:
    """Token numbers, for each of ``texts`` arguments; small: of a vocabulary of 100."""

    def draw(batch: int, small: bool) -> Inputs:
        shape = (batch, tiny if small else length)
        return tuple(torch.randint(3, 100 if small else vocabulary, shape) for _ in range(texts))

    return draw


def rows(*shapes: tuple[int, ...]) -> Drawer:
    """An argument of normal numbers for each shape, which lacks the batch."""
    return lambda batch, small: tuple(torch.randn(batch, *shape) for shape in shapes)
