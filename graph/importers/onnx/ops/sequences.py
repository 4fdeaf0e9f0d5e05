"""Sequences and optionals, which are Python lists and values while a model is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskmap.graph.importers.onnx.ops.shapes import joined
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import OptionalValue, SequenceValue, Tensor, Value, of_array
from taskmap.graph.ops.views import reshape, slice_, unsqueeze
from taskmap.ir.construct import static_size

INT64, BOOL = 7, 9
LONGEST = 1 << 16


def sequence(call: OnnxCall, index: int = 0) -> SequenceValue:
    """Input ``index``, which must be a sequence or an optional that holds one."""
    value: Value | None = call.value(index)
    if isinstance(value, OptionalValue):
        value = value.value
    if not isinstance(value, SequenceValue):
        raise call.error(f"{call.named(index)} is not a sequence")
    return value


def _place(call: OnnxCall, index: int, size: int, last: int) -> int:
    """A position in a sequence, which may count from the end."""
    at = int(call.number(index))
    if not -size <= at < last:
        raise call.error(f"the position {at} lies outside a sequence of {size}")
    return at + size if at < 0 else at


@lowering("SequenceConstruct")
def _construct(call: OnnxCall) -> SequenceValue:
    return SequenceValue([call.value(i) for i in range(len(call.inputs))])


@lowering("SequenceEmpty")
def _empty(call: OnnxCall) -> SequenceValue:
    return SequenceValue([], int(call.attr("dtype", 1)))


@lowering("SequenceAt")
def _at(call: OnnxCall) -> Value:
    items = sequence(call).items
    return items[_place(call, 1, len(items), len(items))]


@lowering("SequenceLength")
def _length(call: OnnxCall) -> Tensor:
    return of_array(np.array(len(sequence(call).items), np.int64), INT64)


@lowering("SequenceInsert")
def _insert(call: OnnxCall) -> SequenceValue:
    items = list(sequence(call).items)
    at = _place(call, 2, len(items), len(items) + 1) if call.has(2) else len(items)
    items.insert(at, call.value(1))
    return SequenceValue(items)


@lowering("SequenceErase")
def _erase(call: OnnxCall) -> SequenceValue:
    items = list(sequence(call).items)
    at = _place(call, 1, len(items), len(items)) if call.has(1) else len(items) - 1
    if not items:
        raise call.error("nothing can be erased from an empty sequence")
    del items[at]
    return SequenceValue(items)


@lowering("ConcatFromSequence")
def _concat(call: OnnxCall) -> Any:
    tensors = [v for v in sequence(call).items if isinstance(v, Tensor)]
    if not tensors:
        raise call.error("there is nothing to concatenate")
    rank = len(tensors[0].shape)
    new = bool(call.attr("new_axis", 0))
    axis = call.axis(call.required("axis"), rank + new)
    nodes = [unsqueeze(t.node(), axis) if new else t.node() for t in tensors]
    node = joined(nodes, axis)
    return Tensor(tensors[0].elem, node.shape, made=node)


@lowering("SplitToSequence")
def _split(call: OnnxCall) -> SequenceValue:
    x = call.tensor(0)
    axis = call.axis(call.attr("axis", 0), len(x.shape))
    size = static_size(x.shape[axis])
    if size is None:
        raise call.error("a symbolic size cannot be split into a sequence")
    keep = bool(call.attr("keepdims", 1)) or call.has(1)
    if size > LONGEST and not call.has(1):
        raise call.error(f"a sequence of {size} tensors is too long")
    if not call.has(1):
        sizes = [1] * size
    elif call.tensor(1).shape == ():
        part = int(call.number(1))
        if part < 1:
            raise call.error(f"parts of {part} elements")
        if size // part > LONGEST:
            raise call.error(f"a sequence of {size // part} tensors is too long")
        sizes = [min(part, size - i) for i in range(0, size, part)]
    else:
        sizes = call.ints(1)
        if sum(sizes) != size or min(sizes, default=0) < 0:
            raise call.error(f"a dimension of size {size} is split into {sizes}")
    items: list[Value] = []
    start = 0
    for n in sizes:
        node = slice_(x.node(), axis, start, start + n)
        if not keep:
            node = reshape(node, [m for d, m in enumerate(node.shape) if d != axis])
        items.append(Tensor(x.elem, node.shape, made=node))
        start += n
    return SequenceValue(items, x.elem)


@lowering("Optional")
def _optional(call: OnnxCall) -> Value:
    return call.value(0) if call.has(0) else OptionalValue(None)


@lowering("OptionalHasElement")
def _has_element(call: OnnxCall) -> Tensor:
    value = call.inputs[0] if call.inputs else None
    present = value is not None and not (isinstance(value, OptionalValue) and value.value is None)
    return of_array(np.array(present), BOOL)


@lowering("OptionalGetElement")
def _get_element(call: OnnxCall) -> Value:
    value: Value | None = call.value(0)
    if isinstance(value, OptionalValue):
        value = value.value
    if value is None:
        raise call.error("the optional is empty")
    return value
