"""The graph IR: a DAG of operators, each one a compute definition over its predecessors.

A node has one output. An operator with several outputs becomes several nodes (dead ones are removed) or, when PyTorch
must run it, one ``extern`` node with ``getitem`` nodes on it. Shapes are logical; layout planning decides later where a
value is stored, so placement is not part of the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from taskmap.ir.nodes import Dim, Var
from taskmap.ir.task import Compute
from taskmap.ir.types import DType

__all__ = ["Graph", "Node", "Origin"]

_ids = itertools.count()


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


@dataclass(slots=True, eq=False)
class Node:
    """One value of the graph.

    ``op`` is the operator's name; four names are special: input (a graph input, ``attrs["index"]``), constant (a tensor
    of the model, ``attrs["value"]``), extern and getitem. Every other node has a ``define``: its compute definition,
    whose formal inputs correspond to ``inputs`` in order. ``attrs`` holds further facts that a template needs.
    ``strides`` is set where the caller fixes them: for inputs, and for outputs that must equal eager's.
    """

    op: str
    inputs: tuple[Node, ...]
    shape: tuple[Dim, ...]
    dtype: DType
    define: Compute | None = None
    attrs: dict[str, object] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    strides: tuple[Dim, ...] | None = None
    id: int = field(default_factory=lambda: next(_ids))

    @property
    def is_compute(self) -> bool:
        """True when taskmap compiles the node; false for inputs, constants, externs and their items."""
        return self.define is not None

    def __repr__(self) -> str:
        args = ", ".join(f"%{n.id}" for n in self.inputs)
        return f"%{self.id} = {self.op}({args}): {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(slots=True, eq=False)
class Graph:
    """Inputs in calling order, outputs in order (None where the model returns None), and the symbolic sizes.

    ``dims`` maps each symbolic size to the source of its value at run time: ("input", i) is the i-th argument, an
    integer; ("size", i, d) is dimension d of the i-th argument; ("line", a, b, *place) is max(a * n + b, 1) for the n
    at ``place``. Every size is assumed to be at least 1. ``constant_inputs`` holds the positions of inputs whose values
    persist from call to call (parameters and buffers). ``hints`` holds likely values of symbolic sizes, where they are
    known; ``remarks``, for reports, why a pass decided as it did about the node of an ``id``.
    """

    inputs: list[Node]
    outputs: list[Node | None]
    dims: dict[Var, tuple[object, ...]] = field(default_factory=dict)
    constant_inputs: frozenset[int] = frozenset()
    hints: dict[Var, int] = field(default_factory=dict)
    remarks: dict[int, str] = field(default_factory=dict)

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
    for root in roots:
        stack: list[tuple[Node, Iterator[Node]]] = [(root, _sources(root, ends))]
        seen = {root}
        while stack:
            node, rest = stack[-1]
            if node in order:
                stack.pop()
                continue
            child = next((n for n in rest if n not in order and n not in seen), None)
            if child is None:
                order[node] = None
                stack.pop()
            else:
                seen.add(child)
                stack.append((child, _sources(child, ends)))
    return list(order)


def _sources(node: Node, ends: Callable[[Node], bool] | None) -> Iterator[Node]:
    return iter(() if ends is not None and ends(node) else node.inputs)
