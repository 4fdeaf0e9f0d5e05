"""The seven networks, in their small variants, exported by torch.onnx.export and run as ONNX models: as accurate as
ONNX Runtime."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from benchmarks.models import MODELS, as_tensors, relative_error, to_float64
from taskmap.onnx_model import load_model

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

MOST = 4.0
"""The largest error allowed, as a multiple of ONNX Runtime's."""
ROUNDING = float(np.finfo(np.float32).eps) / 2


def exported(module: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> onnx.ModelProto:
    """The module as a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, tuple(args), kwargs=kwargs, dynamo=True, verbose=False)
    assert program is not None
    return program.model_proto


@pytest.mark.parametrize("name", MODELS)
def test_error_is_within_four_times_that_of_onnx_runtime(name: str) -> None:
    module, args, kwargs = MODELS[name].build(seed=0, small=True)
    proto = exported(module, args, kwargs)
    names = [port.name for port in proto.graph.input]
    tensors = [t for t in [*args, *kwargs.values()] if isinstance(t, torch.Tensor)]
    feeds = {n: t.numpy() for n, t in zip(names, tensors, strict=True)}
    session = ort.InferenceSession(proto.SerializeToString())
    theirs = tuple(torch.from_numpy(np.asarray(v)) for v in session.run(None, feeds))
    ours = tuple(torch.from_numpy(np.ascontiguousarray(v)) for v in load_model(proto)(feeds))
    with torch.no_grad():
        wide, wide_args = to_float64(module, args)
        reference = as_tensors(wide(*wide_args, **kwargs))
    reference = reference[: len(theirs)]
    most = MOST * max(relative_error(theirs, reference), ROUNDING)
    assert relative_error(ours, reference) <= most
