"""Results of a graph that share memory with each other or with its arguments, as traced by PyTorch.

Two results that share memory in eager PyTorch share it here too: all results in one storage are views of the tensor
that occupied that storage first. Two results with separate memory in eager keep it separate here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta
from torch._guards import TracingContext

from taskmap.compile.sharing import Aliases, Shared
from taskmap.graph.importers.torch.homes import storage_of
from taskmap.graph.importers.torch.symbols import Symbols
from taskmap.graph.nodes import Graph, InputNode
from taskmap.ir.errors import ImportGraphError, UnsupportedError
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.visit import walk_exprs


def hidden_bases(gm: fx.GraphModule) -> tuple[fx.Node, ...]:
    """The values that a graph must store in memory although it does not return them: several results are views of each,
    and none of these results contains the others.
    """
    arguments = {storage_of(n.meta.get("val")) for n in gm.graph.find_nodes(op="placeholder")}
    families: dict[Hashable, dict[fx.Node, None]] = {}
    for node in returned_by(gm):
        key = storage_of(node.meta.get("val")) if isinstance(node, fx.Node) else None
        if key is not None and key not in arguments:
            families.setdefault(key, {})[node] = None
    makers: dict[Hashable, fx.Node] = {}
    for node in gm.graph.nodes:
        if (key := storage_of(node.meta.get("val"))) in families:
            makers.setdefault(key, node)
    found = []
    for key, family in families.items():
        maker = makers[key]
        views = [n for n in family if _holds(maker, n)]
        if len(views) > 1 and not any(_holds(n, maker) for n in views):
            found.append(maker)
    return tuple(found)


def take_aliases(
    gm: fx.GraphModule, graph: Graph, symbols: Symbols, hidden: Sequence[fx.Node] = ()
) -> tuple[Aliases, Graph]:
    """The aliases of a traced graph, and ``graph`` without the results that are views of others: they need no
    computation.

    ``hidden``: the graph's ``hidden_bases``, which are the last outputs of ``graph``.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    returned = [*returned_by(gm), *hidden]
    values: list[Any] = [n.meta.get("val") if isinstance(n, fx.Node) else None for n in returned]
    arguments: list[Any] = [n.meta.get("val") for n in placeholders]
    order = {n: k for k, n in enumerate(gm.graph.nodes)}
    shared: dict[int, Shared] = {}
    written = _views_of_written_arguments(len(arguments))
    for i, fx_node in enumerate(returned):
        node = graph.outputs[i]
        if node is None or storage_of(values[i]) is None or fx_node.op == "placeholder" or isinstance(node, InputNode):
            continue
        if node.strides is None or node.dtype.kind == "x":
            continue
        is_argument, k = place = _place(fx_node, returned, placeholders, order) or (False, i)
        base = arguments[k] if is_argument else values[k]
        if i in written and not is_argument:
            new, argument = written[i]
            source = returned[new]  # None where the graph computes no new value
            if source is not None and _same_memory(source, fx_node) and _same_strides(values[new], arguments[argument]):
                place, base = (True, argument), values[new]
        offset = None if place == (False, i) else _distance(base, values[i], graph, symbols)
        if offset is not None:
            where = {"argument" if place[0] else "result": place[1]}
            shared[i] = Shared(node.shape, node.strides, offset, node.dtype, **where)
    aliases = Aliases(tuple(map(storage_of, arguments)), tuple(map(storage_of, values)), shared, len(hidden))
    return aliases, replace(graph, outputs=[None if i in shared else n for i, n in enumerate(graph.outputs)])


