"""SVMRegressor and SVMClassifier: kernels of support vectors, votes between pairs of classes, and probabilities.

A classifier decides between each two classes i < j by the score of that pair; a positive score votes for i. With
``prob_a`` and ``prob_b`` the scores become probabilities of pairs, which are coupled to one probability per class.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.importers.onnx.ml.linear_models import matrix
from taskmap.graph.importers.onnx.ml.scores import DOMAIN, best, labelled, labels_of, transform_of, transformed
from taskmap.graph.importers.onnx.ops.matmul import matmul
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.host import on_host
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import Tensor, Value, constant_node
from taskmap.graph.nodes import Node
from taskmap.graph.ops.join import cat
from taskmap.graph.ops.pointwise import number, pointwise
from taskmap.graph.ops.reductions import sum_
from taskmap.graph.ops.views import unsqueeze
from taskmap.ir.construct import call as function_call
from taskmap.ir.construct import compare, select, unary
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Expr
from taskmap.ir.types import f32

Array = NDArray[Any]
FLOAT = 1
LEAST = 1e-7
"""Probabilities of pairs lie between this and 1 minus this."""
MOST_ROUNDS = 100


def _floats(call: OnnxCall, name: str) -> Array:
    return np.array(call.attr(name) or [], np.float32)


def _kernels(call: OnnxCall, x: Node, vectors: Array) -> Node:
    """The kernel of each row of ``x`` with each of ``vectors`` [count, columns]: [rows, count]."""
    kind = str(call.attr("kernel_type", "LINEAR"))
    if kind not in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        raise call.error(f"the standard has no kernel {kind}")
    given = _floats(call, "kernel_params")
    if kind != "LINEAR" and len(given) != 3:
        raise call.error(f"kernel_params has {len(given)} entries, not 3")
    gamma, offset, degree = (number(float(v), f32) for v in (given if len(given) == 3 else (0.0, 0.0, 0.0)))
    if kind == "RBF":
        others = constant_node(vectors[None], FLOAT)
        squares = pointwise("square", (unsqueeze(x, 1), others), lambda a, b: (a - b) * (a - b), f32, f32)
        return pointwise("rbf", (sum_(squares, 2),), lambda d: function_call("exp", unary("neg", gamma * d)))
    product = matmul(x, constant_node(np.ascontiguousarray(vectors.T), FLOAT))
    if kind == "POLY":
        return pointwise("poly", (product,), lambda a: function_call("pow", a * gamma + offset, degree))
    if kind == "SIGMOID":
        return pointwise("sigmoid", (product,), lambda a: function_call("tanh", a * gamma + offset))
    return product


def _vectors(call: OnnxCall, count: int, columns: int) -> Array:
    vectors = _floats(call, "support_vectors")
    if vectors.size != count * columns:
        raise call.error(f"{vectors.size} numbers in support_vectors for {count} vectors of {columns} columns")
    return vectors.reshape(count, columns)


def _weighted(kernels: Node, weights: Array, bias: Array) -> Node:
    """``kernels`` [rows, count] times ``weights`` [count, results], plus ``bias``."""
    product = matmul(kernels, constant_node(np.ascontiguousarray(weights, np.float32), FLOAT))
    return pointwise("weighted", (product, constant_node(bias, FLOAT)), lambda a, b: a + b, f32, f32)


@lowering("SVMRegressor", domain=DOMAIN)
def _regressor(call: OnnxCall) -> Node:
    if (kind := transform_of(call)) != "NONE":
        raise UnsupportedError(f"the transformation {kind} of a vector machine's result")
    x, columns = matrix(call)
    weights, rho, count = _floats(call, "coefficients"), _floats(call, "rho"), int(call.attr("n_supports", 0))
    if len(weights) != (count or columns) or len(rho) != 1:
        raise call.error(f"{len(weights)} coefficients and {len(rho)} numbers in rho do not fit its vectors")
    kernels = _kernels(call, x, _vectors(call, count, columns)) if count else x
    result = _weighted(kernels, weights[:, None], rho)
    if not call.attr("one_class", 0):
        return result
    one, zero = number(1.0, f32), number(0.0, f32)
    return pointwise("side", (result,), lambda a: select(compare("gt", a, zero), one, unary("neg", one)))


@lowering("SVMClassifier", domain=DOMAIN)
def _classifier(call: OnnxCall) -> list[Node | Value]:
    labels = labels_of(call, "classlabels_ints", "classlabels_strings")
    if not call.attr("vectors_per_class"):
        return _linear(call, labels)
    classes, kind = len(labels), transform_of(call)
    scores = _pair_scores(call, classes)
    votes = best(_votes(scores, classes))
    if call.attr("prob_a"):
        return [labelled(labels, votes), transformed(_probabilities(call, scores, classes), kind)]
    if classes > 2:
        return [labelled(labels, votes), transformed(scores, kind)]
    if kind not in ("NONE", "LOGISTIC"):
        raise UnsupportedError(f"the transformation {kind} of one score", why="implementations disagree on it")
    if (_floats(call, "coefficients") >= 0).all():
        raise UnsupportedError("coefficients of two classes that are all positive")
    opposite = pointwise("opposite", (scores,), lambda a: unary("neg", a))
    return [labelled(labels, votes), transformed(cat([opposite, scores], 1), kind)]


def _linear(call: OnnxCall, labels: Any) -> list[Node | Value]:
    """A classifier without support vectors: the coefficients are one row for each class."""
    x, columns = matrix(call)
    weights, rho = _floats(call, "coefficients"), _floats(call, "rho")
    if weights.size != len(labels) * columns or not len(rho):
        raise call.error(f"{weights.size} coefficients for {columns} columns and {len(labels)} classes")
    if len(labels) < 3 or len(rho) == 1:
        raise UnsupportedError("a linear vector machine for two classes", why="implementations disagree on its labels")
    scores = _weighted(x, weights.reshape(len(labels), columns).T, rho[:1])
    return [labelled(labels, best(scores)), transformed(scores, transform_of(call))]


def _pair_scores(call: OnnxCall, classes: int) -> Node:
    """One score for each pair of classes, [rows, pairs].

    Row r of the coefficients holds, for a vector of class c, its weight against class r, or r + 1 from c on.
    """
    x, columns = matrix(call)
    counts: list[int] = call.required("vectors_per_class")
    total, rho, weights = sum(counts), _floats(call, "rho"), _floats(call, "coefficients")
    pairs = list(combinations(range(classes), 2))
    if len(counts) != classes or classes < 2 or min(counts) < 0 or weights.size != (classes - 1) * total:
        raise call.error(f"{weights.size} coefficients and {len(counts)} numbers of vectors for {classes} classes")
    if len(rho) != len(pairs):
        raise call.error(f"{len(rho)} numbers in rho for {len(pairs)} pairs of classes")
    rows, first = weights.reshape(classes - 1, total), np.cumsum([0, *counts])
    table = np.zeros((total, len(pairs)), np.float32)
    for pair, (i, j) in enumerate(pairs):
        table[first[i] : first[i + 1], pair] = rows[j - 1, first[i] : first[i + 1]]
        table[first[j] : first[j + 1], pair] = rows[i, first[j] : first[j + 1]]
    return _weighted(_kernels(call, x, _vectors(call, total, columns)), table, rho)


def _votes(scores: Node, classes: int) -> Node:
    """The number of pairs that each class wins, [rows, classes]."""
    pairs = list(combinations(range(classes), 2))
    table, lost = np.zeros((len(pairs), classes), np.float32), np.zeros(classes, np.float32)
    for pair, (i, j) in enumerate(pairs):
        table[pair, i], table[pair, j] = 1, -1
        lost[j] += 1
    zero = number(0.0, f32)

    def won(a: Expr) -> Expr:
        return select(compare("gt", a, zero), number(1.0, f32), zero)

    return _weighted(pointwise("won", (scores,), won), table, lost)


def _probabilities(call: OnnxCall, scores: Node, classes: int) -> Node:
    """The probability of each class, [rows, classes], from the scores of pairs."""
    a, b = _floats(call, "prob_a"), _floats(call, "prob_b")
    pairs = classes * (classes - 1) // 2
    if len(a) != pairs or len(b) != pairs:
        raise call.error(f"{len(a)} numbers in prob_a and {len(b)} in prob_b for {pairs} pairs of classes")

    def run(s: Array) -> Array:
        pair = 1 / (1 + np.exp(s.astype(np.float64) * a + b))
        return coupled(np.clip(pair, LEAST, 1 - LEAST), classes).astype(np.float32)

    given = replace(call, inputs=[Tensor(FLOAT, scores.shape, made=scores)])
    return on_host(given, run, [(FLOAT, (scores.shape[0], classes))], "probabilities coupled from pairs")[0].node()


def coupled(pair: Array, classes: int) -> Array:
    """Probabilities of the classes, [rows, classes], from those of class i against class j, [rows, pairs].

    The iteration of Wu, Lin and Weng (2004), "Probability estimates for multi-class classification by pairwise
    coupling", algorithm 2. A row ends when no residual exceeds 0.005 / classes, as in LIBSVM, whose results include the
    error that this leaves.
    """
    first, second = np.array(list(combinations(range(classes), 2))).T
    r = np.zeros((len(pair), classes, classes))
    r[:, first, second], r[:, second, first] = pair, 1 - pair
    q = -r.transpose(0, 2, 1) * r
    places = np.arange(classes)
    q[:, places, places] = (r**2).sum(1)
    p = np.full((len(pair), classes), 1 / classes)
    rows = np.arange(len(pair))
    for _ in range(max(MOST_ROUNDS, classes)):
        left = q[rows]
        qp = (left @ p[rows, :, None])[..., 0]
        total = (p[rows] * qp).sum(1)
        going = np.abs(qp - total[:, None]).max(1, initial=0) >= 0.005 / classes
        rows, left, qp, total = rows[going], left[going], qp[going], total[going]
        if not len(rows):
            break
        for t in range(classes):
            step = (total - qp[:, t]) / left[:, t, t]
            grown = 1 + step
            p[rows, t] += step
            total = (total + step * (step * left[:, t, t] + 2 * qp[:, t])) / grown**2
            p[rows] /= grown[:, None]
            qp = (qp + step[:, None] * left[:, t]) / grown[:, None]
    return p
