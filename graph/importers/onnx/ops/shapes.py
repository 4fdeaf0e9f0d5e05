"""Operators that rename, move, join and slice elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from taskmap.graph.build import broadcast_shapes, define, reindex
from taskmap.graph.importers.onnx.ops.symbolic_padding import open_pad
from taskmap.graph.importers.onnx.read.assumptions import decides
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.host import concrete
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import Tensor, is_empty, of_array
from taskmap.graph.nodes import Node
from taskmap.graph.ops.creation import full as filled
from taskmap.graph.ops.gather import checked
from taskmap.graph.ops.join import cat
from taskmap.graph.ops.rearrange import constant_pad, flip, reflection_pad, repeat, replication_pad, triangle
from taskmap.graph.ops.views import expand, permute, reshape, slice_
from taskmap.graph.ops.views import split as split_node
from taskmap.ir.construct import ceil_div, compare, index, load, product, select, static_size
from taskmap.ir.nodes import Buffer, Dim, Expr
from taskmap.ir.types import boolean

MOST = (1 << 31) - 1
"""A slice bound of at least this means the end of the dimension."""


@lowering("Reshape", since=5)
def _reshape(call: OnnxCall) -> Any:
    sizes = call.dims(1)
    return reshaped(call, sizes, bool(call.attr("allowzero", 0)))


@lowering("Reshape", until=4)
def _reshape_by_attribute(call: OnnxCall) -> Any:
    return reshaped(call, list(call.attr("shape", [])), False)


def reshaped(call: OnnxCall, sizes: list[Dim], allow_zero: bool) -> Any:
    """Input 0 in another shape, in which 0 keeps a size and -1 takes what remains."""
    x = call.tensor(0)
    if sum(static_size(n) == -1 for n in sizes) > 1 or any((static_size(n) or 0) < -1 for n in sizes):
        raise call.error(f"the shape {sizes} is not valid")
    if not allow_zero:
        if any(static_size(n) == 0 and d >= len(x.shape) for d, n in enumerate(sizes)):
            raise call.error(f"the shape {sizes} keeps a size that the tensor, of rank {len(x.shape)}, does not have")
        sizes = [x.shape[d] if static_size(n) == 0 else n for d, n in enumerate(sizes)]
    total = static_size(product(x.shape))
    given = [static_size(n) for n in sizes]
    if total is not None and None not in given:
        rest = math.prod(n for n in given if n is not None and n != -1)
        if (-1 in given and (rest == 0 or total % rest)) or (-1 not in given and rest != total):
            raise call.error(f"a tensor of shape {list(x.shape)} cannot be reshaped to {sizes}")
        shape = [total // rest if n == -1 else n or 0 for n in given]
        if x.known is not None and not x.is_symbolic:
            return of_array(x.known.reshape(shape), x.elem)
        return reshape(x.node(), shape)
    made = reshape(call.node(0), sizes)
    call.same(product(x.shape), product(made.shape))
    return made


@lowering("Flatten")
def _flatten(call: OnnxCall) -> Node:
    x = call.node(0)
    axis = call.attr("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    if not 0 <= axis <= len(x.shape):
        raise call.error(f"the axis {axis} lies outside a tensor of rank {len(x.shape)}")
    return reshape(x, [product(x.shape[:axis]), product(x.shape[axis:])])


@lowering("Transpose")
def _transpose(call: OnnxCall) -> Node:
    x = call.node(0)
    rank = len(x.shape)
    order = call.attr("perm") or list(range(rank))[::-1]
    if sorted(order) != list(range(rank)):
        raise call.error(f"{order} is not a permutation of {rank} dimensions")
    return permute(x, order)


def axes_given(call: OnnxCall) -> list[int] | None:
    """The axes of Squeeze and Unsqueeze: an attribute, or since version 13 an input."""
    if call.version >= 13:
        return call.ints(1) if call.has(1) else None
    axes = call.attr("axes")
    return None if axes is None else list(axes)


@lowering("Squeeze")
def _squeeze(call: OnnxCall) -> Node:
    x = call.node(0)
    axes = axes_given(call)
    rank = len(x.shape)
    if axes is None:
        chosen = {d for d, n in enumerate(x.shape) if call.holds("eq", n, 1, "Squeeze of all dimensions of size 1")}
    else:
        chosen = {call.axis(a, rank) for a in axes}
        for d in chosen:
            if static_size(x.shape[d]) is None:
                call.same(x.shape[d], 1)
    if any(static_size(x.shape[d]) not in (1, None) for d in chosen):
        raise call.error(f"a dimension of shape {list(x.shape)} that is not 1 cannot be squeezed")
    return reshape(x, [n for d, n in enumerate(x.shape) if d not in chosen], "squeeze")


@lowering("Unsqueeze")
def _unsqueeze(call: OnnxCall) -> Node:
    x = call.node(0)
    axes = axes_given(call) or []
    rank = len(x.shape) + len(axes)
    chosen = {call.axis(a, rank) for a in axes}
    if len(chosen) != len(axes):
        raise call.error(f"the axes {axes} name a dimension twice")
    rest = iter(x.shape)
    return reshape(x, [1 if d in chosen else next(rest) for d in range(rank)], "unsqueeze")


@lowering("Shape", "Size")
def _sizes(call: OnnxCall) -> Any:
    raise call.error("its input is not a tensor, so it has no sizes")


@lowering("Identity")
def _identity(call: OnnxCall) -> Any:
    return call.value(0)


@lowering("Expand")
def _expand(call: OnnxCall) -> Node:
    x = call.node(0)
    sizes = call.dims(1)
    if any((static_size(n) or 0) < 0 for n in sizes):
        raise call.error(f"the shape {sizes} has negative sizes")
    call.broadcasts(x.shape, sizes)
    return expand(x, broadcast_shapes(x.shape, sizes))


@lowering("Tile", since=6)
def _tile(call: OnnxCall) -> Node:
    x = call.node(0)
    repeats = call.dims(1)
    if len(repeats) != len(x.shape):
        raise call.error(f"{len(repeats)} repetitions for {len(x.shape)} dimensions")
    if any((static_size(n) or 0) < 0 for n in repeats):
        raise call.error(f"negative repetitions {repeats}")
    return repeat(x, repeats)


@lowering("Concat")
def _concat(call: OnnxCall) -> Any:
    tensors = [call.tensor(i) for i in range(len(call.inputs))]
    rank = len(tensors[0].shape)
    axis = call.axis(call.attr("axis", 1), rank)
    for t in tensors:
        if len(t.shape) != rank:
            raise call.error("tensors of different rank are concatenated")
        for d, (m, n) in enumerate(zip(t.shape, tensors[0].shape, strict=True)):
            a, b = static_size(m), static_size(n)
            if d != axis and a is not None and b is not None and a != b:
                raise call.error(f"tensors of shape {list(t.shape)} and {list(tensors[0].shape)} are concatenated")
            if d != axis:
                call.same(m, n)
    return joined([t.node() for t in tensors], axis)


def joined(nodes: list[Node], axis: int) -> Node:
    """The tensors in sequence along ``axis``; those without elements are left out."""
    full = [n for n in nodes if not is_empty(n.shape)]
    if not full:
        total = product([1])
        for n in nodes:
            total = total + n.shape[axis]
        shape = list(nodes[0].shape)
        shape[axis] = total - 1
        return filled(shape, False if nodes[0].dtype is boolean else 0, nodes[0].dtype)
    while len(full) > 1:
        full = [cat(full[i : i + 32], axis) for i in range(0, len(full), 32)]
    return full[0]


@lowering("Split")
def _split(call: OnnxCall) -> list[Node]:
    x = call.node(0)
    axis = call.axis(call.attr("axis", 0), len(x.shape))
    given: list[Dim] | None
    if call.version >= 13:
        given = call.dims(1) if call.has(1) else None
    else:
        given = call.attr("split")
    if given is None:
        given = _equal_parts(call, x.shape[axis], int(call.attr("num_outputs", call.outputs)))
    known = [static_size(n) for n in given]
    size = static_size(x.shape[axis])
    if (
        size is not None
        and None not in known
        and (sum(n or 0 for n in known) != size or min(n or 0 for n in known) < 0)
    ):
        raise call.error(f"a dimension of size {size} is split into {given}")
    return split_node(x, given, axis)


def _equal_parts(call: OnnxCall, size: Dim, count: int) -> list[Dim]:
    known = static_size(size)
    if count != call.outputs or count < 1:
        raise call.error(f"a tensor is split into {count} parts, but the node has {call.outputs} outputs")
    if known is None:
        whole = ceil_div(size, count)
        call.at_least(index(size), whole * (count - 1))
        return [*[whole] * (count - 1), index(size) - whole * (count - 1)]
    part = -(-known // count)
    return [min(part, max(known - i * part, 0)) for i in range(count)]


@lowering("Slice")
def _slice(call: OnnxCall) -> Any:
    x = call.tensor(0)
    rank = len(x.shape)
    if call.version >= 10:
        starts, ends = call.dims(1), call.dims(2)
        axes = call.ints(3) if call.has(3) else list(range(len(starts)))
        steps = call.ints(4) if call.has(4) else [1] * len(starts)
    else:
        starts, ends = list(call.required("starts")), list(call.required("ends"))
        axes = list(call.attr("axes") or range(len(starts)))
        steps = [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise call.error("starts, ends, axes and steps of a slice differ in number")
    if len({call.axis(int(axis), rank) for axis in axes}) != len(axes):
        raise call.error(f"the axes {axes} of a slice name a dimension twice")
    node = call.node(0)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        d = call.axis(int(axis), rank)
        start, end = (_from_start(call, bound, node.shape[d]) for bound in (start, end))
        if step == 0:
            raise call.error("a slice has a step of 0")
        node = _sliced(node, d, start, end, step) if step > 0 else _backward(node, d, start, end, step)
    return node


def _from_start(call: OnnxCall, bound: Dim, size: Dim) -> Dim:
    """A symbolic slice bound counted from the start; a known bound unchanged."""
    if static_size(bound) is not None or call.holds("ge", bound, 0, "Slice at a symbolic position"):
        return bound
    call.at_least(index(size) + bound, 0)
    return index(size) + bound


def _sliced(x: Node, d: int, start: Dim, end: Dim, step: int) -> Node:
    big = 1 << 61
    known = static_size(end)
    if known is not None and known > big:
        end = 1 << 62
    return slice_(x, d, start, end, min(step, big))


def _backward(x: Node, d: int, start: Dim, end: Dim, step: int) -> Node:
    """A slice with a negative step: the mirrored tensor sliced with a positive one."""
    size, first, last = static_size(x.shape[d]), static_size(start), static_size(end)
    if first is not None and last is not None and (first == -1 or first >= MOST) and last <= -MOST:
        return slice_(flip(x, [d]), d, 0, None, -step)  # all of it, whatever its size
    if size is None or first is None or last is None:
        raise decides("Slice that runs backward", [x.shape[d], start, end])
    begin, stop, _ = slice(first, last if last >= -size else None, step).indices(size)
    count = len(range(begin, stop, step))
    if count == 0:
        return slice_(x, d, 0, 0)
    mirrored = flip(x, [d])
    return slice_(mirrored, d, size - 1 - begin, size - 1 - begin + (count - 1) * -step + 1, -step)


@lowering("Pad")
def _pad(call: OnnxCall) -> Node:
    x = call.node(0)
    rank = len(x.shape)
    mode = call.attr("mode", "constant")
    if call.version >= 11:
        pads = call.dims(1)
        axes = [call.axis(a, rank) for a in call.ints(3)] if call.has(3) else list(range(rank))
        value = call.number(2) if call.has(2) else (False if x.dtype.is_bool else 0)
    else:
        pads = list(call.attr("pads") or call.attr("paddings") or [])
        axes, value = list(range(rank)), call.attr("value", 0.0)
    if len(pads) != 2 * len(axes):
        raise call.error(f"{len(pads)} paddings for {len(axes)} dimensions")
    known = [static_size(p) for p in pads]
    if None in known:
        return _padded_open(call, x, axes, pads, mode, value)
    pairs = [(0, 0)] * rank
    for i, d in enumerate(axes):
        pairs[d] = (known[i] or 0, known[i + len(axes)] or 0)
    for d, (a, b) in enumerate(pairs):
        size = static_size(x.shape[d])
        if size is not None and size + a + b < 0:
            raise call.error(f"a padding of {(a, b)} leaves nothing of {size} elements")
    if not any(any(p) for p in pairs):
        return x
    if mode == "constant":
        return constant_pad(
            x, _flat(pairs), value if x.dtype.is_float else (bool(value) if x.dtype.is_bool else int(value))
        )
    return _mirrored(call, x, pairs, mode)


def _padded_open(call: OnnxCall, x: Node, axes: list[int], pads: Sequence[Dim], mode: str, value: Any) -> Node:
    """Padding with a constant by symbolic amounts, which are not negative in the example."""
    if mode != "constant":
        raise decides(f"Pad by a symbolic amount in the mode {mode}", pads)
    before: list[Dim] = [0] * len(x.shape)
    behind: list[Dim] = [0] * len(x.shape)
    for i, d in enumerate(axes):
        for amount in (pads[i], pads[i + len(axes)]):
            if not call.holds("ge", amount, 0, "Pad by a symbolic amount"):
                raise decides("Pad by a negative symbolic amount", [amount])
        before[d], behind[d] = pads[i], pads[i + len(axes)]
    return open_pad(x, before, behind, value)


def _flat(pairs: list[tuple[int, int]]) -> list[int]:
    return [p for pair in reversed(pairs) for p in pair]


def _mirrored(call: OnnxCall, x: Node, pairs: list[tuple[int, int]], mode: str) -> Node:
    negative = [(min(a, 0), min(b, 0)) for a, b in pairs]
    if any(any(p) for p in negative):
        x = constant_pad(x, _flat(negative), 0)
        pairs = [(max(a, 0), max(b, 0)) for a, b in pairs]
    if is_empty(x.shape):
        raise call.error("a tensor without elements has no edge to pad by")
    if mode == "edge":
        return replication_pad(x, _flat(pairs))
    for d, (a, b) in enumerate(pairs):
        size = static_size(x.shape[d])
        while mode == "reflect" and size is not None and (a >= size or b >= size) and size > 1:
            here = (min(a, size - 1), min(b, size - 1))
            x = reflection_pad(x, _flat([here if k == d else (0, 0) for k in range(len(pairs))]))
            a, b, size = a - here[0], b - here[1], size + sum(here)
        pairs = [(a, b) if k == d else p for k, p in enumerate(pairs)]
    if mode == "reflect":
        return reflection_pad(x, _flat(pairs))
    if mode == "wrap":
        return _wrapped(x, pairs)
    raise call.error(f"the mode of padding {mode!r} is unknown")


def _wrapped(x: Node, pairs: list[tuple[int, int]]) -> Node:
    shape = [n + (a + b) for n, (a, b) in zip(x.shape, pairs, strict=True)]
    return reindex(
        "wrap_pad", x, shape, lambda *axes: [(i - a) % n for i, n, (a, _) in zip(axes, x.shape, pairs, strict=True)]
    )


@lowering("DepthToSpace")
def _depth_to_space(call: OnnxCall) -> Node:
    x = call.node(0)
    n, c, h, w = x.shape
    b = int(call.required("blocksize"))
    deep = static_size(c)
    if b < 1 or deep is None or deep % (b * b):
        raise call.error(f"{c} channels cannot become blocks of {b}")
    rest = deep // (b * b)
    if call.attr("mode", "DCR") == "DCR":
        six = permute(reshape(x, [n, b, b, rest, h, w]), [0, 3, 4, 1, 5, 2])
    else:
        six = permute(reshape(x, [n, rest, b, b, h, w]), [0, 1, 4, 2, 5, 3])
    return reshape(six, [n, rest, h * b, w * b])


@lowering("SpaceToDepth")
def _space_to_depth(call: OnnxCall) -> Node:
    x = call.node(0)
    n, c, h, w = x.shape
    b = int(call.required("blocksize"))
    if b < 1 or any(known is not None and known % b for known in map(static_size, (h, w))):
        raise call.error(f"{h} x {w} elements cannot be divided into blocks of {b}")
    tall, wide = h // b, w // b
    call.same(h, tall * b)
    call.same(w, wide * b)
    h, w = tall, wide
    if call.version >= 13 and call.attr("mode", "DCR") == "CRD":
        six = permute(reshape(x, [n, c, h, b, w, b]), [0, 1, 3, 5, 2, 4])
    else:
        six = permute(reshape(x, [n, c, h, b, w, b]), [0, 3, 5, 1, 2, 4])
    return reshape(six, [n, c * (b * b), h, w])


@lowering("Trilu")
def _trilu(call: OnnxCall) -> Node:
    x = call.node(0)
    k = int(call.number(1)) if call.has(1) else 0
    return triangle(x, k, not call.attr("upper", 1))


@lowering("ReverseSequence")
def _reverse_sequence(call: OnnxCall) -> Any:
    x = call.tensor(0)
    time, batch = int(call.attr("time_axis", 0)), int(call.attr("batch_axis", 1))

    rank = len(x.shape)
    if {time, batch} != {0, 1} or rank < 2:
        raise call.error(f"the time axis {time} and the batch axis {batch} of a tensor of rank {rank}")
    lengths = call.tensor(1)
    if len(lengths.shape) != 1:
        raise call.error(f"lengths of shape {list(lengths.shape)}, which do not have one dimension")
    call.same(lengths.shape[0], x.shape[batch])

    def element(f: Buffer, given: Buffer) -> Callable[..., Any]:
        def at(*axes: Expr) -> Expr:
            length = checked(given[(axes[batch],)], x.shape[time] + 1)
            here = axes[time]
            there = select(compare("lt", here, length), length - 1 - here, here)
            return load(f, [there if d == time else a for d, a in enumerate(axes)])

        return at

    node = define("reverse_sequence", [call.node(0), call.node(1)], x.shape, element)
    return Tensor(x.elem, node.shape, made=node)


@lowering("CenterCropPad")
def _center_crop_pad(call: OnnxCall) -> Node:
    x = call.node(0)
    rank = len(x.shape)
    targets = call.ints(1)
    axes = [call.axis(a, rank) for a in call.attr("axes") or range(rank)]
    if len(targets) != len(axes):
        raise call.error(f"{len(targets)} sizes for {len(axes)} dimensions")
    if min(targets, default=0) < 0:
        raise call.error(f"its target sizes {targets} must not be negative")
    for axis, target in zip(axes, targets, strict=True):
        size = concrete([x.shape[axis]], "CenterCropPad")[0]
        if target < size:
            start = (size - target) // 2
            x = slice_(x, axis, start, start + target)
        elif target > size:
            before = (target - size) // 2
            pairs = [(before, target - size - before) if d == axis else (0, 0) for d in range(rank)]
            x = constant_pad(x, _flat(pairs), False if x.dtype.is_bool else 0)
    return x