def traced_metadata(arguments: int) -> ViewAndMutationMeta | None:
    """AOTAutograd's record of the graph that is being compiled, which has so many arguments; None if it has rearranged
    them, so that their positions mean nothing."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return metadata if metadata is not None and len(metadata.input_info) == arguments else None


def _views_of_written_arguments(arguments: int) -> dict[int, tuple[int, int]]:
    """For each result that is a view of a written argument: the result that is the argument's new value, and the
    argument.

    AOTAutograd writes the new value into the argument. Of the second result it uses the size, strides and offset alone,
    to make a view of the argument: those of a part of the argument, which need not begin where its storage does.
    """
    metadata = traced_metadata(arguments)
    if metadata is None:
        return {}
    written = metadata.mutated_inp_runtime_indices
    return {
        len(written) + i: (k, argument)
        for k, argument in enumerate(written)
        for i, info in enumerate(metadata.output_info)
        if info.output_type is OutputType.alias_of_input and info.base_idx == argument
    }


def _same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    return list(map(_expression, (*a.shape, *a.stride()))) == list(map(_expression, (*b.shape, *b.stride())))


def returned_by(gm: fx.GraphModule) -> Sequence[Any]:
    """The results of a traced graph. Raises ImportGraphError if it does not return a list."""
    (output,) = gm.graph.find_nodes(op="output")
    returned = output.args[0]
    if not isinstance(returned, (tuple, list)):
        raise ImportGraphError("the graph does not return a list of results")
    return returned


def _place(
    node: fx.Node, returned: Sequence[Any], placeholders: Sequence[fx.Node], order: dict[fx.Node, int]
) -> tuple[bool, int] | None:
    """The argument (True) or result (False) that ``node`` is a view of; None if it has memory of its own."""
    for j, argument in enumerate(placeholders):
        # An argument lies in the caller's memory, which is available as a whole.
        if _same_memory(argument, node):
            return True, j
    first: dict[fx.Node, int] = {}
    for k, other in enumerate(returned):
        if isinstance(other, fx.Node) and _same_memory(other, node):
            first.setdefault(other, k)
    holders = [n for n in first if all(_holds(n, other) for other in first)]
    holder = min(holders, key=lambda n: order[n], default=node)
    return None if holder is node else (False, first[holder])


def _same_memory(a: fx.Node, b: fx.Node) -> bool:
    """True if both values have the same storage and type, so that one can be described as a part of the other."""
    s, t = a.meta.get("val"), b.meta.get("val")
    if not isinstance(s, torch.Tensor) or not isinstance(t, torch.Tensor) or storage_of(s) is None:
        return False
    plain = not any(x.is_neg() or x.is_conj() for x in (s, t))
    return plain and s.dtype == t.dtype and storage_of(s) == storage_of(t)


def _holds(base: fx.Node, view: fx.Node) -> bool:
    """True if the elements of ``view`` are provably elements of ``base``.

    Either ``base`` fills its storage, or ``view`` was derived from it by operators that read its elements; all view
    operators do, except those that address the storage directly.
    """
    if not _same_memory(base, view):
        return False
    if _fills_storage(base.meta["val"]):
        return True
    here: fx.Node | None = view
    while here is not None and here is not base:
        if here.target is torch.ops.aten.as_strided.default:
            return False
        storage = storage_of(here.meta.get("val"))
        here = next((n for n in here.all_input_nodes if storage_of(n.meta.get("val")) == storage), None)
    return here is base


def _distance(base: torch.Tensor, view: torch.Tensor, graph: Graph, symbols: Symbols) -> Dim | None:
    """The offset of ``view`` from ``base`` in elements; None if a call's sizes do not determine it."""
    try:
        offset = symbols.dim(view.storage_offset() - base.storage_offset())
    except (ImportGraphError, UnsupportedError):
        return None
    known = isinstance(offset, int) or all(e in graph.dims for e in walk_exprs(offset) if isinstance(e, Var))
    return offset if known else None


def _fills_storage(t: torch.Tensor) -> bool:
    """True if a dense tensor provably fills its storage."""
    start = t.storage_offset()
    if not isinstance(start, int) or start != 0:
        return False
    rest = [(n, s) for n, s in zip(t.shape, t.stride(), strict=True) if _expression(n) != 1]
    expected: Any = 1
    while rest:
        axis = next((a for a in rest if _expression(a[1]) == _expression(expected)), None)
        if axis is None:
            return False
        rest = [a for a in rest if a is not axis]
        expected = expected * axis[0]
    return bool(_expression(expected * t.element_size()) == _expression(t.untyped_storage().nbytes()))


def _expression(n: Any) -> Any:
    """A size as PyTorch writes it, simplified."""
    if not isinstance(n, torch.SymInt):
        return n
    shapes = n.node.shape_env
    return n.node.expr if shapes is None else shapes.simplify(n.node.expr)
