"""Compiles a graph of ATen operators from AOTAutograd into a callable for AOTAutograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]  # defined here in all versions
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from taskmap.compile.aliases import hidden_bases, take_aliases, traced_metadata
from taskmap.compile.backward.saved import report_strides, saved_results, take_strides
from taskmap.compile.driver import compile_graph
from taskmap.compile.externs import extern_function
from taskmap.compile.frozen import on_tensors
from taskmap.compile.random_order import number_random
from taskmap.compile.session import Fallback, Session
from taskmap.compile.without_memory import unless_without_memory
from taskmap.graph.importers.torch.fx import read_fx
from taskmap.graph.nodes import ConstantNode
from taskmap.ir.errors import ImportGraphError, UnsupportedError
from taskmap.targets.torch_devices import torch_device
from taskmap.util.dump import new_dump
from taskmap.util.gc_pause import collector_paused
from taskmap.util.logs import said
from taskmap.util.metrics import COUNTERS
from taskmap.util.stack_headroom import headroom


def compile_aten(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, kind: str, session: Session, freeze: bool
) -> Callable[[list[Any]], Any]:
    """The compiled graph: a boxed callable from a list of arguments to a list of results.

    ``kind`` is forward, backward or inference; ``freeze`` allows parameters to be treated as constants. A graph with
    effects besides its results, or one that cannot be imported, runs through PyTorch as a whole.
    """
    # AOTAutograd calls its compilers under fake tensors; constants must be real.
    with collector_paused(), unset_fake_temporarily():
        return _compile(gm, example_inputs, kind, session, freeze)


@headroom
def _compile(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], kind: str, session: Session, freeze: bool
) -> Callable[[list[Any]], Any]:
    dump = new_dump(session.options.dump_dir, kind)
    if dump.wanted:
        dump.write("fx.txt", gm.print_readable(print_output=False))
    reason = _effects(gm)
    if reason is None:
        try:
            if kind == "backward":
                take_strides(gm, example_inputs)
            hidden = hidden_bases(gm)
            frozen = _frozen(len(example_inputs)) if freeze else frozenset[int]()
            free = saved_results(gm, len(example_inputs)) if kind == "forward" else frozenset()
            graph, symbols = read_fx(gm, example_inputs, frozen, torch_device(session.platform.device), hidden, free)
        except (ImportGraphError, UnsupportedError) as error:
            reason = str(error)
    if reason is not None:
        COUNTERS.add("fallbacks")
        said("%s graph runs through PyTorch as a whole: %s", kind, reason)
        if session.record is not None:
            session.record.append(Fallback(kind, reason))
        dump.write("fallback.txt", reason)
        whole: Callable[[list[Any]], Any] = make_boxed_func(gm.forward)
        return whole
    aliases, graph = take_aliases(gm, number_random(graph, _is_random), symbols, hidden)
    compilation = compile_graph(
        graph,
        session,
        name=kind,
        extern_function=lambda node: extern_function(node, tuple(graph.dims)),
        constant=_constant,
        aliases=aliases,
        library=on_tensors,
        dump=dump,
    )
    report_strides(gm, free, compilation.parts.main.binding)
    return unless_without_memory(compilation.call, gm)


def _is_random(target: object) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def _effects(gm: torch.fx.GraphModule) -> str | None:
    """The reason why PyTorch must run the graph: an effect besides its results. None if there is none."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and not isinstance(node.target, torch._ops.OpOverload):
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                return f"{node.target} runs graphs of its own."
        elif node.op == "call_function" and (node.target._schema.is_mutable or node.is_impure(impure_random=False)):
            return f"{node.target} has effects besides its result."
        if node.op == "placeholder" and _is_ragged(node.meta.get("val")):
            return f"the size {node.name} belongs to a ragged dimension and is not a number."
        if node.op in ("call_function", "placeholder") and free_unbacked_symbols(node.meta.get("val")):
            return f"a size in the result of {node.name} depends on data."
    return None


def _is_ragged(value: object) -> bool:
    """True if a size stands for the row lengths of a nested tensor."""
    return isinstance(value, torch.SymInt) and (value.node.is_nested_int() or _hint_is_ragged(value.node.hint))


def _hint_is_ragged(hint: object) -> bool:
    return isinstance(hint, torch.SymInt) and hint.node.is_nested_int()


def _frozen(arguments: int) -> frozenset[int]:
    """The positions of arguments that stay the same from call to call: parameters and buffers never written."""
    metadata = traced_metadata(arguments)
    if metadata is None:
        return frozenset()
    return frozenset(
        i
        for i in metadata.static_input_indices
        if i < arguments and not metadata.input_info[i].mutates_data and not metadata.input_info[i].mutates_metadata
    )


def _constant(node: ConstantNode) -> torch.Tensor:
    assert isinstance(node.value, torch.Tensor)
    return node.value
