"""taskmap as a backend of ONNX's own interface: ``onnx.backend.base``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict
from onnx.defs import onnx_opset_version

from taskmap.ir.errors import NoDeviceError
from taskmap.ir.util.lazy import lazily
from taskmap.onnx.model import OnnxModel, elem_of, load_model
from taskmap.options import Options

# It needs PyTorch, which only GPUs need.
if TYPE_CHECKING:
    from taskmap.targets.torch_devices import gpu_is_available as _gpu_is_available
else:
    _gpu_is_available = lazily("taskmap.targets.torch_devices", "gpu_is_available")

_TARGETS = {"CPU": "cpu", "CUDA": "cuda"}


class TaskmapRep(BackendRep):
    """A prepared model."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, as a tuple with their names, for inputs in order or by name."""
        given = (
            (inputs,) if isinstance(inputs, dict) else tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)
        )
        names = [port.name for port in self.model.outputs]
        results: tuple[Any, ...] = namedtupledict("Outputs", names)(*self.model(*given))
        return results


class TaskmapBackend(Backend):
    """The backend."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> TaskmapRep:
        """The model, ready to run on ``device``. Keyword arguments are options of taskmap."""
        if not cls.supports_device(device):
            raise NoDeviceError(f"taskmap does not run on the device {device!r} here")
        options = Options.from_user(None, {"target": _TARGETS[device.split(":")[0].upper()], **kwargs})
        return TaskmapRep(load_model(model, options))

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """The outputs of a model for these inputs."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Sequence[Any],
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """The outputs of one node, in the newest version of its operator unless ``opset_version`` says otherwise."""
        version = int(kwargs.pop("opset_version", onnx_opset_version()))
        names = list(dict.fromkeys(n for n in node.input if n))
        ports = [
            helper.make_tensor_value_info(n, elem_of(v.dtype), v.shape) for n, v in zip(names, inputs, strict=True)
        ]
        outputs = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
        graph = helper.make_graph([node], "node", ports, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        return cls.run_model(model, list(inputs), device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True if taskmap runs on the device: the CPU, and CUDA if there is a GPU."""
        kind = device.split(":")[0].upper()
        if kind == "CUDA":
            return _gpu_is_available()
        return kind == "CPU"


prepare = TaskmapBackend.prepare
run_model = TaskmapBackend.run_model
run_node = TaskmapBackend.run_node
supports_device = TaskmapBackend.supports_device
