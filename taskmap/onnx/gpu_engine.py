"""The engine of a GPU: arrays become tensors there, and results arrays again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from taskmap.calls.bound import ExternFunction
from taskmap.calls.prepared import PreparedGraph
from taskmap.compile.driver import compile_graph
from taskmap.compile.externs import extern_function
from taskmap.compile.frozen import on_tensors
from taskmap.compile.session import Session
from taskmap.graph.nodes import Graph
from taskmap.onnx.pieces import aliases_of, constant_of
from taskmap.onnx.points import Run
from taskmap.targets.torch_devices import torch_device
from taskmap.util.dump import new_dump

Array = NDArray[Any]


def compiled_for_gpu(graph: Graph, session: Session) -> Run:
    """A function that runs ``graph`` on the session's GPU. Every run copies arrays there and back."""
    device = torch_device(session.platform.device)
    compilation = compile_graph(
        graph,
        session,
        name="onnx",
        extern_function=lambda node: on_host(device, extern_function(node, tuple(graph.dims))),
        constant=lambda node: to_torch(constant_of(node)).to(device),
        aliases=aliases_of(graph),
        library=on_tensors,
        dump=new_dump(session.options.dump_dir, "onnx"),
    )
    call = compilation.call
    main = call.main if isinstance(call, PreparedGraph) else call
    check = getattr(main.executable, "check", _nothing)

    def run(tensors: list[Any]) -> list[Array]:
        with torch.no_grad():
            given = [t if isinstance(t, int) else to_torch(t).to(device) for t in tensors]
            results = [from_torch(result) for result in call(given)]
        check()  # the kernels have ended: errors belong to this call, not to the next
        return results

    return run


def _nothing() -> None:
    """Does nothing: kernels that report errors at once have none left."""


def on_host(device: torch.device, function: ExternFunction) -> ExternFunction:
    """``function``, an operator that takes and gives arrays, for tensors on ``device``."""

    def call(tensors: Sequence[torch.Tensor], values: Sequence[int]) -> object:
        made = function([from_torch(t) for t in tensors], values)
        if isinstance(made, (list, tuple)):
            return [to_torch(m).to(device) for m in made]
        assert isinstance(made, np.ndarray)
        return to_torch(made).to(device)

    return call


def to_torch(array: Array) -> torch.Tensor:
    """A tensor that shares the memory of ``array`` if possible, else a copy of it."""
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C")
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: torch.Tensor) -> Array:
    """An array that shares the memory of ``tensor``, or of its copy on the CPU."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(tensor.resolve_neg().numpy())
