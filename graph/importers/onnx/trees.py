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


class _Forest:
    """The trees of a TreeEnsemble, checked so that walking down them ends."""

    def __init__(self, call: Call, features: int) -> None:
        self.modes = call.array_attr("nodes_modes").reshape(-1)
        self.splits = call.array_attr("nodes_splits").reshape(-1)
        self.features = call.required("nodes_featureids")
        self.yes, self.no = call.required("nodes_truenodeids"), call.required("nodes_falsenodeids")
        self.yes_leaf, self.no_leaf = call.required("nodes_trueleafs"), call.required("nodes_falseleafs")
        self.roots, self.weights = call.required("tree_roots"), call.array_attr("leaf_weights").reshape(-1)
        self.leaf_targets = call.required("leaf_targetids")
        self.missing = call.attr("nodes_missing_value_tracks_true") or [0] * len(self.modes)
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
        for row, values in enumerate(x):
            for root in self.roots:
                leaf = self._leaf(values, root)
                target, weight = self.leaf_targets[leaf], float(self.weights[leaf])
                result[row, target] = self._joined(result[row, target], weight)
        if self.aggregate == 0:
            result /= len(self.roots)
        return np.where(np.isinf(result), 0.0, result).astype(x.dtype)

    def _joined(self, a: float, b: float) -> float:
        if self.aggregate == 2:
            return min(a, b)
        return max(a, b) if self.aggregate == 3 else a + b

    def _leaf(self, values: Array, root: int) -> int:
        # A root that leads to one leaf on both sides is a leaf; a walk longer than the number of nodes is a cycle.
        node = root
        for _ in range(len(self.modes) + 1):
            taken = self._test(node, values[self.features[node]])
            child, is_leaf = (self.yes[node], self.yes_leaf[node]) if taken else (self.no[node], self.no_leaf[node])
            if is_leaf:
                return int(child)
            node = child
        raise ValueError("the nodes of a tree form a cycle")

    def _test(self, node: int, value: Any) -> bool:
        if np.isnan(value) and self.missing[node]:
            return True
        if self.modes[node] == MEMBER:
            return bool((self.members.get(node, np.zeros(0)) == value).any())
        return bool(_COMPARE[int(self.modes[node])](value, self.splits[node]))
