"""Attention as torch.onnx.export writes it (the scale split over queries and keys, keys transposed, MatMul, Softmax,
MatMul) reaches the kernel that the standard's own Attention reaches."""

from __future__ import annotations

import re
import warnings

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from taskmap.backend.cuda.source import CudaSource
from taskmap.onnx.model import load_model
from taskmap.options import Options
from tests.onnx.models import model

pytest.importorskip("onnxscript")
SHAPE = (1, 132, 64, 64)


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def exported(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> onnx.ModelProto:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(Attention(), (q, k, v), dynamo=True, verbose=False)
    assert program is not None
    return program.model_proto


def by_the_standard() -> onnx.ModelProto:
    node = helper.make_node("Attention", ["Q", "K", "V"], ["Y"], scale=0.125)
    return model([node], {n: (TensorProto.FLOAT16, list(SHAPE)) for n in "QKV"}, ["Y"], opset=24)


def compiled(proto: onnx.ModelProto, arrays: list[np.ndarray[tuple[int, ...], np.dtype[np.float16]]]) -> CudaSource:
    """The one kernel of a model whose result is correct."""
    loaded = load_model(proto, Options(target="cuda-sim", gpu="sm_90a"))
    (result,) = loaded(*arrays)
    q, k, v = (torch.from_numpy(a).double() for a in arrays)
    expected = torch.softmax(q @ k.mT / 8, -1) @ v
    assert np.abs(result - expected.numpy()).max() < 2e-3
    assert loaded.session is not None
    (source,) = (k.source for k in loaded.session.kernels.values())
    assert isinstance(source, CudaSource)
    return source


def test_an_exported_attention_is_the_operator() -> None:
    tensors = [torch.randn(SHAPE).half() for _ in range(3)]
    arrays = [t.numpy() for t in tensors]
    written = exported(*tensors)
    assert [n.op_type for n in written.graph.node].count("Mul") == 2
    ours, theirs = compiled(written, arrays), compiled(by_the_standard(), arrays)
    assert "cuda.attention(wgmma" in ours.text
    numbers = re.compile(r"//.*|\btm_\w+_[0-9a-f]{8}\b|0\.18\d+f")  # 1/8 is the square of a rounded number there
    assert numbers.sub("", ours.text) == numbers.sub("", theirs.text)
