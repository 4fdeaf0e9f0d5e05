"""The error for a model with unsupported operators: one line for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taskmap.graph.importers.onnx.read.protos import shown
from taskmap.ir.errors import UnsupportedError

Missing = dict[str, list[str]]
"""Maps each operator, with the reason if there is one, to the names of its nodes."""
_NODES = 3
_KINDS = 100


def lacking(missing: Mapping[str, Sequence[str]]) -> UnsupportedError:
    """The error for unsupported operators, those with the same reason together, most frequent first: each with its
    name, its number of nodes, and the first of them."""
    kinds = sorted(missing, key=lambda kind: (kind.partition(" (")[2], -len(missing[kind]), kind))
    nodes = sum(map(len, missing.values()))
    lines = [_line(kind, missing[kind]) for kind in kinds[:_KINDS]]
    more = [f"and {len(kinds) - _KINDS} more operators"] if len(kinds) > _KINDS else []
    return UnsupportedError(
        f"the model has {_count(len(kinds), 'operator')} that taskmap does not have, in {_count(nodes, 'node')}",
        where="\n".join(lines + more),
        hint=f"Run it with another runtime, or replace {'this operator' if len(kinds) == 1 else 'these operators'}.",
    )


def _line(kind: str, nodes: Sequence[str]) -> str:
    names = [shown(name) for name in nodes[:_NODES]]
    rest = [f"{len(nodes) - _NODES} more"] if len(nodes) > _NODES else []
    return f"{kind}: {_count(len(nodes), 'node')}, {', '.join(names + rest)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
