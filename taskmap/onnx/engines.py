"""Two engines for a graph imported from a model: compiled, and by numpy from its definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from taskmap.compile.driver import compile_graph
from taskmap.compile.externs import extern_function
from taskmap.compile.frozen import FrozenGraph
from taskmap.compile.runtime import CompiledGraph
from taskmap.compile.session import Session
from taskmap.compile.sharing import Aliases
from taskmap.graph import reference
from taskmap.graph.importers.onnx.read.elements import from_torch, to_torch
from taskmap.graph.importers.onnx.read.folding import held_form, run_extern
from taskmap.graph.nodes import ConstantNode, Graph
from taskmap.ir.errors import GraphError, UnsupportedError
from taskmap.onnx.limits import operations
from taskmap.onnx.points import Run
from taskmap.onnx.program import Engine
from taskmap.targets.devices import CPU
from taskmap.util.dump import new_dump
from taskmap.util.stack_headroom import headroom

Extern = Callable[[Sequence[torch.Tensor], Sequence[int]], object]
"""An operator that runs on the host: a function from its tensors and the values of symbolic sizes to its results."""
MOST_BY_DEFINITION = 1 << 26
"""numpy does not evaluate an operator of more operations than this, because it holds all terms of its sums at once."""


def compiled_by(session: Session) -> Engine:
    """The engine that compiles for the session's target. Every run copies tensors to its device and back."""
    device = session.platform.device

    @headroom
    def compile_one(graph: Graph) -> Run:
        count = len(graph.inputs)
        aliases = Aliases(tuple(range(count)), tuple(("result", i) for i in range(len(graph.outputs))))
        compilation = compile_graph(
            graph,
            session,
            name="onnx",
            extern_function=lambda node: results_on(device, extern_function(node, tuple(graph.dims))),
            constant=lambda node: _constant(node).to(device),
            aliases=aliases,
            dump=new_dump(session.options.dump_dir, "onnx"),
        )
        call = compilation.call
        main = call.main if isinstance(call, FrozenGraph) else call
        check = getattr(main.executable, "check", _nothing)

        if device == CPU:
            return OnCpu(call)

        def run(tensors: list[Any]) -> list[torch.Tensor]:
            with torch.no_grad():
                results = [
                    result.to(CPU) for result in call([t if isinstance(t, int) else t.to(device) for t in tensors])
                ]
            check()  # the kernels have ended: errors belong to this call, not to the next
            return results

        return run

    return compile_one


@dataclass(frozen=True, slots=True, eq=False)
class OnCpu:
    """Runs a graph that is compiled for the CPU."""

    call: CompiledGraph | FrozenGraph

    def __call__(self, tensors: list[Any]) -> list[torch.Tensor]:
        """The results for the graph's inputs."""
        with torch.no_grad():
            return self.call(list(tensors))


def _nothing() -> None:
    """Does nothing: a CPU's kernels report errors at once."""


def results_on(device: torch.device, function: Extern) -> Extern:
    """``function``, an operator that runs on the host, with results on ``device``."""
    if device == CPU:
        return function

    def call(tensors: Sequence[torch.Tensor], values: Sequence[int]) -> object:
        made = function(tensors, values)
        if isinstance(made, (list, tuple)):
            return [m.to(device) for m in made]
        assert isinstance(made, torch.Tensor)
        return made.to(device)

    return call


def _constant(node: ConstantNode) -> torch.Tensor:
    if not isinstance(node.value, torch.Tensor):
        raise GraphError(f"the constant {node!r} is not a tensor")
    return node.value


def by_definition(graph: Graph) -> Run:
    """The engine that evaluates every definition with numpy, for checks: slow, but nothing is compiled."""

    for node in graph.nodes():
        if operations(node) > MOST_BY_DEFINITION:
            raise UnsupportedError(f"{node.origin.operator or node.op} is too large to be evaluated by definition")

    def array(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value  # a size
        return value.float().numpy() if value.dtype == torch.bfloat16 else from_torch(value)

    def run(tensors: list[Any]) -> list[torch.Tensor]:
        inputs: list[Any] = [array(t) for t in tensors]
        values = reference.run(graph, inputs, run_extern)
        made: list[torch.Tensor] = []
        for value, node in zip(values, graph.outputs, strict=True):
            assert node is not None
            made.append(to_torch(np.array(held_form(np.asarray(value), node))))
        return made

    return run
