"""TreeEnsembleClassifier and TreeEnsembleRegressor (ai.onnx.ml), as exported from scikit-learn and XGBoost."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.importers.onnx.ml.forests import SUM, Forest
from taskmap.graph.importers.onnx.ml.scores import DOMAIN, best, labelled, labels_of, transform_of, transformed
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.host import concrete, on_host
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import Value
from taskmap.graph.nodes import Node
from taskmap.graph.ops.join import cat
from taskmap.graph.ops.pointwise import number, pointwise, to_dtype
from taskmap.graph.ops.views import reshape, slice_
from taskmap.ir.construct import call as function_call
from taskmap.ir.construct import compare, unary
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.types import boolean, f32, i64

Array = NDArray[Any]
FLOAT = 1
MODES = {f"BRANCH_{name}": mode for mode, name in enumerate(("LEQ", "LT", "GTE", "GT", "EQ", "NEQ"))}
LEAF = "LEAF"


def _listed(call: OnnxCall, name: str) -> Array:
    """An attribute of floats, or the tensor attribute of the same name."""
    if call.attr(f"{name}_as_tensor") is not None:
        return call.array_attr(f"{name}_as_tensor").reshape(-1)
    return np.array(call.attr(name) or [], np.float32)


def _ints(call: OnnxCall, name: str, count: int | None = None) -> Array:
    found = np.array(call.attr(name) or [0] * (count or 0), np.int64)
    if count is not None and len(found) != count:
        raise call.error(f"{name} has {len(found)} entries, not {count}")
    return found


def _forest(call: OnnxCall, kind: str, targets: int) -> Forest:
    """The trees; ``kind`` is the prefix of the attributes for the leaves' weights."""
    words: list[str] = call.required("nodes_modes")
    count = len(words)
    unknown = set(words) - {*MODES, LEAF}
    if unknown:
        raise UnsupportedError(f"trees whose nodes are {sorted(unknown)[0]}")
    trees, ids = _ints(call, "nodes_treeids", count), _ints(call, "nodes_nodeids", count)
    places = {(int(t), int(n)): i for i, (t, n) in enumerate(zip(trees, ids, strict=True))}
    if len(places) != count:
        raise call.error("two nodes of a tree have the same number")
    is_leaf = np.array([w == LEAF for w in words], bool)
    leaf_number = np.cumsum(is_leaf) - 1
    sides = [_children(call, f"nodes_{side}nodeids", places, trees, is_leaf) for side in ("true", "false")]
    ends = [np.where(side < 0, False, is_leaf[side]) for side in sides]
    yes, no = (np.where(e, leaf_number[side], side) for side, e in zip(sides, ends, strict=True))
    entry_ids = (_ints(call, f"{kind}_treeids"), _ints(call, f"{kind}_nodeids"))
    entries = np.array([places.get((int(t), int(n)), -1) for t, n in zip(*entry_ids, strict=False)], np.int64)
    weights, entry_targets = _listed(call, f"{kind}_weights"), _ints(call, f"{kind}_ids")
    if len({len(entries), len(weights), len(entry_targets), *map(len, entry_ids)}) != 1:
        raise call.error("the lists that describe the leaves differ in length")
    if len(entries) and (entries.min() < 0 or not is_leaf[entries].all()):
        raise call.error("a weight belongs to a node that is not a leaf")
    order = np.argsort(leaf_number[entries], kind="stable") if len(entries) else entries
    reached = np.unique(np.concatenate([side[~is_leaf] for side in sides]))
    roots = np.setdiff1d(np.arange(count), reached)
    if len(np.unique(trees[roots])) != len(roots) or len(roots) != len(np.unique(trees)):
        raise call.error("a tree has no root, or several roots")
    values = _listed(call, "nodes_values")
    if len(values) != count:
        raise call.error(f"nodes_values has {len(values)} entries, not {count}")
    aggregate = ("AVERAGE", "SUM", "MIN", "MAX").index(call.attr("aggregate_function", "SUM"))
    return Forest(
        modes=np.array([MODES.get(w, 0) for w in words], np.int64),
        splits=values,
        features=np.where(is_leaf, 0, _ints(call, "nodes_featureids", count)),
        yes=yes,
        no=no,
        yes_leaf=ends[0],
        no_leaf=ends[1],
        missing=_ints(call, "nodes_missing_value_tracks_true", count).astype(bool),
        roots=roots,
        leaves=int(is_leaf.sum()),
        entry_leaves=leaf_number[entries][order] if len(entries) else entries,
        entry_targets=entry_targets[order] if len(entries) else entry_targets,
        weights=weights[order] if len(entries) else weights,
        targets=targets,
        aggregate=aggregate if kind == "target" else SUM,
    )


