"""Maps as inputs: their values as one row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.importers.onnx.ml.scores import DOMAIN, INT64
from taskmap.graph.importers.onnx.ops.strings import text_cast
from taskmap.graph.importers.onnx.read.call import HostStep, OnnxCall
from taskmap.graph.importers.onnx.read.elements import STRING, numpy_type
from taskmap.graph.importers.onnx.read.host import guarded
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import SequenceValue, Tensor
from taskmap.ir.errors import InputError

Array = NDArray[Any]
FLOAT = 1
_CASTS = {"TO_FLOAT": FLOAT, "TO_INT64": INT64, "TO_STRING": STRING}


def _map(call: OnnxCall) -> tuple[Tensor, Tensor]:
    """The keys of a map, in order, and its values."""
    given = call.value(0)
    items = given.items if isinstance(given, SequenceValue) else []
    if len(items) != 2 or not isinstance(items[0], Tensor) or not isinstance(items[1], Tensor):
        raise call.error(f"{call.named(0)} is not a map")
    return items[0], items[1]


def _row(call: OnnxCall, elem: int, columns: int | None, function: Any) -> HostStep:
    """The row [1, columns] that ``function`` makes of keys and values."""
    return HostStep(lambda *a: guarded(call, function, a), _map(call), (elem,), "a map", ((1, columns),))


@lowering("CastMap", domain=DOMAIN)
def _cast_map(call: OnnxCall) -> HostStep:
    """The values in the order of their keys; of a sparse map, with zeros, or empty strings, between the keys."""
    cast, form = call.attr("cast_to", "TO_FLOAT"), call.attr("map_form", "DENSE")
    columns = int(call.attr("max_map", 1))
    if cast not in _CASTS or form not in ("DENSE", "SPARSE") or (form == "SPARSE" and columns < 1):
        raise call.error(f"it casts {cast} from a map of the form {form} with {columns} entries")
    elem = _CASTS[cast]

    def run(keys: Array, values: Array) -> Array:
        made = _converted(values, elem)
        if form == "DENSE":
            return made.reshape(1, -1)
        if keys.size and keys.min() < 0:
            raise InputError(f"the key {keys.min()} of a sparse map is negative")
        row = np.full((1, columns), "" if elem == STRING else 0, made.dtype)
        inside = keys < columns
        row[0, keys[inside]] = made[inside]
        return row

    return _row(call, elem, columns if form == "SPARSE" else None, run)


def _converted(values: Array, elem: int) -> Array:
    if elem == STRING and values.dtype != object:
        return np.array([f"{v:f}" for v in values.tolist()], object)
    return text_cast(values, elem) if values.dtype == object and elem != STRING else values.astype(numpy_type(elem))


@lowering("DictVectorizer", domain=DOMAIN)
def _dict_vectorizer(call: OnnxCall) -> HostStep:
    """The values of the keys in a vocabulary; zero, or an empty string, for those that the map lacks."""
    vocabulary = call.attr("string_vocabulary") or call.attr("int64_vocabulary")
    if not vocabulary:
        raise call.error("it has no vocabulary")
    elem = _map(call)[1].elem

    def run(keys: Array, values: Array) -> Array:
        found = dict(zip(keys.tolist(), values.tolist(), strict=True))
        zero = "" if elem == STRING else 0
        return np.array([[found.get(k, zero) for k in vocabulary]], numpy_type(elem))

    return _row(call, elem, len(vocabulary), run)
