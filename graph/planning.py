"""From a graph to a plan: which nodes become kernels together, in which order, and where every value lies."""

from __future__ import annotations

from dataclasses import dataclass, field

from taskmap.graph.classify import arithmetic_cost, is_injective, is_view
from taskmap.graph.graph import Graph, Node
from taskmap.graph.layout import Placement, equal_strides, row_major, view_placement
from taskmap.graph.tasks import build_task, definition
from taskmap.ir.task import Task


@dataclass(slots=True, eq=False)
class Group:
    """Nodes that become one kernel.

    ``inputs`` and ``outputs`` are in the order of the task's. ``nodes`` are all nodes computed, in dependency order,
    those inlined into several groups included. ``anchor`` is the node a template schedules. ``kind`` is pointwise, row,
    reduce, contraction or attention. ``refused`` says which neighbours stayed outside, and why. ``once`` is true when
    the group depends on constant inputs alone, so that it runs again only after one of them has changed.
    """

    name: str
    task: Task
    inputs: list[Node]
    outputs: list[Node]
    nodes: list[Node]
    anchor: Node | None = None
    kind: str = "pointwise"
    refused: list[tuple[Node, str]] = field(default_factory=list)
    once: bool = False


@dataclass(slots=True, eq=False)
class Plan:
    """Steps in running order, a group or an extern node each; the placement of every value in memory; the outputs."""

    steps: list[Group | Node]
    placements: dict[Node, Placement]
    outputs: list[Node | None]


INLINE_COST = 4


def plan(graph: Graph) -> Plan:
    """The kernels of ``graph``: for now each computed value is its own, with the views and cheap operators it reads."""
    nodes = graph.nodes()
    placements: dict[Node, Placement] = {}
    steps: list[Group | Node] = []
    kept = {n for n in graph.outputs if n is not None} | {x for n in nodes if n.op == "extern" for x in n.inputs}
    for node in nodes:
        strides = node.strides if node.strides is not None else row_major(node.shape)
        if not node.is_compute:
            placements[node] = Placement(node, strides)
            if node.op == "extern":
                steps.append(node)
            continue
        define = definition(node)
        if node not in kept and (is_view(define) or (is_injective(define) and arithmetic_cost(define) <= INLINE_COST)):
            continue
        source = node.inputs[0] if is_view(define) else None
        if source is not None and source in placements:
            alias = view_placement(define, placements[source])
            if alias is not None and equal_strides(node.shape, alias.strides, strides):
                placements[node] = alias
                continue
        placements[node] = Placement(node, strides)
        steps.append(_group([node], [node], placements))
    return Plan(steps, placements, list(graph.outputs))


def _group(members: list[Node], outputs: list[Node], placements: dict[Node, Placement]) -> Group:
    nodes: dict[Node, None] = {}
    inputs: dict[Node, None] = {}
    stack = [(m, False) for m in reversed(members)]
    while stack:
        node, ready = stack.pop()
        if ready:
            nodes[node] = None
        elif node in placements and node not in members:
            inputs[node] = None
        elif node not in nodes:
            stack.append((node, True))
            stack.extend((n, False) for n in reversed(node.inputs))
    name = "_".join(n.op for n in nodes)[:40]
    task = build_task(name, list(nodes), list(inputs), outputs, placements, None)
    return Group(name, task, list(inputs), outputs, list(nodes))