def _children(call: OnnxCall, name: str, places: dict[tuple[int, int], int], trees: Array, is_leaf: Array) -> Array:
    """The position of each node's child: a leaf's own for a leaf, -1 if it is missing."""
    named = _ints(call, name, len(trees))
    found = [places.get((int(t), int(n)), -1) for t, n in zip(trees, named, strict=True)]
    return np.where(is_leaf, np.arange(len(trees)), np.array(found, np.int64).reshape(-1))


def _sums(call: OnnxCall, forest: Forest) -> Node:
    """The sums over all trees for each row, [rows, targets], including the base values."""
    x = call.tensor(0)
    shape = x.shape if len(x.shape) == 2 else (1, *x.shape)
    rows, features = concrete(shape, "a tree ensemble")
    if (flaw := forest.flaw(features)) is not None:
        raise call.error(flaw)
    base = _listed(call, "base_values")
    if len(base) not in (0, forest.targets):
        raise call.error(f"{len(base)} base values for {forest.targets} targets")

    def run(a: Array) -> Array:
        made = forest.run(a.reshape(rows, features))
        return (made + base if len(base) else made).astype(np.float32)

    return on_host(call, run, [(FLOAT, (rows, forest.targets))], "decision trees")[0].node()


@lowering("TreeEnsembleRegressor", domain=DOMAIN)
def _regressor(call: OnnxCall) -> Node:
    kind, targets = transform_of(call), int(call.required("n_targets"))
    if targets == 1 and kind not in ("NONE", "PROBIT"):
        raise UnsupportedError(f"the transformation {kind} of one target", why="implementations disagree on it")
    return transformed(_sums(call, _forest(call, "target", targets)), kind)


@lowering("TreeEnsembleClassifier", domain=DOMAIN)
def _classifier(call: OnnxCall) -> list[Node | Value]:
    kind = transform_of(call)
    labels = labels_of(call, "classlabels_int64s", "classlabels_strings")
    forest = _forest(call, "class", len(labels))
    sums = _sums(call, forest)
    if len(labels) == 2 and len(np.unique(forest.entry_targets)) == 1:
        return _binary(call, labels, forest, sums, kind)
    return [labelled(labels, best(sums)), transformed(sums, kind)]


def _binary(call: OnnxCall, labels: Any, forest: Forest, sums: Node, kind: str) -> list[Node | Value]:
    """Two classes with weights for only one: its sum is a share of 1 if no weight is negative, else a score."""
    (place,) = np.unique(forest.entry_targets)
    share = bool((forest.weights >= 0).all())
    score = slice_(sums, 1, int(place), int(place) + 1)
    least = number(0.5 if share else 0.0, f32)
    chosen = to_dtype(pointwise("chosen", (score,), lambda a: compare("gt", a, least), boolean), i64)
    label = labelled(labels, reshape(chosen, [chosen.shape[0]]))
    if place == 1:
        return [label, transformed(sums, kind)]
    if kind == "PROBIT":
        raise UnsupportedError("the transformation PROBIT of one score for two classes")
    if kind == "LOGISTIC":
        other = pointwise("opposite", (score,), lambda a: function_call("sigmoid", unary("neg", a)))
        return [label, cat([other, transformed(score, kind)], 1)]
    top = number(1.0 if share else 0.0, f32)
    return [label, cat([pointwise("opposite", (score,), lambda a: top - a), score], 1)]
