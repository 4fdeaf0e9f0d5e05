"""Runs a function through AOTAutograd, the importer and the reference evaluator, for comparison with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch._functorch.aot_autograd import aot_function
from torch._functorch.aot_autograd import make_boxed_func as boxed  # type: ignore[attr-defined]  # not in __all__
from torch.utils import _pytree as pytree

from taskmap.graph.extern import call_extern
from taskmap.graph.importers.torch.decompositions import decompositions
from taskmap.graph.importers.torch.fx import import_fx
from taskmap.graph.importers.torch.types import dtype_of, torch_dtype
from taskmap.graph.nodes import ExternNode, Graph, Node
from taskmap.graph.reference import run
from tests.independent import note


@dataclass
class Traced:
    """The result of a call through the importer, and the graphs on its way (forward, then backward)."""

    outputs: list[Any] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)

    @property
    def externs(self) -> list[ExternNode]:
        return [n for graph in self.graphs for n in graph.nodes() if isinstance(n, ExternNode)]


@cache
def table() -> dict[Any, Callable[..., Any]]:
    return decompositions()


def trace(function: Callable[..., Any], args: Any, kwargs: Any = None, dynamic: bool = False) -> Traced:
    """Compiles ``function`` for ``args`` and ``kwargs``, in which every tensor is an input, and calls it on them."""
    traced = Traced()
    compiled, tensors = compile_flat(function, args, kwargs, traced, dynamic)
    traced.outputs = compiled(*tensors)
    return traced


def compile_flat(
    function: Callable[..., Any], args: Any, kwargs: Any, traced: Traced, dynamic: bool = False
) -> tuple[Callable[..., list[Any]], list[torch.Tensor]]:
    """The compiled function on the flat list of tensors in its arguments, and that list."""
    note(function, args, kwargs)
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
    tensors = [v for v in leaves if isinstance(v, torch.Tensor)]

    def flat(*given: torch.Tensor) -> list[Any]:
        rest = iter(given)
        filled = [next(rest) if isinstance(v, torch.Tensor) else v for v in leaves]
        a, k = pytree.tree_unflatten(filled, spec)
        # AOTAutograd itself, not the graph, makes a result that is an argument or a view of one.
        return [r.clone() if isinstance(r, torch.Tensor) else r for r in pytree.tree_leaves(function(*a, **k))]

    def compiler(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        graph = import_fx(gm, example_inputs)
        traced.graphs.append(graph)
        return boxed(lambda *given: evaluate(graph, given))

    return aot_function(flat, compiler, decompositions=table(), dynamic=dynamic), tensors


def evaluate(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of ``graph`` by the reference evaluator; externs through PyTorch."""
    arrays = [to_array(t) for t in inputs]
    values = run(graph, arrays, extern)
    return [None if n is None else to_tensor(v, n) for n, v in zip(graph.outputs, values, strict=True)]


def to_array(t: Any) -> Any:
    """A tensor in the evaluator's form; a tensor that numpy cannot hold stays a tensor."""
    if not isinstance(t, torch.Tensor):
        return t
    if t.layout != torch.strided or dtype_of(t.dtype).kind == "x":
        return t
    return t.detach().float().numpy() if t.dtype == torch.bfloat16 else t.detach().numpy()


def to_tensor(value: Any, node: Node) -> Any:
    """The evaluator's value as a tensor with the strides that the graph declares."""
    if not isinstance(value, np.ndarray):
        return value
    tensor = torch.from_numpy(value.copy())
    return tensor.to(torch_dtype(node.dtype))


def extern(node: ExternNode, arrays: list[Any], size: Callable[[Any], Any]) -> Any:
    """An extern node through PyTorch, on arrays."""
    result = call_extern(node, [to_tensor(a, n) for a, n in zip(arrays, node.inputs, strict=True)], size)
    return [to_array(r) for r in result] if isinstance(result, (list, tuple)) else to_array(result)


TOLERANCE = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (2e-5, 2e-5),
    torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (3e-2, 3e-2),
}


def assert_equal(outputs: Sequence[Any], expected: Any) -> None:
    """Asserts equal numbers, types and shapes; floats within the tolerance of their type, everything else exactly."""
    wanted = pytree.tree_leaves(expected)
    assert len(outputs) == len(wanted)
    for got, want in zip(outputs, wanted, strict=True):
        if not isinstance(want, torch.Tensor):
            assert got == want
            continue
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        rtol, atol = TOLERANCE.get(want.dtype, (0.0, 0.0))
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
