"""One call of an operator as a lowering receives it: inputs, attributes, and the operator's version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, SparseTensorProto, TensorProto

from taskmap.graph.build import same_dim
from taskmap.graph.importers.onnx.read.assumptions import Assumptions, decides
from taskmap.graph.importers.onnx.read.library import FunctionLibrary, described, name_of
from taskmap.graph.importers.onnx.read.protos import array_of, shown, sparse_array
from taskmap.graph.importers.onnx.read.values import Tensor, Value
from taskmap.graph.nodes import Node, Origin
from taskmap.ir.construct import static_size
from taskmap.ir.errors import ImportGraphError
from taskmap.ir.nodes import Dim, Expr
from taskmap.ir.printer import print_dim

Array = NDArray[Any]


class ValuesNeededError(Exception):
    """The values of ``tensors`` must be computed before reading can continue."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__("a value is needed while the graph is read")
        self.tensors = tuple(tensors)


@dataclass(frozen=True, slots=True, eq=False)
class HostStep:
    """An operator whose result's size depends on data. The graph ends before it, ``function`` is called with arrays,
    and another graph begins. It returns one array for each of ``elems``, or values. ``shapes``: for each array the
    sizes known beforehand, None for the others."""

    function: Callable[..., Any]
    inputs: tuple[Value | None, ...]
    elems: tuple[int, ...]
    reason: str = "the size of its result depends on data"
    shapes: tuple[tuple[int | None, ...], ...] = ()


def dims_text(shape: Sequence[Dim]) -> str:
    """A shape for a message: [batch, 8]."""
    return f"[{', '.join(map(print_dim, shape))}]"


