"""TreeEnsemble (ai.onnx.ml, version 5)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.importers.onnx.ml.forests import MEMBER, Forest
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.host import concrete, on_host
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.ir.errors import UnsupportedError

Array = NDArray[Any]


@lowering("TreeEnsemble", domain="ai.onnx.ml")
def _tree_ensemble(call: OnnxCall) -> Any:
    x = call.tensor(0)
    rows, features = concrete(x.shape, "a tree ensemble")
    if int(call.attr("post_transform", 0)):
        raise UnsupportedError("a tree ensemble with transformed results")
    forest = _forest(call)
    if (flaw := forest.flaw(features)) is not None:
        raise call.error(flaw)
    return on_host(call, lambda a: forest.run(a).astype(a.dtype), [(x.elem, (rows, forest.targets))], "decision trees")


def _numbers(listed: Any) -> Array:
    return np.array(listed, np.int64).reshape(-1)


def _forest(call: OnnxCall) -> Forest:
    modes = call.array_attr("nodes_modes").reshape(-1)
    missing = call.attr("nodes_missing_value_tracks_true") or [0] * len(modes)
    weights = call.array_attr("leaf_weights").reshape(-1)
    targets = _numbers(call.required("leaf_targetids"))
    if len(targets) != len(weights):
        raise call.error("the lists that describe the trees differ in length")
    return Forest(
        modes=modes,
        splits=call.array_attr("nodes_splits").reshape(-1),
        features=_numbers(call.required("nodes_featureids")),
        yes=_numbers(call.required("nodes_truenodeids")),
        no=_numbers(call.required("nodes_falsenodeids")),
        yes_leaf=_numbers(call.required("nodes_trueleafs")),
        no_leaf=_numbers(call.required("nodes_falseleafs")),
        missing=_numbers(missing).astype(bool),
        roots=_numbers(call.required("tree_roots")),
        leaves=len(weights),
        entry_leaves=np.arange(len(weights)),
        entry_targets=targets,
        weights=weights,
        targets=int(call.required("n_targets")),
        aggregate=int(call.attr("aggregate_function", 1)),
        members=_memberships(call, modes),
    )


def _memberships(call: OnnxCall, modes: Array) -> dict[int, Array]:
    """The set of each node that tests for membership; NaN separates sets."""
    if call.attr("membership_values") is None:
        return {}
    values = call.array_attr("membership_values").reshape(-1)
    sets = np.split(values, np.flatnonzero(np.isnan(values)))
    nodes = [i for i, mode in enumerate(modes) if mode == MEMBER]
    return {node: members[~np.isnan(members)] for node, members in zip(nodes, sets, strict=False)}
