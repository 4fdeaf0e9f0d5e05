"""Categories: labels by a table, one-hot encoding, and features side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from taskmap.graph.importers.onnx.ml.scores import DOMAIN, INT64
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import STRING
from taskmap.graph.importers.onnx.read.host import concrete, on_host
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import Tensor, constant_node
from taskmap.graph.nodes import Node
from taskmap.graph.ops.creation import full
from taskmap.graph.ops.join import cat
from taskmap.graph.ops.pointwise import number, pointwise, to_dtype
from taskmap.graph.ops.views import slice_, unsqueeze
from taskmap.ir.construct import eq, select, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.types import f32

Array = NDArray[Any]
TABLE = "a table of labels"


@lowering("LabelEncoder", domain=DOMAIN, since=2)
def _label_encoder(call: OnnxCall) -> Tensor:
    keys, values = _table(call, "keys"), _table(call, "values")
    if keys is None or values is None or len(keys) != len(values):
        raise call.error("keys and values of the table differ in number")
    if not len(keys):
        raise call.error("its table of labels is empty")
    if (keys.dtype == object) != (call.elem(0) == STRING):
        raise call.error("the keys of its table have another type than its input")
    default = _default(call, values.dtype)
    elem = int(helper.np_dtype_to_tensor_dtype(values.dtype))

    def run(a: Array) -> Array:
        place = _positions(keys, a)
        made: Array = np.where(place >= 0, values[place], np.array(default, values.dtype)).astype(values.dtype)
        return made

    return on_host(call, run, [(elem, call.tensor(0).shape)], TABLE)[0]


@lowering("CategoryMapper", domain=DOMAIN)
def _category_mapper(call: OnnxCall) -> Tensor:
    numbers, words = call.required("cats_int64s"), call.required("cats_strings")
    if len(numbers) != len(words) or not numbers:
        raise call.error("the numbers and the strings of its categories differ in number")
    listed, named = np.array(numbers, np.int64), np.array(words, object)
    to_words = call.elem(0) == INT64
    keys, values = (listed, named) if to_words else (named, listed)
    default = call.attr("default_string", "_Unused") if to_words else call.attr("default_int64", -1)

    def run(a: Array) -> Array:
        place = _positions(keys, a)
        made: Array = np.where(place >= 0, values[place], np.array(default, values.dtype)).astype(values.dtype)
        return made

    return on_host(call, run, [(STRING if to_words else INT64, call.tensor(0).shape)], TABLE)[0]


def _positions(keys: Array, a: Array) -> Array:
    """The position of each element in ``keys``, -1 for an element that is not there.

    Among equal keys, the last one counts. NaN equals NaN.
    """
    order: Array = np.argsort(keys, kind="stable")  # NaN behind all numbers
    ordered = keys[order]
    place = np.maximum(np.searchsorted(ordered, a, "right") - 1, 0)
    found = ordered[place] == a
    if a.dtype.kind == "f":
        found |= np.isnan(ordered[place]) & np.isnan(a)
    return np.where(found, order[place], -1)


@lowering("OneHotEncoder", domain=DOMAIN)
def _one_hot(call: OnnxCall) -> Node:
    """A row of zeros for an element outside the categories; a fraction equals no category."""
    if not call.attr("zeros", 1):
        raise UnsupportedError("an error for elements outside the categories", why="the values decide")
    words = call.elem(0) == STRING
    listed = call.required("cats_strings" if words else "cats_int64s")
    if not listed or len(set(listed)) != len(listed):
        raise call.error("its categories are not distinct")
    x = call.node(0)
    table = constant_node(np.array(listed, object), STRING) if words else constant_node(np.array(listed), INT64)
    table = to_dtype(table, x.dtype)
    one, zero = number(1.0, f32), number(0.0, f32)
    return pointwise(
        "one_hot", (unsqueeze(x, len(x.shape)), table), lambda a, b: select(eq(a, b), one, zero), f32, x.dtype
    )


@lowering("FeatureVectorizer", domain=DOMAIN)
def _features(call: OnnxCall) -> Node:
    """The inputs side by side, each cut, or extended by zeros, to its number of columns."""
    counts: list[int] = call.required("inputdimensions")
    if len(counts) != len(call.inputs) or min(counts, default=0) < 0:
        raise call.error(f"{len(counts)} numbers of columns for {len(call.inputs)} inputs")
    parts: list[Node] = []
    for x, columns in zip(call.nodes(), counts, strict=True):
        if len(x.shape) != 2:
            raise UnsupportedError(f"features of {len(x.shape)} dimensions", why="implementations disagree on them")
        call.same(x.shape[0], call.node(0).shape[0])
        present = concrete(x.shape[1:], "features")[0]
        parts.append(to_dtype(slice_(x, 1, 0, min(present, columns)), f32))
        if columns > present:
            parts.append(full([x.shape[0], columns - present], 0.0, f32))
    return cat([p for p in parts if static_size(p.shape[1])] or parts[:1], 1)


def _table(call: OnnxCall, name: str) -> Any:
    if call.attr(f"{name}_tensor") is not None:
        return _texts(call.array_attr(f"{name}_tensor").reshape(-1))
    for kind, dtype in (("floats", np.float32), ("int64s", np.int64), ("strings", object)):
        if call.attr(f"{name}_{kind}") is not None:
            return np.array(call.attr(f"{name}_{kind}"), dtype)
    return None


def _texts(array: Array) -> Array:
    """Strings as text, numbers unchanged."""
    if array.dtype.kind not in "OSU":
        return array
    return np.array([v.decode() if isinstance(v, bytes) else str(v) for v in array.tolist()], object)


def _default(call: OnnxCall, dtype: Any) -> Any:
    if call.attr("default_tensor") is not None:
        return _texts(call.array_attr("default_tensor").reshape(-1))[0]
    if dtype.kind == "O":
        return call.attr("default_string", "_Unused")
    if dtype.kind == "f":
        return call.attr("default_float", -0.0)
    return call.attr("default_int64", -1)
