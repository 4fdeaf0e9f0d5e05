"""PyTorch's devices: that of a captured graph's tensors, and the current GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from taskmap.ir.errors import NoDeviceError
from taskmap.targets.devices import Device

CPU = torch.device("cpu")


def torch_device(device: Device) -> torch.device:
    """The device as PyTorch's."""
    return device if isinstance(device, torch.device) else torch.device(device.type)


def device_of(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> torch.device:
    """The device of a graph's tensors, with its index: that of the first tensor on a GPU, or else the CPU.

    The graph's inputs decide; if it has none, the tensors that it makes.
    """
    tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]
    return device_among(tensors or _values(gm))


def device_among(values: Iterable[Any]) -> torch.device:
    """The device of the first tensor on a GPU, or else the CPU."""
    return next((x.device for x in values if isinstance(x, torch.Tensor) and x.device.type == "cuda"), CPU)


def current_gpu() -> torch.device:
    """The GPU that PyTorch works on now. Raises NoDeviceError."""
    if not torch.cuda.is_available():
        raise NoDeviceError(
            "there is no GPU that PyTorch can use",
            why=f"torch {torch.__version__} says that CUDA is not available.",
            hint="Use the target 'cuda-sim', or install a PyTorch with CUDA, and a driver.",
        )
    return torch.device("cuda", torch.cuda.current_device())


def gpu_is_available() -> bool:
    """True if PyTorch can use a GPU."""
    return torch.cuda.is_available()


def _values(gm: torch.fx.GraphModule) -> Iterator[Any]:
    for node in gm.graph.nodes:
        yield node.meta.get("val", node.meta.get("example_value"))
