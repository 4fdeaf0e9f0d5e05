"""A network with open sizes: the module, its inputs at two settings of the sizes, and its ONNX file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.models import as_tensors

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A network: ``make()`` gives the module, ``inputs(sizes)`` its inputs; the sizes are those of ``first`` or
    ``second``. ``script``: exported by torch.onnx's older exporter."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[..., Inputs]
    first: tuple[int, ...]
    second: tuple[int, ...]
    script: bool = False

    def feeds(self, second: bool = False) -> list[np.ndarray[Any, Any]]:
        """The inputs as arrays, in order."""
        return [t.numpy() for t in self._given(second)]

    def _given(self, second: bool) -> Inputs:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(second) + 1)
            return self.inputs(*(self.second if second else self.first))

    def export(self, folder: Path) -> Path:
        """Writes the network into ``folder`` unless it exists there; returns the file's path."""
        path = folder / f"{self.name}.onnx"
        if path.exists():
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = _Flat(self.make()).eval()
        first, second = self._given(False), self._given(True)
        axes = [_open(a, b) for a, b in zip(first, second, strict=True)]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _export(module, first, axes, path, self.script)
        return path


class _Flat(nn.Module):
    """A module whose outputs are a tuple of tensors."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        return as_tensors(self.module(*args))


def _open(a: Tensor, b: Tensor) -> dict[int, str]:
    """The dimensions whose sizes differ: those of equal sizes in both settings have one name."""
    pairs = enumerate(zip(a.shape, b.shape, strict=True))
    return {d: f"n_{m}_{n}" for d, (m, n) in pairs if m != n}


def _export(module: nn.Module, args: Inputs, axes: Sequence[dict[int, str]], path: Path, script: bool) -> None:
    unfinished = path.with_suffix(".unfinished")
    if script:
        names = [f"in{i}" for i in range(len(args))]
        torch.onnx.export(
            module, args, str(unfinished), dynamo=False, opset_version=17, input_names=names,
            dynamic_axes=dict(zip(names, axes, strict=True)),
        )  # fmt: skip
    else:
        shapes = (tuple(dict.fromkeys(a, torch.export.Dim.DYNAMIC) or None for a in axes),)
        torch.onnx.export(
            module, args, str(unfinished), dynamo=True, verbose=False, dynamic_shapes=shapes, external_data=False
        )
    unfinished.rename(path)
