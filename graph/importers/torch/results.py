"""The results of an operator that a graph reads."""

from __future__ import annotations

import operator

from torch import fx


def read_results(node: fx.Node) -> frozenset[int]:
    """Their positions; all that there may be if the results are passed on together."""
    if any(user.target is not operator.getitem for user in node.users):
        return frozenset(range(8))
    return frozenset(int(user.args[1]) for user in node.users)  # type: ignore[arg-type]  # a position
