"""The function body that defines one call of a non-standard operator by standard ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper

from taskmap.graph.importers.onnx.contract import CONTRACTS, DEFINITIONS
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import numpy_type
from taskmap.graph.importers.onnx.read.library import name_of
from taskmap.ir.construct import static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Dim

OPSET = 24


class Body:
    """Collects nodes. Values are names; a missing input is the empty name."""

    def __init__(self, call: OnnxCall) -> None:
        self.call = call
        formal = [p.name for p in CONTRACTS[call.domain, call.op].inputs]
        rest = len(call.inputs) - len(formal)
        self.inputs = [*formal, *(f"more_{i}" for i in range(rest))][: len(call.inputs)]
        self.nodes: list[NodeProto] = []
        self.results: list[str] = []

    # Properties of the call.

    def __getitem__(self, name: str) -> str:
        """The name of an input if the call provides it, else the empty name."""
        return name if name in self.inputs and self.call.has(self.inputs.index(name)) else ""

    def attr(self, name: str, default: Any) -> Any:
        """An attribute of the call, or ``default``."""
        return self.call.attr(name, default)

    def shape(self, name: str) -> tuple[Dim, ...]:
        """The shape of an input that the call provides."""
        return self.call.tensor(self.inputs.index(name)).shape

    def size(self, name: str, axis: int) -> int:
        """A size of an input. Raises UnsupportedError for a symbolic one."""
        known = static_size(self.shape(name)[axis])
        if known is None:
            raise UnsupportedError(f"{self.call.op} whose input {name} has a symbolic size along axis {axis}")
        return known

    def elem(self, name: str) -> int:
        """The element type of an input that the call provides."""
        return self.call.elem(self.inputs.index(name))

    def known(self, name: str) -> Any:
        """The value of an input as an array. Raises ValuesNeededError if the value is unknown."""
        return self.call.array(self.inputs.index(name))

    def refuse(self, what: str, condition: object = True) -> None:
        """Raises UnsupportedError, naming the operator, if ``condition`` holds."""
        if condition:
            raise UnsupportedError(f"{self.call.op} with {what}")

    # Nodes.

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Adds an operator; returns the name of its result."""
        (name,) = self.several(1, op, *inputs, **attributes)
        return name

    def several(self, count: int, op: str, *inputs: str, **attributes: Any) -> list[str]:
        """Adds an operator; returns the names of its first ``count`` results."""
        names = [f"{op}_{len(self.nodes)}_{i}" for i in range(count)]
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        label = f"{name_of(self.call.proto)}/{op}"
        self.nodes.append(helper.make_node(op, given, names, name=label, **attributes))
        return names

    def constant(self, value: Any, elem: int = TensorProto.INT64) -> str:
        """A constant of the element type ``elem``."""
        array = np.asarray(value).astype(numpy_type(elem))
        return self("Constant", value=numpy_helper.from_array(np.ascontiguousarray(array).reshape(np.shape(value))))

    def ints(self, *values: int) -> str:
        """A vector of integers."""
        return self.constant(np.array(values, np.int64))

    def number(self, value: float, like: str) -> str:
        """A number in the element type of the input ``like``."""
        return self.constant(np.float64(value), self.elem(like))

    def reshape(self, x: str, *shape: int) -> str:
        """``x`` in another shape: 0 keeps a size, -1 takes what remains."""
        return self("Reshape", x, self.ints(*shape))

    def sizes(self, x: str, start: int, end: int) -> str:
        """The sizes of ``x`` from axis ``start`` to ``end``, as a vector."""
        return self("Shape", x, start=start, end=end)

    def slice(self, x: str, axis: int, start: int | str, end: int | str) -> str:
        """``x`` from ``start`` to ``end`` along ``axis``; bounds are numbers or vectors of one element."""
        low, high = (self.ints(v) if isinstance(v, int) else v for v in (start, end))
        return self("Slice", x, low, high, self.ints(axis))

    def split(self, x: str, axis: int, sizes: list[int]) -> list[str]:
        """``x`` split into parts of these sizes along ``axis``."""
        return self.several(len(sizes), "Split", x, self.ints(*sizes), axis=axis)

    def cast(self, x: str, elem: int) -> str:
        """``x`` in another element type."""
        return self("Cast", x, to=int(elem))

    def plus(self, x: str, y: str) -> str:
        """x + y, or the operand that is present if the other is empty."""
        return self("Add", x, y) if x and y else x or y

    def returns(self, *names: str) -> None:
        """Declares the results of the call; an empty name stands for a result that is not computed."""
        for place, name in enumerate(names):
            if not name and self.call.wants(place):
                raise UnsupportedError(f"{self.call.op} with its result {place} in use")
        self.results = list(names[: max(self.call.outputs, 1)])


def composed_body(call: OnnxCall) -> FunctionProto | None:
    """The function that defines a call by standard operators, or None if the operator has no definition."""
    define = DEFINITIONS.get((call.domain, call.op))
    if define is None or call.library.schema(call.proto) is not CONTRACTS[call.domain, call.op]:
        return None
    body = Body(call)
    define(body)
    if len(body.results) < call.outputs:
        raise call.error(f"it has {call.outputs} results, but its definition makes {len(body.results)}")
    return helper.make_function(
        "taskmap", call.op, body.inputs, body.results, body.nodes, [helper.make_opsetid("", OPSET)]
    )
