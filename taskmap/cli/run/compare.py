"""Compares a model's outputs with those of another runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.errors import InputError
from taskmap.ir.util.lazy import lazily

Array = NDArray[Any]
# Imported only for a comparison.
if TYPE_CHECKING:
    from taskmap.onnx.engines import by_definition as _by_definition
    from taskmap.onnx.model import load_model as _load_model
else:
    _load_model = lazily("taskmap.onnx.model", "load_model")
    _by_definition = lazily("taskmap.onnx.engines", "by_definition")
WAYS = ("reference", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output compared with the other runner's. absolute, relative: the largest errors, the latter over the largest
    value; differing: elements beyond both tolerances; why: any other difference."""

    name: str
    absolute: float
    relative: float
    differing: int
    why: str = ""

    @property
    def equal(self) -> bool:
        """True if the output is accepted."""
        return self.differing == 0 and not self.why


def other_outputs(way: str, path: Path, inputs: Mapping[str, Array], threads: int | None) -> list[Any]:
    """The outputs by numpy from the definitions, or by ONNX Runtime. Raises InputError if that is not installed."""
    if way == "reference":
        found: list[Any] = _load_model(path, engine=_by_definition)(dict(inputs))
        return found
    try:
        runtime = import_module("onnxruntime")
    except ImportError as error:
        raise InputError("ONNX Runtime is not installed", hint="pip install onnxruntime") from error
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        found = session.run(None, dict(inputs))
    except Exception as error:  # its errors have no common class
        hint = "Compare with the reference instead: --compare reference."
        raise InputError(
            "ONNX Runtime cannot run the model", where=str(path), why=f"{error}".strip(), hint=hint
        ) from error
    return found


def compare(
    names: Sequence[str], got: Sequence[Any], want: Sequence[Any], rtol: float, atol: float
) -> list[Comparison]:
    """Compare output by output; integers and booleans must be equal."""
    return [_one(name, np.asarray(g), np.asarray(w), rtol, atol) for name, g, w in zip(names, got, want, strict=True)]


def _one(name: str, got: Array, want: Array, rtol: float, atol: float) -> Comparison:
    if got.shape != want.shape or got.dtype != want.dtype:
        why = f"it is {got.dtype}{list(got.shape)}, and should be {want.dtype}{list(want.shape)}"
        return Comparison(name, float("nan"), float("nan"), got.size, why)
    if got.dtype.kind in "biuOSU":
        return Comparison(name, 0.0, 0.0, int((got != want).sum()))
    g, w = got.astype(np.float64), want.astype(np.float64)
    close = np.isclose(g, w, rtol=rtol, atol=atol, equal_nan=True)
    finite = np.isfinite(g) & np.isfinite(w)
    error = float(np.abs(g - w, where=finite, out=np.zeros_like(w)).max(initial=0.0))
    largest = float(np.abs(w, where=finite, out=np.zeros_like(w)).max(initial=0.0))
    return Comparison(name, error, error / largest if largest else error, int((~close).sum()))
