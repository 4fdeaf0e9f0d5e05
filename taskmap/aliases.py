"""Which results of a graph share memory with each other and with its arguments, as PyTorch traced it.

Two results that share memory in eager PyTorch share it here too: one is made, the other is a view of it. Two that do
not share it there never share it here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from taskmap.graph.graph import Graph
from taskmap.graph.importers.symbols import Symbols
from taskmap.ir.errors import ImportGraphError, UnsupportedError
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.types import DType
from taskmap.ir.visit import walk_exprs


@dataclass(frozen=True, slots=True)
class Shared:
    """A result that is a view of an argument or of another result: its shape, and its strides and offset there."""

    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim
    dtype: DType
    argument: int | None = None
    result: int | None = None


@dataclass(frozen=True, slots=True)
class Aliases:
    """A key for the storage of each argument and each result; None for what is no tensor. Equal keys share memory.

    ``shared`` holds, by position, the results that are views of something else in a call.
    """

    arguments: tuple[Hashable, ...]
    results: tuple[Hashable, ...]
    shared: dict[int, Shared] = field(default_factory=dict)


def take_aliases(gm: torch.fx.GraphModule, graph: Graph, symbols: Symbols) -> Aliases:
    """The aliases of a traced graph; results that need not be computed, being views of others, leave ``graph``."""
    arguments = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"]
    (output,) = gm.graph.find_nodes(op="output")
    returned = output.args[0]
    if not isinstance(returned, (tuple, list)):
        raise ImportGraphError("the graph does not return a list of results")
    results = [n.meta.get("val") if isinstance(n, torch.fx.Node) else None for n in returned]
    order = {n: k for k, n in enumerate(gm.graph.nodes)}
    ages = [order.get(n, 0) for n in returned]
    shared: dict[int, Shared] = {}
    for i, fx_node in enumerate(returned):
        node = graph.outputs[i]
        if node is None or _storage(results[i]) is None or fx_node.op == "placeholder" or node.op == "input":
            continue
        owner = _owner(i, results, arguments, ages)
        if owner is None or node.strides is None or node.dtype.kind == "x":
            continue
        is_argument, place = owner
        base: Any = (arguments if is_argument else results)[place]
        if not is_argument and returned[place] is fx_node:
            continue  # one value returned twice
        mine: Any = results[i]
        offset = _distance(base, mine, graph, symbols)
        if offset is None:
            continue
        where = {"argument" if is_argument else "result": place}
        shared[i] = Shared(node.shape, node.strides, offset, node.dtype, **where)
    for i in shared:
        graph.outputs[i] = None
    return Aliases(tuple(map(_storage, arguments)), tuple(map(_storage, results)), shared)


def _distance(base: torch.Tensor, view: torch.Tensor, graph: Graph, symbols: Symbols) -> Dim | None:
    """How many elements after ``base`` its view begins; None where that cannot be computed from a call's sizes."""
    try:
        offset = symbols.dim(view.storage_offset() - base.storage_offset())
    except (ImportGraphError, UnsupportedError):
        return None
    known = isinstance(offset, int) or all(e in graph.dims for e in walk_exprs(offset) if isinstance(e, Var))
    return offset if known else None


def _owner(i: int, results: Sequence[Any], arguments: Sequence[Any], ages: Sequence[int]) -> tuple[bool, int] | None:
    """The argument (True) or result (False) that covers all the memory of result ``i``, or None when it is itself."""
    mine = results[i]
    for j, argument in enumerate(arguments):
        if _covers(argument, mine):
            return True, j
    covering = [k for k, other in enumerate(results) if _covers(other, mine)]
    family = [k for k, other in enumerate(results) if _storage(other) == _storage(mine)]
    # All results on one storage have one owner: of those that cover each of them the first that was computed.
    owners = [k for k in covering if all(_covers(results[k], results[m]) for m in family)]
    owner = min(owners, key=lambda k: (ages[k], k), default=i)
    return None if owner == i else (False, owner)


def _covers(base: object, view: torch.Tensor) -> bool:
    """Whether the elements of ``view`` surely lie within those of ``base``, which has its storage and type."""
    if not isinstance(base, torch.Tensor) or _storage(base) != _storage(view) or base.dtype != view.dtype:
        return False
    if base.is_neg() or view.is_neg() or base.is_conj() or view.is_conj():
        return False
    outer, inner = _span(base), _span(view)
    if outer is None or inner is None:
        # Sizes are symbolic: sure to lie within are a view of all elements, and any view of a whole storage.
        starts = (base.storage_offset(), view.storage_offset())
        together = all(isinstance(s, int) for s in starts) and starts[0] == starts[1]
        return (together and _same_numel(base, view)) or _fills_storage(base)
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _fills_storage(t: torch.Tensor) -> bool:
    """Whether a dense tensor surely takes up all of its storage."""
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
    """A size as PyTorch writes it, in its simplest form."""
    if not isinstance(n, torch.SymInt):
        return n
    shapes = n.node.shape_env
    return n.node.expr if shapes is None else shapes.simplify(n.node.expr)


def _same_numel(a: torch.Tensor, b: torch.Tensor) -> bool:
    p, q = a.numel(), b.numel()
    return p.node.expr == q.node.expr if isinstance(p, torch.SymInt) and isinstance(q, torch.SymInt) else False


def _span(t: torch.Tensor) -> tuple[int, int] | None:
    """First and last element in the storage, the last exclusive; None when a size is symbolic."""
    start, numbers = t.storage_offset(), (*t.shape, *t.stride())
    if not isinstance(start, int) or not all(isinstance(n, int) for n in numbers):
        return None
    if 0 in t.shape:
        return start, start
    return start, start + 1 + sum((int(n) - 1) * int(s) for n, s in zip(t.shape, t.stride(), strict=True))


def _storage(value: object) -> Hashable:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    key: Hashable = value.untyped_storage()._cdata
    return key
