"""Ensembles of decision trees (ai.onnx.ml)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.importers.onnx.call import Call
from taskmap.graph.importers.onnx.host import concrete, on_host
from taskmap.graph.importers.onnx.table import lowering
from taskmap.ir.errors import UnsupportedError

Array = NDArray[Any]
MEMBER = 6
MOST_WALKS = 1 << 18
"""So many walks down a tree are made at once."""
_COMPARE: dict[int, Any] = {
    0: np.less_equal,
    1: np.less,
    2: np.greater_equal,
    3: np.greater,
    4: np.equal,
    5: np.not_equal,
}


@lowering("TreeEnsemble", domain="ai.onnx.ml")
def _tree_ensemble(call: Call) -> Any:
    x = call.tensor(0)
    rows, features = concrete(x.shape, "a tree ensemble")
    forest = _Forest(call, features)
    return on_host(call, forest.run, [(x.elem, (rows, forest.targets))], "decision trees")


def _numbers(listed: Any) -> Array:
    return np.array(listed, np.int64).reshape(-1)


class _Forest:
    """The trees of a TreeEnsemble, checked so that walking down them ends."""

    def __init__(self, call: Call, features: int) -> None:
        self.modes = call.array_attr("nodes_modes").reshape(-1)
        self.splits = call.array_attr("nodes_splits").reshape(-1)
        self.features = _numbers(call.required("nodes_featureids"))
        self.yes, self.no = (_numbers(call.required(f"nodes_{w}nodeids")) for w in ("true", "false"))
        self.yes_leaf, self.no_leaf = (_numbers(call.required(f"nodes_{w}leafs")) for w in ("true", "false"))
        self.roots, self.weights = _numbers(call.required("tree_roots")), call.array_attr("leaf_weights").reshape(-1)
        self.leaf_targets = _numbers(call.required("leaf_targetids"))
        missing = call.attr("nodes_missing_value_tracks_true") or [0] * len(self.modes)
        self.missing = _numbers(missing).astype(bool)
        self.targets = int(call.required("n_targets"))
        self.aggregate = int(call.attr("aggregate_function", 1))
        self.members = self._memberships(call)
        if int(call.attr("post_transform", 0)):
            raise UnsupportedError("a tree ensemble whose results are transformed")
        self._check(call, features)

    def _memberships(self, call: Call) -> dict[int, Array]:
        """The set of each node that asks for membership; sets are separated by NaN."""
        found: dict[int, Array] = {}
        if call.attr("membership_values") is None:
            return found
        values = call.array_attr("membership_values").reshape(-1)
        sets = np.split(values, np.flatnonzero(np.isnan(values)))
        nodes = [i for i, mode in enumerate(self.modes) if mode == MEMBER]
        for node, members in zip(nodes, sets, strict=False):
            found[node] = members[~np.isnan(members)]
        return found

    def _check(self, call: Call, features: int) -> None:
        count, leaves = len(self.modes), len(self.weights)
        lists = (self.splits, self.features, self.yes, self.no, self.yes_leaf, self.no_leaf, self.missing)
        if any(len(part) != count for part in lists) or len(self.leaf_targets) != leaves:
            raise call.error("the lists that describe the trees differ in length")
        for i in range(count):
            for child, is_leaf in ((self.yes[i], self.yes_leaf[i]), (self.no[i], self.no_leaf[i])):
                if not (0 <= child < leaves if is_leaf else 0 <= child < count):
                    raise call.error(f"node {i} of a tree leads to {child}, which is not there")
        inside = all(0 <= f < features for f in self.features) and all(0 <= r < count for r in self.roots)
        if not inside or not 1 <= self.targets <= 1 << 20 or any(not 0 <= t < self.targets for t in self.leaf_targets):
            raise call.error("a feature, a root or a target of the trees is out of range")

    def run(self, x: Array) -> Array:
        """[rows, targets] from [rows, features]."""
        start = {2: np.inf, 3: -np.inf}.get(self.aggregate, 0.0)
        result = np.full((len(x), self.targets), start, np.float64)
        combine = {2: np.minimum, 3: np.maximum}.get(self.aggregate, np.add)
        step = max(MOST_WALKS // max(len(self.roots), 1), 1)
        for first in range(0, len(x), step):
            leaves = self._leaves(x[first : first + step])
            rows = np.broadcast_to(first + np.arange(len(leaves))[:, None], leaves.shape)
            combine.at(result, (rows, self.leaf_targets[leaves]), self.weights[leaves].astype(np.float64))
        if self.aggregate == 0:
            result /= len(self.roots)
        return np.where(np.isinf(result), 0.0, result).astype(x.dtype)

    def _leaves(self, x: Array) -> Array:
        """The leaf of every row in every tree: all walk down together, a level at a time.

        A root that leads to one leaf on both sides is a leaf; a walk longer than the number of nodes is a cycle.
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
        """Whether these values pass the tests of these nodes."""
        passed = np.zeros(len(node), bool)
        modes = self.modes[node]
        for mode, test in _COMPARE.items():
            at = modes == mode
            passed[at] = test(value[at], self.splits[node[at]])
        for place in np.unique(node[modes == MEMBER]):
            at = node == place
            passed[at] = np.isin(value[at], self.members.get(int(place), np.zeros(0)))
        return np.asarray(passed | (np.isnan(value) & self.missing[node]))
