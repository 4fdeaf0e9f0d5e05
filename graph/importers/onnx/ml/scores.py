"""Scores of classes and targets (ai.onnx.ml): their transformations, and the labels of the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import STRING
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import PresentedValue, Tensor, Value, constant_node
from taskmap.graph.nodes import Node
from taskmap.graph.ops.gather import embedding
from taskmap.graph.ops.pointwise import number, pointwise, to_dtype
from taskmap.graph.ops.reductions import amax, argmax, sum_
from taskmap.graph.ops.softmax import softmax
from taskmap.graph.ops.views import reshape
from taskmap.ir.construct import call as function_call
from taskmap.ir.construct import compare, select, static_size, unary
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Expr
from taskmap.ir.types import i64

INT64 = 7
DOMAIN = "ai.onnx.ml"
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
ZERO = 1e-7
"""SOFTMAX_ZERO treats scores no farther from 0 than this as 0."""
_WINITZKI = 0.147
"""The constant of Winitzki's approximation of the inverse error function."""


def transform_of(call: OnnxCall) -> str:
    """The transformation that the call requests. Raises UnsupportedError for one outside the standard."""
    kind = str(call.attr("post_transform", "NONE"))
    if kind not in TRANSFORMS:
        raise UnsupportedError(f"the transformation {kind} of scores")
    return kind


def transformed(scores: Node, kind: str) -> Node:
    """``scores`` [rows, classes] after the transformation ``kind``."""
    if kind == "LOGISTIC":
        return pointwise("logistic", (scores,), lambda a: function_call("sigmoid", a))
    if kind == "SOFTMAX":
        return softmax(scores, 1)
    if kind == "SOFTMAX_ZERO":
        return _softmax_zero(scores)
    if kind == "PROBIT":
        return pointwise("probit", (scores,), _probit)
    return scores


def _softmax_zero(scores: Node) -> Node:
    """A softmax in which scores of 0 stay near 0 instead of becoming a power of e."""

    def power(a: Expr, top: Expr) -> Expr:
        counts = compare("gt", unary("abs", a), number(ZERO, a.dtype))
        return select(counts, function_call("exp", a - top), a * function_call("exp", unary("neg", top)))

    powers = pointwise("power", (scores, amax(scores, 1, True)), power)

    def share(a: Expr, total: Expr) -> Expr:
        return select(compare("eq", total, number(0.0, a.dtype)), a, a / total)

    return pointwise("share", (powers, sum_(powers, 1, True)), share)


def _probit(a: Expr) -> Expr:
    """sqrt(2) times the inverse error function of 2 a - 1, by Winitzki's approximation."""

    def constant(value: float) -> Expr:
        return number(value, a.dtype)

    x = a * constant(2.0) - constant(1.0)
    log = function_call("log", (constant(1.0) - x) * (constant(1.0) + x))
    half = constant(2.0 / (math.pi * _WINITZKI)) + constant(0.5) * log
    root = function_call("sqrt", half * half - log * constant(1.0 / _WINITZKI))
    size = function_call("sqrt", root - half) * constant(math.sqrt(2.0))
    return select(compare("lt", x, constant(0.0)), unary("neg", size), size)


def labels_of(call: OnnxCall, *names: str) -> Sequence[int] | Sequence[str]:
    """The labels of the classes, integers or strings, from whichever of these attributes is given."""
    given: list[Any] = [call.attr(n) for n in names if call.attr(n)]
    if len(given) != 1:
        raise call.error("labels of its classes are given " + ("twice" if given else "nowhere"))
    labels: Sequence[int] | Sequence[str] = given[0]
    return labels


def labelled(labels: Sequence[int] | Sequence[str], places: Node) -> Value:
    """The labels at ``places`` [rows]."""
    elem = STRING if all(isinstance(v, str) for v in labels) else INT64
    table = constant_node(np.array(labels, object if elem == STRING else np.int64).reshape(-1, 1), elem)
    made = reshape(embedding(table, to_dtype(places, i64)), [places.shape[0]])
    return Tensor(elem, made.shape, made=made)


def best(scores: Node) -> Node:
    """The class with the highest score, [rows]; the first one among equals."""
    return argmax(scores, 1)


@lowering("ZipMap", domain=DOMAIN)
def _zip_map(call: OnnxCall) -> PresentedValue:
    """A map from labels to scores for each row."""
    labels = labels_of(call, "classlabels_int64s", "classlabels_strings")
    x = call.tensor(0)
    if len(x.shape) not in (1, 2) or static_size(x.shape[-1]) != len(labels):
        raise call.error(f"{len(labels)} labels for scores of shape {list(x.shape)}")

    def present(scores: Any) -> list[dict[Any, float]]:
        return [dict(zip(labels, row, strict=True)) for row in np.atleast_2d(scores).tolist()]

    return PresentedValue(Tensor(x.elem, x.shape, made=call.node(0)), present)
