"""The graph IR: a DAG of operators, each one a compute definition over its predecessors.

A node has one output. An operator with several outputs becomes several nodes (dead ones are removed) or, when PyTorch
must run it, one ExternNode with Items on it. Shapes are logical; layout planning decides later where a
value is stored, so placement is not part of the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Dim, Expr, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.task import Compute
from taskmap.ir.types import DType

__all__ = [
    "ConstantNode",
    "ExternNode",
    "Graph",
    "InputNode",
    "ItemNode",
    "Node",
    "OperatorNode",
    "Origin",
    "OriginContext",
    "SizeNode",
    "rebuilt",
    "topological",
]

_ids = itertools.count()
_NO_FACTS: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a node: the operator's name in the model and, if known, the user's line (file, number, text)."""

    operator: str = ""
    file: str = ""
    line: int = 0
    text: str = ""

    def __str__(self) -> str:
        place = f"{self.file.rsplit('/', 1)[-1]}:{self.line}  {self.text}".strip() if self.file else ""
        return place or self.operator


_current: ContextVar[Origin | None] = ContextVar("origin", default=None)


class OriginContext:
    """Within it, new nodes have ``origin`` unless they are given another; inputs and constants have none.

    As operations take the enclosing location in MLIR's Python bindings (``with Location``). An importer enters one per
    operator, hence no generator.
    """

    __slots__ = ("_before", "_origin")

    def __init__(self, origin: Origin) -> None:
        self._origin = origin

    def __enter__(self) -> None:
        self._before = _current.set(self._origin)

    def __exit__(self, *error: object) -> None:
        _current.reset(self._before)


