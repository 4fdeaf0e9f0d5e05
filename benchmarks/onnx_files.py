"""The seven networks as ONNX files, with inputs and results in float64, for benchmarks of what runs such files."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from benchmarks.models import MODELS, as_tensors, relative_error, to_float64
from benchmarks.support.engines import export_onnx

WRONG = 1e-3
"""A relative error against float64 above which a time does not count."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A network in `folder`: model.onnx, inputs.npz (arrays by the names of the inputs), and exact.npz: what PyTorch
    computes in float64, in order."""

    name: str
    folder: Path

    @property
    def path(self) -> Path:
        """The model's file."""
        return self.folder / "model.onnx"

    def feeds(self) -> dict[str, Any]:
        """The inputs by name."""
        with np.load(self.folder / "inputs.npz") as stored:
            return {name: stored[name] for name in stored.files}

    def error(self, outputs: Sequence[Any]) -> float:
        """The relative error of outputs, in order, against PyTorch's in float64."""
        with np.load(self.folder / "exact.npz") as stored:
            expected = tuple(torch.from_numpy(stored[name]) for name in stored.files)
        return relative_error(tuple(torch.from_numpy(np.ascontiguousarray(o)) for o in outputs), expected)


def exported(name: str, seed: int, small: bool, parent: Path) -> ModelFile:
    """The network `name` in a folder of `parent`, exported by torch.onnx.export unless it is there already.

    exact.npz is written last and at once, so that a folder that has it is complete.
    """
    file = ModelFile(name, parent / f"{name}-{seed}{'-small' if small else ''}")
    if (file.folder / "exact.npz").exists():
        return file
    file.folder.mkdir(parents=True, exist_ok=True)
    module, args, kwargs = MODELS[name].build(seed, small)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export_onnx(module, args, kwargs, str(file.folder))
        wide, wide_args = to_float64(module, args)
        exact = as_tensors(wide(*wide_args, **kwargs))
    ports = onnx.load(file.path, load_external_data=False).graph.input
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    inputs = {port.name: tensor.numpy() for port, tensor in zip(ports, tensors, strict=True)}
    np.savez(file.folder / "inputs.npz", **inputs)  # type: ignore[arg-type]  # its stubs know no keywords
    unfinished = file.folder / "unfinished.npz"
    np.savez(unfinished, *(t.numpy() for t in exact))
    unfinished.rename(file.folder / "exact.npz")
    return file
