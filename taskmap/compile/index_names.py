"""The operators of a fused group that read or write at data-dependent positions, for index-out-of-range messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from taskmap.compile.operator_names import source_name
from taskmap.graph.nodes import ConstantNode, InputNode, Node
from taskmap.ir.nodes import Call, Load
from taskmap.ir.visit import walk_exprs

_MOST = 4
_LONGEST = 100


def indexing_text(nodes: Sequence[Node]) -> str:
    """The operators among ``nodes`` that index, for a message: "the Gather node 'emb', whose indices are 'ids'".

    A kernel has one flag for all of them, so every possible cause is named. Operators whose indices are constants of
    the model are named only if there are no others. Empty if none indexes.
    """
    found = {node: positions for node in nodes if (positions := index_nodes(node))}
    varying = {n: some for n, some in found.items() if not all(isinstance(i, ConstantNode) for i in some)}
    texts = list(dict.fromkeys(_text(n, some) for n, some in (varying or found).items()))
    more = [f"{len(texts) - _MOST} more"] if len(texts) > _MOST else []
    return ", or ".join(texts[:_MOST] + more)


def indexing_lines(nodes: Sequence[Node]) -> str:
    """The user's lines of these operators, one per line, if known."""
    origins = [n.origin for n in nodes if n.origin.file and index_nodes(n)]
    return "\n".join(list(dict.fromkeys(map(str, origins)))[:_MOST])


def index_nodes(node: Node) -> list[Node]:
    """The inputs of ``node`` that hold indices."""
    if node.define is None:
        return []
    behind = dict(zip(node.define.inputs, node.inputs, strict=True))
    checked = [e.args[0] for e in walk_exprs(node.define.body) if isinstance(e, Call) and e.name == "checked_index"]
    loads = [e for position in checked for e in walk_exprs(position) if isinstance(e, Load)]
    return list(dict.fromkeys(behind[e.buffer] for e in loads if e.buffer in behind))


def _text(node: Node, positions: Iterable[Node]) -> str:
    if node.origin.file or not node.origin.text:
        return source_name(node.origin.operator) or node.op
    names = [name for n in positions if (name := _name(n, node))]
    text = _node_text(node)
    return f"{text}, whose indices are {' and '.join(dict.fromkeys(names))}" if names else text


def _name(indices: Node, reader: Node) -> str:
    """The model's name for ``indices``, or for the nearest value that they are computed from."""
    while not isinstance(indices, InputNode) and len(indices.inputs) == 1 and indices.origin == reader.origin:
        (indices,) = indices.inputs
    if isinstance(indices, InputNode):
        return _shown(indices.name) if indices.name else ""
    if indices.origin == reader.origin or not indices.origin.text:
        return ""
    return f"the result of {_node_text(indices)}"


def _node_text(node: Node) -> str:
    return f"the {node.origin.operator} node {_shown(node.origin.text)}"


def _shown(name: str) -> str:
    return repr(name if len(name) <= _LONGEST else name[: _LONGEST - 3] + "...")
