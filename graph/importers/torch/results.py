"""The results of an operator that a graph reads."""

from __future__ import annotations

import operator

from torch import fx


def read_results(node: fx.Node) -> frozenset[int]:
    """Their positions; all if the results are passed on together."""
    if any(user.target is not operator.getitem for user in node.users):
        return frozenset(range(len(node.target._schema.returns)))  # type: ignore[union-attr]  # an operator of ATen
    return frozenset(int(user.args[1]) for user in node.users)  # type: ignore[arg-type]  # a position
