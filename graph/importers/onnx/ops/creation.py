"""Constants, ranges, conversions between types, random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from taskmap.graph.build import define
from taskmap.graph.importers.onnx.ops.strings import text_cast
from taskmap.graph.importers.onnx.read.assumptions import decides
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import (
    MASKS,
    NARROW_FLOATS,
    NARROW_INTEGERS,
    STRING,
    held_in,
    numpy_type,
)
from taskmap.graph.importers.onnx.read.host import concrete, on_host
from taskmap.graph.importers.onnx.read.ratios import Ratio
from taskmap.graph.importers.onnx.read.symbolic import all_known
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import Tensor, of_array
from taskmap.graph.ops import creation
from taskmap.graph.ops.pointwise import to_dtype
from taskmap.ir.construct import ceil_div, const, eq, index, select, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Dim, Expr
from taskmap.ir.types import DType, f32, f64, i64

FLOAT, BOOL, INT64, UINT64 = 1, 9, 7, int(TensorProto.UINT64)
SMALL = 1 << 16
LARGEST = 1 << 40


@lowering("Constant")
def _constant(call: OnnxCall) -> Tensor:
    for name in ("value", "sparse_value"):
        proto = call.attr(name)
        if proto is not None:
            return of_array(call.array_attr(name), proto.data_type if name == "value" else proto.values.data_type)
    kinds = {
        "value_float": (np.float32, FLOAT),
        "value_floats": (np.float32, FLOAT),
        "value_int": (np.int64, INT64),
        "value_ints": (np.int64, INT64),
        "value_string": (object, STRING),
        "value_strings": (object, STRING),
    }
    for name, (dtype, elem) in kinds.items():
        if name in call.attributes:
            return of_array(np.array(call.attributes[name], dtype), elem)
    raise call.error("a constant without a value")


@lowering("ConstantOfShape")
def _constant_of_shape(call: OnnxCall) -> Any:
    sizes = call.dims(0)
    given = call.attr("value")
    elem = FLOAT if given is None else given.data_type
    array = np.zeros(1, np.float32) if given is None else call.array_attr("value")
    value = array.reshape(-1)[0]
    known = [static_size(n) for n in sizes]
    if any(n is not None and n < 0 for n in known):
        raise call.error(f"the shape {sizes} has negative sizes")
    if None not in known:
        count = math.prod(n for n in known if n is not None)
        if count > LARGEST:
            raise call.error(f"a tensor of shape {sizes} is too large")
        if count <= SMALL:
            return of_array(np.full([n or 0 for n in known], value), elem)
    dtype = held_in(elem)
    number = bool(value) if dtype.is_bool else float(value) if dtype.is_float else int(value)
    if elem == UINT64 and int(number) >= 1 << 63:
        number = int(number) - (1 << 64)
    node = creation.full(sizes, number, dtype)
    return Tensor(elem, node.shape, made=node)


@lowering("Range")
def _range(call: OnnxCall) -> Any:
    elem = call.elem(0)
    if any(call.tensor(i).is_symbolic for i in range(3)):
        return _symbolic_range(call)
    start, limit, delta = (call.number(i) for i in range(3))
    if delta == 0:
        raise call.error("a range with a step of 0")
    length = max(math.ceil((limit - start) / delta), 0)
    if length > LARGEST:
        raise call.error(f"a range of {length} numbers is too long")
    if length <= SMALL:
        return of_array((np.arange(length) * delta + start).astype(numpy_type(elem)), elem)
    node = creation.arange(start, length, delta, held_in(elem))
    return Tensor(elem, node.shape, made=node)


def _symbolic_range(call: OnnxCall) -> Any:
    """start, start + step, ... below a symbolic size; floats if the sizes were converted to floats."""
    start, limit = (_whole(call, i) for i in range(2))
    (step,) = call.array(2).reshape(-1).tolist()
    if step <= 0 or step != int(step):
        raise decides("Range with a step that is not a positive integer", [start, limit])
    length = index(limit) - start if step == 1 else ceil_div(index(limit) - start, int(step))
    call.at_least(length, 0)
    elem = call.elem(0)
    whole = creation.arange(start, length, int(step), i64)
    return Tensor(elem, whole.shape, made=to_dtype(whole, held_in(elem)))


def _whole(call: OnnxCall, i: int) -> Dim:
    """An integer input, which may be symbolic."""
    tensor = call.tensor(i)
    entry = tensor.known.reshape(-1)[0] if tensor.known is not None and tensor.is_symbolic else call.number(i)
    if isinstance(entry, Ratio) and entry.bottom == 1:
        return entry.top
    if isinstance(entry, Ratio) or (not isinstance(entry, Expr) and entry != int(entry)):
        raise decides("Range to a symbolic size that is not an integer", [])
    return entry if isinstance(entry, Expr) else int(entry)


@lowering("EyeLike")
def _eye_like(call: OnnxCall) -> Tensor:
    shape = call.tensor(0).shape
    if not all_known(shape):
        kind = held_in(int(call.attr("dtype", call.elem(0))))
        k = int(call.attr("k", 0))
        return _eye_open(int(call.attr("dtype", call.elem(0))), shape, kind, k)
    rows, columns = concrete(shape, "EyeLike")
    if rows * columns > 1 << 26:
        raise call.error(f"a matrix of {rows} x {columns} elements is too large")
    elem = int(call.attr("dtype", call.elem(0)))
    return of_array(np.eye(rows, columns, int(call.attr("k", 0))).astype(numpy_type(elem)), elem)


def _eye_open(elem: int, shape: Sequence[Dim], dtype: DType, k: int) -> Tensor:
    one: bool | float | int = True if dtype.is_bool else 1.0 if dtype.is_float else 1

    def at(i: Expr, j: Expr) -> Expr:
        return select(eq(i + k, j), const(one, dtype), const(type(one)(0), dtype))

    node = define("eye", [], tuple(shape), lambda: at, dtype)
    return Tensor(elem, node.shape, made=node)


@lowering("Cast", "CastLike")
def _cast(call: OnnxCall) -> Any:
    to = call.elem(1) if call.op == "CastLike" else int(call.required("to"))
    return converted(call, to)


def converted(call: OnnxCall, to: int) -> Any:
    """Input 0 converted to the element type ``to``."""
    x = call.tensor(0)
    if x.elem == to:
        return x
    if STRING in (x.elem, to):
        return on_host(call, lambda a, _like=None: text_cast(a, to), [(to, x.shape)], "strings", inputs=[0])
    target = held_in(to)
    source = held_in(x.elem)
    narrow = (*NARROW_FLOATS, *NARROW_INTEGERS)
    plain = to not in (UINT64, *MASKS, *narrow) and x.elem != UINT64
    if plain and not (source.is_float and target.is_int):
        if x.known is not None and not x.is_symbolic and x.known.size <= SMALL and x.elem not in narrow:
            with np.errstate(all="ignore"):
                return of_array(x.known.astype(numpy_type(to)), to)
        node = to_dtype(call.node(0), target)
        return Tensor(to, node.shape, made=node)
    if plain and target in (i64,) and source in (f32, f64):
        node = to_dtype(call.node(0), target)
        return Tensor(to, node.shape, made=node)
    if plain and target.is_int and source.is_float:
        # Through a wide integer: a value outside the narrow type wraps, as it does in numpy.
        node = to_dtype(to_dtype(call.node(0), i64), target)
        return Tensor(to, node.shape, made=node)
    saturate, mode = bool(call.attr("saturate", 1)), str(call.attr("round_mode", "up"))

    def run(a: Any, _like: Any = None) -> Any:
        return numpy_cast(a, to, saturate, mode)

    return on_host(call, run, [(to, x.shape)], "a narrow type", inputs=[0])


def numpy_cast(a: Any, to: int, saturate: bool, mode: str = "up") -> Any:
    """``a`` converted by ONNX's rules: eight-bit floats saturate or not, narrow integers keep their low bits."""
    dtype = numpy_type(to)
    if to in NARROW_FLOATS:
        return _to_narrow_float(a, to, dtype, saturate, mode)
    if to in NARROW_INTEGERS:
        _, low, high = NARROW_INTEGERS[to]
        bits = (high - low).bit_length()
        whole = np.trunc(a.astype(np.float64)).astype(np.int64) if a.dtype.kind not in "iub" else a.astype(np.int64)
        wrapped = whole & ((1 << bits) - 1)
        return np.where(wrapped > high, wrapped - (1 << bits), wrapped).astype(dtype)
    if a.dtype.kind not in "fiub":
        a = a.astype(np.float32)
    return a.astype(dtype)