def _origin() -> Origin:
    return _current.get() or Origin()


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One value of the graph: an OperatorNode, InputNode, ConstantNode, ExternNode, ItemNode or SizeNode.

    ``strides`` is set where the caller fixes them: for inputs, and for outputs that must equal eager's. A node never
    changes; ``replace`` makes another with the same ``id``, which stands in its place (see ``rebuilt``).
    """

    KIND: ClassVar[str] = "node"

    inputs: tuple[Node, ...]
    shape: tuple[Dim, ...]
    dtype: DType
    origin: Origin = field(default_factory=_origin, kw_only=True)
    strides: tuple[Dim, ...] | None = field(default=None, kw_only=True)
    id: int = field(default_factory=lambda: next(_ids), kw_only=True)

    @property
    def op(self) -> str:
        """The operator's name; for another node, that of its kind."""
        return self.KIND

    @property
    def define(self) -> Compute | None:
        """The compute definition of an operator; None for another node."""
        return None

    @property
    def attrs(self) -> Mapping[str, object]:
        """Further facts of an operator; none for another node."""
        return _NO_FACTS

    @property
    def is_compute(self) -> bool:
        """True for an operator, which taskmap compiles; false for inputs, constants, externs and their items."""
        return self.define is not None

    def __repr__(self) -> str:
        args = ", ".join(f"%{n.id}" for n in self.inputs)
        return f"%{self.id} = {self.op}({args}): {self.dtype}[{', '.join(map(print_dim, self.shape))}]"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OperatorNode(Node):
    """``define`` of its inputs, which correspond to the formal inputs in order. ``op``: the operator's name; ``attrs``:
    further facts that a template needs."""

    op: str = field()
    define: Compute = field()
    attrs: Mapping[str, object] = field(default_factory=lambda: _NO_FACTS)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InputNode(Node):
    """The argument at position ``index``; is_size: a number, the value of a symbolic size. ``name`` is the model's."""

    KIND: ClassVar[str] = "input"

    origin: Origin = field(default_factory=Origin, kw_only=True)
    index: int = 0
    is_size: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ConstantNode(Node):
    """``value``, a tensor of the model."""

    KIND: ClassVar[str] = "constant"

    origin: Origin = field(default_factory=Origin, kw_only=True)
    value: Any = field()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExternNode(Node):
    """``target(*args, **kwargs)``, a function of PyTorch, or one that ``runner`` names; a Slot in an argument stands
    for an input. ``reason``: the one for which it is not compiled. The ItemNodes of several results read them from it,
    an opaque value. ``draw``: the place of one that draws random numbers among those that do. ``view_of``: the
    position of the input whose memory its results are views of.
    """

    KIND: ClassVar[str] = "extern"

    target: Any = field()
    args: Any = field()
    kwargs: Any = field()
    reason: str = field()
    runner: str = "PyTorch"
    draw: int | None = None
    view_of: int | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ItemNode(Node):
    """The result at position ``index`` of an extern with several results, its input."""

    KIND: ClassVar[str] = "getitem"

    index: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SizeNode(Node):
    """``size``, a number computed from symbolic sizes; only as an output of the graph."""

    KIND: ClassVar[str] = "symint"

    size: Expr | float = field()


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Inputs in calling order, outputs in order (None where the model returns None), and the symbolic sizes.

    ``dims`` maps each symbolic size to the source of its value at run time: ("input", i) is the i-th argument, an
    integer; ("size", i, d) is dimension d of the i-th argument; ("line", a, b, *place) is max(a * n + b, 1) for the n
    at ``place``. Every size is assumed to be at least 1. ``constant_inputs`` holds the positions of inputs whose values
    persist from call to call (parameters and buffers). ``hints`` holds likely values of symbolic sizes, where they are
    known; ``remarks``, for reports, why a pass decided as it did about the node of an ``id``.
    """

    inputs: list[InputNode]
    outputs: list[Node | None]
    dims: dict[Var, tuple[object, ...]] = field(default_factory=dict)
    constant_inputs: frozenset[int] = frozenset()
    hints: dict[Var, int] = field(default_factory=dict)
    remarks: dict[int, str] = field(default_factory=dict)
    _once: list[frozenset[Node]] = field(default_factory=list, init=False, repr=False)

    def computed_once(self) -> frozenset[Node]:
        """Nodes that depend only on constants, and on no size: their values persist from call to call."""
        if not self._once:
            constant: set[Node] = {n for i, n in enumerate(self.inputs) if i in self.constant_inputs}
            for node in self.nodes():
                fixed = node.is_compute and all(static_size(n) is not None for n in node.shape)
                if isinstance(node, ConstantNode) or (fixed and all(n in constant for n in node.inputs)):
                    constant.add(node)
            self._once.append(frozenset(constant))
        return self._once[0]

    def nodes(self) -> list[Node]:
        """Every node reachable from the outputs, each after its inputs. Unused inputs are not listed."""
        return topological([n for n in self.outputs if n is not None])

    def users(self) -> dict[Node, list[Node]]:
        """Maps each node to the nodes that read it, in order. Graph outputs do not count as readers."""
        users: dict[Node, list[Node]] = {n: [] for n in self.nodes()}
        for node in users:
            for source in dict.fromkeys(node.inputs):
                users[source].append(node)
        return users

    def __str__(self) -> str:
        lines = [repr(n) for n in self.nodes()]
        returned = ", ".join("None" if n is None else f"%{n.id}" for n in self.outputs)
        return "\n".join([*lines, f"return {returned}"])


def topological(roots: Iterable[Node], ends: Callable[[Node], bool] | None = None) -> list[Node]:
    """Nodes reachable from ``roots`` through inputs, each after its inputs.

    Iterative, so a deep graph does not overflow the stack. The walk includes nodes for which ``ends`` holds but does
    not go past them.
    """
    order: dict[Node, None] = {}
    seen: set[Node] = set()
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack: list[tuple[Node, Iterator[Node]]] = [(root, _sources(root, ends))]
        while stack:
            node, rest = stack[-1]
            for child in rest:
                if child not in seen:
                    seen.add(child)
                    stack.append((child, _sources(child, ends)))
                    break
            else:
                order[node] = None
                stack.pop()
    return list(order)


def rebuilt(
    nodes: Iterable[Node], visit: Callable[[Node, Node], Node], made: dict[Node, Node] | None = None
) -> dict[Node, Node]:
    """Maps each of ``nodes``, which come after their inputs, to the one that takes its place: ``visit(now, was)``,
    where ``now`` is the node ``was`` with its new inputs.

    An input without an entry stays as it is. ``made``: an earlier answer, which is extended.
    """
    made = {} if made is None else made
    for node in nodes:
        inputs = tuple(map(made.get, node.inputs, node.inputs))
        made[node] = visit(node if inputs == node.inputs else replace(node, inputs=inputs), node)
    return made


def _sources(node: Node, ends: Callable[[Node], bool] | None) -> Iterator[Node]:
    return iter(() if ends is not None and ends(node) else node.inputs)
