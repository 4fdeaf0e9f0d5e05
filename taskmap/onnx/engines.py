"""Two engines for a graph imported from a model: compiled, and by numpy from its definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taskmap.calls.arrays import on_arrays
from taskmap.calls.prepared import Called
from taskmap.compile.driver import compile_graph
from taskmap.compile.externs import extern_function
from taskmap.compile.session import Session
from taskmap.graph import reference
from taskmap.graph.importers.onnx.read.elements import dense, held_form, reference_form
from taskmap.graph.importers.onnx.read.folding import run_extern
from taskmap.graph.nodes import Graph
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.util.lazy import lazily
from taskmap.onnx.limits import operations
from taskmap.onnx.pieces import aliases_of, constant_of
from taskmap.onnx.points import Run
from taskmap.onnx.program import Engine
from taskmap.util.dump import new_dump
from taskmap.util.stack_headroom import headroom

# It needs PyTorch, which only GPUs need.
if TYPE_CHECKING:
    from taskmap.onnx.gpu_engine import compiled_for_gpu as _compiled_for_gpu
else:
    _compiled_for_gpu = lazily("taskmap.onnx.gpu_engine", "compiled_for_gpu")

Array = NDArray[Any]
MOST_BY_DEFINITION = 1 << 26
"""numpy does not evaluate an operator of more operations than this, because it holds all terms of its sums at once."""


def compiled_by(session: Session) -> Engine:
    """The engine that compiles for the session's target. On a GPU every run copies arrays there and back."""

    @headroom
    def compile_one(graph: Graph) -> Run:
        if session.platform.device.type != "cpu":
            return _compiled_for_gpu(graph, session)
        compilation = compile_graph(
            graph,
            session,
            name="onnx",
            extern_function=lambda node: extern_function(node, tuple(graph.dims)),
            constant=constant_of,
            aliases=aliases_of(graph),
            library=on_arrays,
            dump=new_dump(session.options.dump_dir, "onnx"),
        )
        return OnCpu(compilation.call)

    return compile_one


@dataclass(frozen=True, slots=True, eq=False)
class OnCpu:
    """Runs a graph that is compiled for the CPU."""

    call: Called

    def __call__(self, tensors: list[Any]) -> list[Array]:
        """The results for the graph's inputs."""
        return self.call(list(tensors))


def by_definition(graph: Graph) -> Run:
    """The engine that evaluates every definition with numpy, for checks: slow, but nothing is compiled."""

    for node in graph.nodes():
        if operations(node) > MOST_BY_DEFINITION:
            raise UnsupportedError(f"{node.origin.operator or node.op} is too large to be evaluated by definition")

    def run(tensors: list[Any]) -> list[Array]:
        inputs = [reference_form(t) if isinstance(t, np.ndarray) else t for t in tensors]  # others are sizes
        values = reference.run(graph, inputs, run_extern)
        made: list[Array] = []
        for value, node in zip(values, graph.outputs, strict=True):
            assert node is not None
            made.append(dense(np.array(held_form(value, node.dtype))))
        return made

    return run
