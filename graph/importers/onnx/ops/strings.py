"""Operators on strings, which run on the host."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from taskmap.graph.importers.onnx.read.call import HostStep, OnnxCall
from taskmap.graph.importers.onnx.read.elements import STRING, numpy_type
from taskmap.graph.importers.onnx.read.host import on_host, step
from taskmap.graph.importers.onnx.read.symbolic import all_known
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.ir.construct import static_size
from taskmap.ir.errors import InputError

INT64, BOOL = 7, 9
REASON = "strings"
_CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
_WHOLE = re.compile(r"\s*([+-]?[0-9]+)")
_NUMBER = re.compile(
    r"\s*([+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|inf(?:inity)?|nan))", re.I
)


def text_cast(a: Any, to: int) -> Any:
    """An array converted from strings, or to strings, as ONNX Runtime does it.

    A number is what a string begins with. Raises InputError for a string that does not begin with a number.
    """
    if to == STRING:
        return _each(_written, a if a.dtype.kind in "fiub" else a.astype(np.float32))
    dtype = numpy_type(to)
    read = _read_float if dtype.kind not in "iub" else _read_whole
    return np.array([read(v) for v in a.reshape(-1).tolist()]).reshape(a.shape).astype(dtype)


def _each(function: Any, a: Any) -> Any:
    """``function`` of each element, as an array of objects."""
    made = np.empty(a.shape, object)
    flat = made.reshape(-1)
    for place, value in enumerate(a.reshape(-1)):
        flat[place] = function(value)
    return made


def _written(value: Any) -> str:
    if value.dtype.kind != "f":
        return str(int(value))
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "INF" if value > 0 else "-INF"
    return f"{float(value):.8g}"


def _read_float(text: str) -> float:
    return float(_matched(_NUMBER, text))


def _read_whole(text: str) -> int:
    return int(_matched(_WHOLE, text))


def _matched(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.match(text)
    if found is None:
        raise InputError(f"the string {text[:50]!r} is not a number")
    return found[1]


@lowering("StringNormalizer")
def _normalise(call: OnnxCall) -> Any:
    """Words without stop words, in lower or upper case; one empty string if nothing is left."""
    shape = call.tensor(0).shape
    case = call.attr("case_change_action", "NONE")
    if case not in _CASES:
        raise call.error(f"it changes the case {case!r}")
    if len(shape) not in (1, 2) or (len(shape) == 2 and static_size(shape[0]) != 1):
        raise call.error(f"words of shape {list(shape)}", "it takes [words] or [1, words].")
    change, stops = _CASES[case], call.attr("stopwords") or []
    folded = not call.attr("is_case_sensitive", 0)
    compared = _CASES["LOWER" if folded else "NONE"]
    dropped = {compared(s) for s in stops}

    def run(a: Any) -> Any:
        words = [change(w) for w in a.reshape(-1).tolist() if compared(w) not in dropped]
        return np.array(words or ["" for _ in range(1 if stops else 0)], object).reshape((1, -1) if a.ndim == 2 else -1)

    if not stops:
        return on_host(call, run, [(STRING, shape)], REASON)
    return step(call, run, STRING, shapes=((1, None) if len(shape) == 2 else (None,),))


@lowering("StringConcat")
def _concat(call: OnnxCall) -> Any:
    left, right = call.tensor(0).shape, call.tensor(1).shape
    if not all_known((*left, *right)):
        return step(call, np.add, STRING)
    shape = np.broadcast_shapes(*([static_size(n) or 0 for n in s] for s in (left, right)))
    return on_host(call, np.add, [(STRING, shape)], REASON)


@lowering("StringSplit")
def _split(call: OnnxCall) -> HostStep:
    """The parts of each string, filled up with empty strings to the largest number of parts, and their numbers."""
    delimiter, most = call.attr("delimiter") or None, int(call.attr("maxsplit", -1))

    def run(a: Any) -> Any:
        parts = [v.split(delimiter, most) if v else [] for v in a.reshape(-1).tolist()]
        longest = max(map(len, parts), default=0)
        filled = np.empty((len(parts), longest), object)
        for row, found in zip(filled, parts, strict=True):
            row[:] = [*found, *[""] * (longest - len(found))]
        return filled.reshape(*a.shape, longest), np.array([len(p) for p in parts], np.int64).reshape(a.shape)

    return step(call, run, STRING, INT64)


@lowering("RegexFullMatch")
def _full_match(call: OnnxCall) -> Any:
    try:
        pattern = re.compile(call.required("pattern"))
    except re.error as error:
        raise call.error("its pattern cannot be read", str(error)) from error
    x = call.tensor(0)

    def run(a: Any) -> Any:
        return np.array([pattern.fullmatch(v) is not None for v in a.reshape(-1).tolist()], bool).reshape(a.shape)

    return on_host(call, run, [(BOOL, x.shape)], REASON)