@dataclass(slots=True, eq=False)
class OnnxCall:
    """A call: ``version`` is that of the operator's definition; ``outputs`` is the number of results the node names."""

    proto: NodeProto
    domain: str
    version: int
    inputs: list[Value | None]
    attributes: dict[str, Any]
    library: FunctionLibrary
    fold: Callable[[Tensor], Array | None]
    sizes: Assumptions = field(default_factory=Assumptions)

    @property
    def op(self) -> str:
        """The operator's name."""
        return self.proto.op_type

    @property
    def outputs(self) -> int:
        """The number of results that the node names."""
        return len(self.proto.output)

    @property
    def origin(self) -> Origin:
        """The origin of its nodes: the operator, and the name of the node or of its first result."""
        return Origin(self.op, text=shown(name_of(self.proto))[1:-1])

    def wants(self, index: int) -> bool:
        """True if result ``index`` is used."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def error(self, what: str, why: str | None = None) -> ImportGraphError:
        """An error that names this node."""
        return ImportGraphError(f"{described(self.proto)}: {what}", why=why)

    # Inputs.

    def named(self, index: int) -> str:
        """Input ``index`` as a message names it: by its name in the model, if it has one."""
        name = self.proto.input[index] if index < len(self.proto.input) else ""
        return f"the input {shown(name)}" if name else f"input {index}"

    def has(self, index: int) -> bool:
        """True if input ``index`` is present."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        """Input ``index``. Raises ImportGraphError when it is missing."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise self.error(f"{self.named(index)} is missing")
        return value

    def tensor(self, index: int) -> Tensor:
        """Input ``index``, which must be a tensor."""
        value = self.value(index)
        if not isinstance(value, Tensor):
            raise self.error(f"{self.named(index)} is not a tensor")
        return value

    def node(self, index: int) -> Node:
        """Input ``index`` as a node."""
        return self.tensor(index).node()

    def optional(self, index: int) -> Node | None:
        """Input ``index`` as a node, or None."""
        return self.node(index) if self.has(index) else None

    def nodes(self) -> list[Node]:
        """All inputs as nodes."""
        return [self.node(i) for i in range(len(self.inputs))]

    def elem(self, index: int) -> int:
        """The element type of input ``index``."""
        return self.tensor(index).elem

    def array(self, index: int) -> Array:
        """The value of input ``index``. Raises ValuesNeededError if the value is unknown."""
        tensor = self.tensor(index)
        if tensor.is_symbolic:
            assert tensor.known is not None
            known = [static_size(v) for v in tensor.known.reshape(-1)]
            if None in known:
                raise decides(f"{self.op} of a number that is a symbolic size", list(tensor.known.reshape(-1)))
            return np.array(known, np.int64).reshape(tensor.known.shape)
        value = self.fold(tensor)
        if value is None:
            raise ValuesNeededError([tensor])
        return value

    def maybe(self, index: int) -> Array | None:
        """The value of input ``index`` if it is present and known, else None."""
        if not self.has(index) or self.tensor(index).is_symbolic:
            return None
        return self.fold(self.tensor(index))

    def dims(self, index: int) -> list[Dim]:
        """Input ``index`` as a list of sizes, which may be symbolic."""
        tensor = self.tensor(index)
        if tensor.is_symbolic:
            assert tensor.known is not None
            return [v if isinstance(v, Expr) else int(v) for v in tensor.known.reshape(-1)]
        return list(self.ints(index))

    def ints(self, index: int) -> list[int]:
        """Input ``index`` as a list of integers."""
        return [int(v) for v in self.array(index).reshape(-1)]

    def number(self, index: int) -> Any:
        """The single number in input ``index``."""
        array = self.array(index)
        if array.size != 1:
            raise self.error(f"{self.named(index)} has {array.size} elements, not one")
        return array.reshape(-1)[0].item()

    # Attributes.

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or ``default``."""
        return self.attributes.get(name, default)

    def array_attr(self, name: str) -> Array:
        """A tensor attribute."""
        value = self.attributes.get(name)
        if isinstance(value, TensorProto):
            return array_of(value, self.library.folder)
        if isinstance(value, SparseTensorProto):
            return sparse_array(value, self.library.folder)
        raise self.error(f"the attribute {name} is missing")

    def required(self, name: str) -> Any:
        """A required attribute. Raises ImportGraphError if it is missing."""
        if name not in self.attributes:
            raise self.error(f"the attribute {name} is missing")
        return self.attributes[name]

    def same(self, a: Dim, b: Dim) -> None:
        """Records the assumption that two sizes are equal, unless this is known."""
        if static_size(a) is None or static_size(b) is None:
            if not same_dim(a, b) and not same_dim(self.sizes.tidy(a), self.sizes.tidy(b)):
                self.sizes.same(a, b)
        elif static_size(a) != static_size(b):
            raise self.error(f"the sizes {a} and {b} differ", f"its inputs are {self._shapes()}.")

    def at_least(self, a: Dim, b: Dim) -> None:
        """Records the assumption that ``a`` is at least ``b``, unless this is known."""
        if static_size(a) is None or static_size(b) is None:
            self.sizes.at_least(a, b)

    def holds(self, op: str, a: Dim, b: Dim, what: str) -> bool:
        """True if a comparison of sizes holds; for symbolic sizes the example decides. Raises SizeDecidesError, which
        names ``what``, without an example."""
        found = self.sizes.holds(op, a, b)
        if found is None:
            raise decides(what, [a, b])
        return found

    def _shapes(self) -> str:
        """The tensor inputs with their shapes, for a message."""
        given = [(i, v.shape) for i, v in enumerate(self.inputs) if isinstance(v, Tensor)]
        return ", ".join(f"{shown(self.proto.input[i])} {dims_text(shape)}" for i, shape in given)

    def broadcasts(self, *shapes: Sequence[Dim]) -> None:
        """Records the assumptions under which tensors of these shapes broadcast as they do in the example."""
        for place in range(1, max((len(s) for s in shapes), default=0) + 1):
            sizes = [s[-place] for s in shapes if len(s) >= place and static_size(s[-place]) != 1]
            if len({self.sizes.value(n) for n in sizes}) > 1:
                self._check_not_one(sizes)
            for size in sizes[1:]:
                self.same(sizes[0], size)

    def _check_not_one(self, sizes: Sequence[Dim]) -> None:
        """Raises SizeDecidesError for a symbolic size that is 1 in the example, which broadcasting would repeat."""
        ones = [n for n in sizes if static_size(n) is None and self.sizes.value(n) == 1]
        if ones:
            error = decides(f"{self.op} of sizes of which one is 1", ones)
            error.fixed = True
            raise error

    def axis(self, value: int, rank: int) -> int:
        """An axis that may count from the end. Raises ImportGraphError if it is out of range."""
        if not -rank <= value < max(rank, 1):
            raise self.error(f"the axis {value} lies outside a tensor of rank {rank}")
        return value % rank if rank else 0