def _to_narrow_float(a: Any, to: int, dtype: Any, saturate: bool, mode: str) -> Any:
    wide = a.astype(np.float32)
    if dtype.name == "float8_e8m0fnu":
        return _to_exponents(wide, dtype, saturate, mode)
    largest = np.float32(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]  # it carries no types
    nan = np.isnan(wide)
    if dtype.name == "float4_e2m1fn":
        return wide.astype(dtype)
    result = wide.astype(dtype)
    if saturate:
        back = result.astype(np.float32)
        beyond = (~np.isfinite(back)) & ~nan
        held = np.where(wide > 0, largest, -largest).astype(dtype)
        return np.where(beyond, held, result)
    return result


def _to_exponents(wide: Any, dtype: Any, saturate: bool, mode: str) -> Any:
    """Powers of two: the exponent of the absolute value, rounded as ``mode`` says (up, down, nearest)."""
    size = np.abs(wide)
    with np.errstate(all="ignore"):
        mantissa, exponent = np.frexp(size)  # size = mantissa * 2 ** exponent, mantissa in [0.5, 1)
    power = exponent - 1
    if mode == "up":
        power = power + (mantissa > 0.5)
    elif mode == "nearest":
        power = power + (mantissa >= 0.75)
    code = power + 127
    beyond = code > 254
    code = np.where(size == 0, 0, np.clip(code, 0, 254))
    code = np.where(beyond & (not saturate), 255, code)
    code = np.where(np.isnan(wide) | np.isinf(wide) & (not saturate), 255, code)
    code = np.where(np.isinf(wide) & saturate, 254, code)
    return code.astype(np.uint8).view(dtype)


