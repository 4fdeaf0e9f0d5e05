"""Small networks as graphs whose parameters are constant inputs, and plans as short text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import aot_function
from torch._functorch.aot_autograd import make_boxed_func as boxed  # type: ignore[attr-defined]  # not in __all__
from torch._guards import TracingContext

from benchmarks.models import MODELS
from taskmap.graph.fusion.planning import Group, Plan, plan
from taskmap.graph.importers.torch.fx import import_fx
from taskmap.graph.nodes import Graph
from taskmap.graph.passes import run_passes
from tests.graph.tracing import table


class FunctionModule(nn.Module):
    """A function of tensors as a module without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def graph_of(module: nn.Module, *args: Any, dynamic: bool = False, **kwargs: Any) -> Graph:
    """The graph of a call of ``module`` in eval mode without gradients; parameters and buffers are constant inputs."""
    module = module.eval()
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    found: list[Graph] = []

    def function(values: list[torch.Tensor], given: Any, named: Any) -> Any:
        result = torch.func.functional_call(module, dict(zip(state, values, strict=True)), given, named)
        return list(result.values()) if isinstance(result, dict) else result

    def compiler(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        found.append(import_fx(gm, example_inputs, range(len(state))))
        return boxed(gm.forward)

    with torch.no_grad():
        aot_function(function, compiler, decompositions=table(), dynamic=dynamic)(list(state.values()), args, kwargs)
    return found[0]


@cache
def graph_of_model(name: str) -> Graph:
    """The graph of a small model of the zoo, as torch.compile gives it."""
    module, args, kwargs = MODELS[name].build(small=True)
    found: list[Graph] = []

    def compiler(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        metadata = TracingContext.get().fw_metadata
        assert metadata is not None
        found.append(import_fx(gm, inputs, metadata.static_input_indices))
        return boxed(gm.forward)

    with torch.no_grad():
        backend = aot_autograd(fw_compiler=compiler, decompositions=table())
        torch.compile(module, backend=backend, fullgraph=True)(*args, **kwargs)
    return found[0]


def planned(graph: Graph) -> Plan:
    """The plan after the passes."""
    return plan(run_passes(graph, verify=True))


def kernels(made: Plan, keep: Callable[[Group], bool] = lambda g: not g.once) -> list[str]:
    """Kind and name of each kernel that runs on every call, in order."""
    return [f"{g.kind}: {g.name}" for g in made.steps if isinstance(g, Group) and keep(g)]
