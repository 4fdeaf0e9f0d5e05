"""ONNX models on a GPU: tensors move to the session's device, and results return to the host."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from taskmap.errors import NoDeviceError
from taskmap.onnx import engines as onnx_engines
from taskmap.onnx.model import load_model
from taskmap.options import Options
from taskmap.targets.devices import CPU

GPU = torch.device("cuda", 1)


@dataclass
class There:
    """A tensor placed on a device."""

    device: torch.device

    def to(self, device: torch.device) -> There:
        return There(device)


def test_tensors_go_to_the_device_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.device] = []
    checked: list[bool] = []

    def call(tensors: list[Any]) -> list[There]:
        seen.extend(t.device for t in tensors)
        return [There(GPU)]

    def compiled(graph: Any, session: Any, *, constant: Any, **_: Any) -> Any:
        value = torch.empty(3, device="meta")
        monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: There(device))
        seen.append(constant(SimpleNamespace(value=value)).device)
        monkeypatch.undo()
        call.executable = SimpleNamespace(check=lambda: checked.append(True))  # type: ignore[attr-defined]
        return SimpleNamespace(call=call)

    monkeypatch.setattr(onnx_engines, "compile_graph", compiled)
    session: Any = SimpleNamespace(platform=SimpleNamespace(device=GPU), options=Options())
    graph: Any = SimpleNamespace(inputs=[None, None], outputs=[None], dims={})
    run = onnx_engines.compiled_by(session)(graph)
    given: Any = [There(CPU), There(CPU)]
    (result,) = run(given)
    assert seen == [GPU, GPU, GPU]
    assert result.device == CPU
    assert checked == [True]  # once the results are here


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal says that there is no GPU, and does not blame CPU tensors, which the user never chose."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [port], [out])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with pytest.raises(NoDeviceError, match="no GPU that PyTorch can use"):
        load_model(model, Options(target="cuda"))
