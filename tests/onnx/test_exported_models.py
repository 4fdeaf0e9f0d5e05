"""Small variants of the seven networks, exported by torch.onnx.export and run as ONNX models: as accurate as ONNX
Runtime, or as eager PyTorch if that is not installed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from benchmarks.models import MODELS, as_tensors, relative_error, to_float64
from taskmap.onnx.model import load_model

pytest.importorskip("onnxscript")

MOST = 4.0
"""The largest error allowed, as a multiple of the rival's."""
ROUNDING = float(np.finfo(np.float32).eps) / 2


def exported(module: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> onnx.ModelProto:
    """The module as a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, tuple(args), kwargs=kwargs, dynamo=True, verbose=False)
    assert program is not None
    return program.model_proto


def rival(
    proto: onnx.ModelProto, feeds: dict[str, Any], module: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[torch.Tensor, ...]:
    """The results of ONNX Runtime, or else of eager PyTorch."""
    if find_spec("onnxruntime") is None:
        with torch.no_grad():
            return as_tensors(module(*args, **kwargs))
    session = import_module("onnxruntime").InferenceSession(proto.SerializeToString())
    return tuple(torch.from_numpy(np.asarray(v)) for v in session.run(None, feeds))


LONGEST = "inception_v3"
"""Exporting and compiling it takes a third of the time."""
NAMES = [pytest.param(n, marks=pytest.mark.long if n == LONGEST else ()) for n in MODELS]


@pytest.mark.parametrize("name", NAMES)
def test_error_is_within_four_times_the_rivals(name: str) -> None:
    module, args, kwargs = MODELS[name].build(seed=0, small=True)
    proto = exported(module, args, kwargs)
    names = [port.name for port in proto.graph.input]
    tensors = [t for t in [*args, *kwargs.values()] if isinstance(t, torch.Tensor)]
    feeds = {n: t.numpy() for n, t in zip(names, tensors, strict=True)}
    theirs = rival(proto, feeds, module, args, kwargs)
    loaded = load_model(proto)
    ours = tuple(torch.from_numpy(np.ascontiguousarray(v)) for v in loaded(feeds))
    assert loaded.on_host == ()
    with torch.no_grad():
        wide, wide_args = to_float64(module, args)
        reference = as_tensors(wide(*wide_args, **kwargs))
    shared = min(len(theirs), len(ours))  # values that a model keeps for the next step are not exported
    theirs, ours, reference = theirs[:shared], ours[:shared], reference[:shared]
    most = MOST * max(relative_error(theirs, reference), ROUNDING)
    assert relative_error(ours, reference) <= most
