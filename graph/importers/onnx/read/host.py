"""Operators that numpy runs on the host, between compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.extern import Slot
from taskmap.graph.importers.onnx.read.assumptions import decides
from taskmap.graph.importers.onnx.read.call import HostStep, OnnxCall
from taskmap.graph.importers.onnx.read.elements import STRING, dense, empty, from_held, held_in, to_held
from taskmap.graph.importers.onnx.read.library import described
from taskmap.graph.importers.onnx.read.values import Tensor, constant_node, is_empty, of_array
from taskmap.graph.nodes import ExternNode, ItemNode, Node
from taskmap.ir.construct import static_size
from taskmap.ir.errors import IndexOutOfRangeError, InputError, TaskmapError
from taskmap.ir.lower.flatten import row_major_strides
from taskmap.ir.nodes import Dim
from taskmap.ir.types import DType

Array = NDArray[Any]
OPAQUE = DType("tuple", 0, "x")


def on_host(
    call: OnnxCall,
    function: Callable[..., Any],
    outputs: Sequence[tuple[int, Sequence[Dim]]],
    reason: str,
    inputs: Sequence[int] | None = None,
) -> list[Tensor]:
    """Nodes that call ``function`` on arrays, one for each of ``inputs`` (default: all; None for a missing one).

    ``function`` returns one array, or several, with the element types and shapes in ``outputs``.
    """
    places = range(len(call.inputs)) if inputs is None else inputs
    given = [call.tensor(i) if call.has(i) else None for i in places]
    present = [t for t in given if t is not None]
    elems = [t.elem for t in present]
    for elem, _ in outputs:
        held_in(elem)
    if any(elem == STRING for elem, _ in outputs) and all(call.fold(t) is not None for t in present):
        # Known now: the numbers of strings that are computed when the model runs are given up after a while.
        made = guarded(call, function, [None if t is None else call.fold(t) for t in given])
        listed = made if isinstance(made, (list, tuple)) else [made]
        return [of_array(np.asarray(m), elem) for m, (elem, _) in zip(listed, outputs, strict=True)]

    def target(*held: Array) -> Any:
        arrays = iter(from_held(x, e) for x, e in zip(held, elems, strict=True))
        result = guarded(call, function, [None if t is None else next(arrays) for t in given])
        listed = result if isinstance(result, (list, tuple)) else [result]
        made = [dense(to_held(np.asarray(r), elem)) for r, (elem, _) in zip(listed, outputs, strict=True)]
        return made[0] if len(outputs) == 1 else made

    nodes = tuple(t.node() for t in present)
    slots = tuple(Slot(i) for i in range(len(nodes)))
    run: tuple[Any, Any, dict[str, Any], str, str] = (target, slots, {}, reason, "numpy")
    if len(outputs) == 1:
        ((elem, shape),) = outputs
        strides = row_major_strides(tuple(shape))
        node = ExternNode(nodes, tuple(shape), held_in(elem), *run, strides=strides)
        return [_tensor(elem, node)]
    whole = ExternNode(nodes, (), OPAQUE, *run)
    results: list[Tensor] = []
    for i, (elem, shape) in enumerate(outputs):
        strides = row_major_strides(tuple(shape))
        item = ItemNode((whole,), tuple(shape), held_in(elem), i, strides=strides)
        results.append(_tensor(elem, item))
    return results


def guarded(call: OnnxCall, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Calls ``function``; an exception from numpy becomes an error that names the node."""
    try:
        with np.errstate(all="ignore"):
            return function(*arguments)
    except TaskmapError:
        raise
    except IndexError as error:
        raise IndexOutOfRangeError(f"{described(call.proto)}: an index is out of range", why=str(error)) from error
    except Exception as error:  # numpy rejects values with many kinds of exceptions
        raise InputError(
            f"{described(call.proto)} cannot be computed", why=f"{type(error).__name__}: {error}"
        ) from error


def _tensor(elem: int, node: Node) -> Tensor:
    sizes = tuple(static_size(n) for n in node.shape)
    if is_empty(node.shape) and None not in sizes:
        made = constant_node(from_held(empty(tuple(n or 0 for n in sizes), node.dtype), elem), elem)
        return Tensor(elem, node.shape, made=made)
    return Tensor(elem, node.shape, made=node)


def step(
    call: OnnxCall, function: Callable[..., Any], *elems: int, shapes: tuple[tuple[int | None, ...], ...] = ()
) -> HostStep:
    """An operator whose results have sizes that depend on data; see HostStep."""
    return HostStep(lambda *arrays: guarded(call, function, arrays), tuple(call.inputs), elems, shapes=shapes)


def concrete(shape: Sequence[Dim], what: str) -> tuple[int, ...]:
    """A shape as integers. Raises UnsupportedError unless all its sizes are known."""
    sizes = [static_size(n) for n in shape]
    if None in sizes:
        raise decides(f"{what} of a symbolic size", shape)
    return tuple(n for n in sizes if n is not None)
