"""Ensembles of decision trees as arrays of nodes, evaluated by numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(7)
AVERAGE, SUM, MIN, MAX = range(4)
MOST_WALKS = 1 << 18
"""The number of (row, tree) pairs evaluated at once."""
_COMPARE: dict[int, Any] = {
    LEQ: np.less_equal,
    LT: np.less,
    GTE: np.greater_equal,
    GT: np.greater,
    EQ: np.equal,
    NEQ: np.not_equal,
}


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Trees whose nodes, and whose leaves, are numbered consecutively through all trees.

    A node compares ``features`` of a row with ``splits`` by ``modes`` and leads to ``yes`` or ``no``, which is a leaf's
    number if ``yes_leaf`` or ``no_leaf`` holds. Entry i of ``weights`` adds to target ``entry_targets[i]`` of leaf
    ``entry_leaves[i]``; entries are sorted by leaf. ``members`` maps each node that tests for membership to its set.
    """

    modes: Array
    splits: Array
    features: Array
    yes: Array
    no: Array
    yes_leaf: Array
    no_leaf: Array
    missing: Array
    roots: Array
    leaves: int
    entry_leaves: Array
    entry_targets: Array
    weights: Array
    targets: int
    aggregate: int = SUM
    members: dict[int, Array] = field(default_factory=dict)

    def flaw(self, features: int) -> str | None:
        """The reason why the trees do not fit rows of this many features, or None; no index is then out of range."""
        count = len(self.modes)
        lists = (self.splits, self.features, self.yes, self.no, self.yes_leaf, self.no_leaf, self.missing)
        if any(len(part) != count for part in lists) or len(self.entry_leaves) != len(self.weights):
            return "the lists that describe the trees differ in length"
        for child, is_leaf in ((self.yes, self.yes_leaf), (self.no, self.no_leaf)):
            limit = np.where(is_leaf.astype(bool), self.leaves, count)
            wrong = np.flatnonzero((child < 0) | (child >= limit))
            if len(wrong):
                return f"node {wrong[0]} of a tree leads to {child[wrong[0]]}, which does not exist"
        inside = _within(self.features, features) and _within(self.roots, count)
        if not inside or not 1 <= self.targets <= 1 << 20 or not _within(self.entry_targets, self.targets):
            return "a feature, a root or a target of the trees is out of range"
        return None

    def run(self, x: Array) -> Array:
        """The aggregate of the leaves for each target, f64 [rows, targets], from ``x`` [rows, features]."""
        start = {MIN: np.inf, MAX: -np.inf}.get(self.aggregate, 0.0)
        result = np.full((len(x), self.targets), start, np.float64)
        combine = {MIN: np.minimum, MAX: np.maximum}.get(self.aggregate, np.add)
        first = np.searchsorted(self.entry_leaves, np.arange(self.leaves + 1))
        most = int(np.diff(first).max(initial=0))
        step = max(MOST_WALKS // max(len(self.roots), 1), 1)
        for begin in range(0, len(x), step):
            leaves = self._leaves(x[begin : begin + step])
            rows = np.broadcast_to(begin + np.arange(len(leaves))[:, None], leaves.shape)
            for i in range(most):
                entry = first[leaves] + i
                has = entry < first[leaves + 1]
                entry = entry[has]
                combine.at(result, (rows[has], self.entry_targets[entry]), self.weights[entry].astype(np.float64))
        if self.aggregate == AVERAGE:
            result /= len(self.roots)
        return np.where(np.isinf(result), 0.0, result)

    def _leaves(self, x: Array) -> Array:
        """The leaf of every row in every tree: all pairs descend together, one level at a time.

        A root that leads to one leaf on both sides is a leaf. A path longer than the number of nodes is a cycle.
        """
        rows, trees = np.indices((len(x), len(self.roots))).reshape(2, -1)
        node = self.roots[trees]
        found = np.empty((len(x), len(self.roots)), np.int64)
        for _ in range(len(self.modes) + 1):
            taken = self._tests(node, x[rows, self.features[node]])
            child = np.where(taken, self.yes[node], self.no[node])
            ends = np.where(taken, self.yes_leaf[node], self.no_leaf[node]).astype(bool)
            found[rows[ends], trees[ends]] = child[ends]
            rows, trees, node = rows[~ends], trees[~ends], child[~ends]
            if not len(node):
                return found
        raise ValueError("the nodes of a tree form a cycle")

    def _tests(self, node: Array, value: Array) -> Array:
        """True where these values pass the tests of these nodes."""
        passed = np.zeros(len(node), bool)
        modes = self.modes[node]
        for mode, test in _COMPARE.items():
            at = modes == mode
            passed[at] = test(value[at], self.splits[node[at]])
        for place in np.unique(node[modes == MEMBER]):
            at = node == place
            passed[at] = np.isin(value[at], self.members.get(int(place), np.zeros(0)))
        return np.asarray(passed | (np.isnan(value) & self.missing[node]))


def _within(values: Array, limit: int) -> bool:
    return bool(np.all((values >= 0) & (values < limit)))
