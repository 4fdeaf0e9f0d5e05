"""Components of scikit-learn pipelines besides trees: scaling, normalising, imputation, linear models."""

from __future__ import annotations

import numpy as np

from taskmap.graph.importers.onnx.ml.scores import DOMAIN, best, labelled, labels_of, transform_of, transformed
from taskmap.graph.importers.onnx.ops.matmul import matmul
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.host import concrete
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import Value, constant_node
from taskmap.graph.nodes import Node
from taskmap.graph.ops.join import cat
from taskmap.graph.ops.pointwise import number, pointwise, to_dtype
from taskmap.graph.ops.reductions import sum_
from taskmap.graph.ops.views import reshape
from taskmap.ir.construct import call as function_call
from taskmap.ir.construct import eq, maximum, ne, select, unary
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Expr
from taskmap.ir.types import f32

FLOAT, INT64 = 1, 7
LEAST = 1e-30
"""A lower bound for norms."""


def matrix(call: OnnxCall) -> tuple[Node, int]:
    """The input as a matrix of f32 [rows, columns], and its number of columns; a vector is one row."""
    x = call.node(0)
    x = x if len(x.shape) == 2 else reshape(x, [1, *x.shape])
    if len(x.shape) != 2:
        raise call.error(f"its input has {len(call.tensor(0).shape)} dimensions, not one or two")
    return to_dtype(x, f32), concrete(x.shape, call.op)[1]


def _row(call: OnnxCall, name: str, columns: int) -> Node:
    """An attribute with one number for all columns, or one per column."""
    values = np.array(call.required(name), np.float32)
    if len(values) not in (1, columns):
        raise call.error(f"{len(values)} numbers in {name} for {columns} columns")
    return constant_node(values, FLOAT)


@lowering("Scaler", domain=DOMAIN)
def _scaler(call: OnnxCall) -> Node:
    x, columns = matrix(call)
    rows = (_row(call, "offset", columns), _row(call, "scale", columns))
    scaled = pointwise("scaler", (x, *rows), lambda a, o, s: (a - o) * s, f32, f32)
    return reshape(scaled, call.node(0).shape)


@lowering("Normalizer", domain=DOMAIN)
def _normalizer(call: OnnxCall) -> Node:
    x, _ = matrix(call)
    norm = call.attr("norm", "MAX")
    if norm not in ("L1", "L2"):
        raise UnsupportedError(f"the norm {norm}", why="implementations disagree on negative numbers")

    def power(a: Expr) -> Expr:
        return unary("abs", a) if norm == "L1" else a * a

    def divided(a: Expr, total: Expr) -> Expr:
        length = total if norm == "L1" else function_call("sqrt", total)
        return a / maximum(length, number(LEAST, f32))

    total = sum_(pointwise("power", (x,), power), 1, True)
    return reshape(pointwise("normalizer", (x, total), divided, f32, f32), call.node(0).shape)


@lowering("Imputer", domain=DOMAIN)
def _imputer(call: OnnxCall) -> Node:
    x = call.node(0)
    columns = concrete(x.shape, "Imputer")[-1]
    kind, old = ("floats", "float") if x.dtype.is_float else ("int64s", "int64")
    values = np.array(call.required(f"imputed_value_{kind}"), np.float32 if x.dtype.is_float else np.int64)
    replaced = call.attr(f"replaced_value_{old}", 0)
    if len(values) not in (1, columns):
        raise call.error(f"{len(values)} values for {columns} columns")
    filled = to_dtype(constant_node(values, FLOAT if x.dtype.is_float else INT64), x.dtype)

    def chosen(a: Expr, v: Expr) -> Expr:
        missing = ne(a, a) if replaced != replaced else eq(a, number(replaced, a.dtype))
        return select(missing, v, a)

    return pointwise("imputer", (x, filled), chosen, x.dtype, x.dtype)


def _scores(call: OnnxCall, rows: int) -> Node:
    """x times the transposed coefficients (``rows`` rows of them), plus the intercepts."""
    x, columns = matrix(call)
    weights = np.array(call.required("coefficients"), np.float32)
    if rows < 1 or weights.size != rows * columns:
        raise call.error(f"{weights.size} coefficients for {columns} columns and {rows} results")
    product = matmul(x, constant_node(np.ascontiguousarray(weights.reshape(rows, columns).T), FLOAT))
    bias = np.array(call.attr("intercepts") or [0.0], np.float32)
    if len(bias) not in (1, rows):
        raise call.error(f"{len(bias)} intercepts for {rows} results")
    return pointwise("linear", (product, constant_node(bias, FLOAT)), lambda a, b: a + b, f32, f32)


@lowering("LinearRegressor", domain=DOMAIN)
def _regressor(call: OnnxCall) -> Node:
    kind, targets = transform_of(call), int(call.attr("targets", 1))
    if targets == 1 and kind not in ("NONE", "PROBIT"):
        raise UnsupportedError(f"the transformation {kind} of one target", why="implementations disagree on it")
    return transformed(_scores(call, targets), kind)


@lowering("LinearClassifier", domain=DOMAIN)
def _classifier(call: OnnxCall) -> list[Node | Value]:
    kind = transform_of(call)
    labels = labels_of(call, "classlabels_ints", "classlabels_strings")
    columns = matrix(call)[1]
    rows = len(call.required("coefficients")) // max(columns, 1)
    if len(labels) < 2 or rows not in (1, len(labels)) or (rows == 1 and len(labels) != 2):
        raise call.error(f"{rows} rows of coefficients for {len(labels)} classes")
    scores = _scores(call, rows)
    if rows == 1:
        scores = cat([pointwise("opposite", (scores,), lambda a: unary("neg", a)), scores], 1)
    scores = transformed(scores, kind)
    return [labelled(labels, best(scores)), scores]
