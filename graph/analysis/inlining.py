"""Selects the nodes without memory of their own: their values are recomputed at each read.

Views always qualify. So do tensors made from nothing (ranges, constants), and a cheap function of one value that is in
memory anyway: a cast of an input, a mask from another mask. A node that an anchor reads does not, because a template's
operand should be plain memory. A value that depends on constants alone is computed once and kept, so it is never
inlined into a kernel that runs on every call.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from taskmap.graph.analysis.classify import arithmetic_cost, definition, is_contraction, is_injective, is_view
from taskmap.graph.nodes import Node
from taskmap.ir.analysis.contraction import BYTES
from taskmap.ir.construct import product, static_size
from taskmap.ir.nodes import Cast, Load

CHEAP = 4
_CHEAP_OF_BYTES = 8
"""The same for values that are wider than those they are computed from: one that is dequantised costs 7, and its bytes
are a quarter of it."""
_LONG = 1 << 14
"""Elements beyond which a reduction to one element has a kernel of its own."""


def views_of_memory(node: Node) -> bool:
    """True if ``node`` is a view that needs no memory. A ``copy`` asks for memory, as does a ``stored`` node."""
    return node.op != "copy" and not node.attrs.get("stored") and node.is_compute and is_view(definition(node))


def is_anchor(node: Node) -> bool:
    """True if a template schedules the node: a contraction or an attention."""
    return node.op == "attention" or (node.is_compute and is_contraction(definition(node)))


def inlined_nodes(nodes: Iterable[Node], kept: Container[Node], once: Container[Node]) -> set[Node]:
    """The nodes recomputed at each read. Of the ``kept`` (outputs, operands of externs), only views are among them."""
    order = list(nodes)
    users: dict[Node, list[Node]] = {n: [] for n in order}
    for node in order:
        for source in node.inputs:
            users[source].append(node)
    anchors = {n for n in order if is_anchor(n)}
    feeds_anchor: set[Node] = set()
    for node in reversed(order):
        if any(
            (u in anchors and not _reads_once(u)) or (u in feeds_anchor and views_of_memory(u)) for u in users[node]
        ):
            feeds_anchor.add(node)
    cost: dict[Node, int] = {}  # of each inlined node, including everything inlined into it
    for node in order:
        before = sum(cost.get(n, 0) for n in node.inputs)
        if views_of_memory(node):
            cost[node] = before
        elif not node.is_compute or node in kept or (node in feeds_anchor and not _is_cast(node)):
            continue
        elif _is_cheap(node, before, cost) and _is_in_memory(node, cost, once):
            cost[node] = before + arithmetic_cost(definition(node))
    return set(cost)


def _reads_once(node: Node) -> bool:
    """True for a depthwise convolution, which copies each part of its image once."""
    groups = node.attrs.get("groups")
    return "dilation" in node.attrs and groups == static_size(node.inputs[0].shape[1]) != 1


def _is_cheap(node: Node, before: int, inlined: Container[Node]) -> bool:
    """True if recomputing ``node`` and its inlined inputs costs no more than reading it."""
    define = definition(node)
    if node.op == "copy" or not is_injective(define):
        return False
    total = before + arithmetic_cost(define)
    return total <= CHEAP or (total <= _CHEAP_OF_BYTES and any(n.dtype in BYTES for n in _values_behind(node, inlined)))


def _is_in_memory(node: Node, inlined: Container[Node], once: Container[Node]) -> bool:
    """True if ``node`` needs at most one value, and one that no kernel computes, or that is in memory because a
    reduction of all of it, such as the mean from which these are distances, is the other value."""
    behind = _values_behind(node, inlined)
    large = {n for n in behind if static_size(product(n.shape)) != 1}
    if len(large) == 1 < len(behind):
        count = static_size(product(next(iter(large)).shape))
        return count is not None and count > _LONG and all(_reduces(n, *large) for n in behind if n not in large)
    if not behind:
        return True
    return len(behind) == 1 and node not in once and (not behind[0].is_compute or _widens(node, behind[0]))


def _widens(node: Node, value: Node) -> bool:
    """True if ``node`` is a wider form of ``value``, bytes, which are what a kernel had better store."""
    return value.dtype in BYTES and node.dtype.bytes > 1


def _reduces(node: Node, value: Node) -> bool:
    """True if ``node``, one element, is a reduction of ``value`` or of a view of it."""
    if not node.is_compute or is_injective(definition(node)) or len(node.inputs) != 1:
        return False
    (source,) = node.inputs
    while views_of_memory(source) and len(source.inputs) == 1:
        (source,) = source.inputs
    return source is value


def _values_behind(node: Node, inlined: Container[Node]) -> list[Node]:
    """The values that ``node`` reads once its inlined inputs are expanded."""
    found: list[Node] = []
    for source in node.inputs:
        found += _values_behind(source, inlined) if source in inlined else [source]
    return found


def _is_cast(node: Node) -> bool:
    body = definition(node).body
    return isinstance(body, Cast) and isinstance(body.a, Load)
