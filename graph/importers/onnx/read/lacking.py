"""The refusal of a model for its operators: one line for each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taskmap.graph.importers.onnx.read.protos import shown
from taskmap.ir.errors import UnsupportedError

Missing = dict[str, list[str]]
"""By operator, with the reason where there is one, the names of its nodes."""
_NODES = 3
_KINDS = 100


def lacking(missing: Mapping[str, Sequence[str]]) -> UnsupportedError:
    """The error for operators that cannot be run: for each its name, the number of its nodes, and the first of them;
    the most frequent operator first."""
    kinds = sorted(missing, key=lambda kind: (-len(missing[kind]), kind))
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
