"""ONNX models on a GPU: tensors move to the session's device, and results return to the host."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from taskmap.errors import NoDeviceError
from taskmap.graph.extern import Slot
from taskmap.onnx import gpu_engine
from taskmap.onnx.engines import compiled_by
from taskmap.onnx.gpu_engine import from_torch, to_torch
from taskmap.onnx.model import load_model
from taskmap.options import Options

GPU = torch.device("cuda", 1)


@dataclass
class There:
    """A tensor placed on a device."""

    device: torch.device
    array: Any = None

    def to(self, device: torch.device) -> There:
        return There(device, self.array)


def test_tensors_go_to_the_device_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays become tensors there, and results arrays; an operator of the host takes and gives arrays."""
    seen: list[torch.device] = []
    checked: list[bool] = []
    hosts: list[Any] = []
    monkeypatch.setattr(gpu_engine, "to_torch", lambda array: There(torch.device("cpu"), array))
    monkeypatch.setattr(gpu_engine, "from_torch", lambda there: there.array)

    def call(tensors: list[Any]) -> list[There]:
        seen.extend(t.device for t in tensors)
        return [There(GPU, tensors[0].array + 1)]

    def compiled(graph: Any, session: Any, *, constant: Any, extern_function: Any, **_: Any) -> Any:
        seen.append(constant(SimpleNamespace(value=np.zeros(3))).device)
        hosts.append(extern_function(node))
        call.executable = SimpleNamespace(check=lambda: checked.append(True))  # type: ignore[attr-defined]
        return SimpleNamespace(call=call)

    monkeypatch.setattr(gpu_engine, "compile_graph", compiled)
    session: Any = SimpleNamespace(platform=SimpleNamespace(device=GPU), options=Options())
    graph: Any = SimpleNamespace(inputs=[None, None], outputs=[None], dims={})
    node: Any = SimpleNamespace(target=np.negative, args=(Slot(0),), kwargs={})
    run = compiled_by(session)(graph)
    given = np.ones(2, np.float32)
    (result,) = run([given, given])
    assert seen == [GPU, GPU, GPU]
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [2, 2]
    assert checked == [True]  # once the results are here
    made = hosts[0]([There(GPU, given)], ())
    assert (made.device, made.array.tolist()) == (GPU, [-1, -1])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.bool_, np.int64])
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 3)])
def test_arrays_become_tensors_and_back(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.full(shape, 1, dtype)
    array.flags.writeable = False
    tensor = to_torch(array)
    assert tuple(tensor.shape) == shape
    back = from_torch(tensor)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal says that there is no GPU, and does not blame CPU tensors, which the user never chose."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [port], [out])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with pytest.raises(NoDeviceError, match="no GPU that PyTorch can use"):
        load_model(model, Options(target="cuda"))