@lowering("BitCast")
def _bit_cast(call: OnnxCall) -> Any:
    x = call.tensor(0)
    to = int(call.required("to"))
    a, b = numpy_type(x.elem), numpy_type(to)
    if a.itemsize != b.itemsize:
        raise UnsupportedError("a bit cast between types of different size")
    return on_host(
        call, lambda v: np.ascontiguousarray(v).view(b).reshape(v.shape), [(to, x.shape)], "bits of another type"
    )


@lowering("Dropout")
def _dropout(call: OnnxCall) -> Any:
    x = call.tensor(0)
    training = False
    if call.version >= 12 and call.has(2):
        training = bool(call.number(2))
    elif call.version < 7:
        training = not call.attr("is_test", 0)
    ratio = float(call.number(1)) if call.version >= 12 and call.has(1) else float(call.attr("ratio", 0.5))
    if not training or ratio == 0.0:
        mask = creation.full(x.shape, True, held_in(BOOL))
        mask_elem = BOOL if call.version >= 10 else x.elem
        kept = Tensor(BOOL, x.shape, made=mask) if mask_elem == BOOL else _ones(x)
        return [x, kept] if call.outputs > 1 else x
    seed = call.attr("seed")

    def run(a: Any, *_: Any) -> Any:
        # numpy's older generator, so that a seed gives the same numbers as in ONNX's own reference.
        mask = np.random.RandomState(seed).uniform(0, 1, a.shape) >= ratio
        return [(mask * a * (1 / (1 - ratio))).astype(a.dtype), mask]

    return on_host(call, run, [(x.elem, x.shape), (BOOL, x.shape)], "random numbers", inputs=[0])


def _ones(x: Tensor) -> Tensor:
    return Tensor(x.elem, x.shape, made=creation.full(x.shape, 1.0, held_in(x.elem)))


@lowering("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
def _random(call: OnnxCall) -> Any:
    like = call.op.endswith("Like")
    shape = call.tensor(0).shape if like else [int(n) for n in call.required("shape")]
    elem = int(call.attr("dtype", call.elem(0) if like else FLOAT))
    sizes = concrete(shape, "random numbers")
    seed = call.attr("seed")
    seed = None if seed is None else abs(hash(float(seed)))
    a, b = (
        (call.attr("mean", 0.0), call.attr("scale", 1.0))
        if "Normal" in call.op
        else (call.attr("low", 0.0), call.attr("high", 1.0))
    )

    def run(*_: Any) -> Any:
        rng = np.random.default_rng(seed)
        made = rng.normal(a, b, sizes) if "Normal" in call.op else rng.uniform(a, b, sizes)
        return made.astype(numpy_type(elem))

    return on_host(call, run, [(elem, sizes)], "random numbers", inputs=[])


@lowering("Bernoulli")
def _bernoulli(call: OnnxCall) -> Any:
    x = call.tensor(0)
    elem = int(call.attr("dtype", x.elem))
    seed = call.attr("seed")
    seed = None if seed is None else abs(hash(float(seed)))

    def run(p: Any) -> Any:
        return (np.random.default_rng(seed).random(p.shape) < p).astype(numpy_type(elem))

    return on_host(call, run, [(elem, x.shape)], "random numbers")


@lowering("Multinomial")
def _multinomial(call: OnnxCall) -> Any:
    x = call.tensor(0)
    elem, count = int(call.attr("dtype", 6)), int(call.attr("sample_size", 1))
    seed = call.attr("seed")
    seed = None if seed is None else abs(hash(float(seed)))

    def run(logits: Any) -> Any:
        rng = np.random.default_rng(seed)
        weights = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        return np.stack([rng.choice(len(w), count, p=w) for w in weights]).astype(numpy_type(elem))

    return on_host(call, run, [(elem, (x.shape[0], count))], "random numbers")
