"""From a graph to a plan: which nodes share a kernel, in which order kernels run, and where each value is stored.

1. Choose strides for every value (``placement``), and set aside the nodes that need no memory (``inlining``).
2. Group the rest into kernels (``groups``).
3. Place the values that leave their kernel: in storage of their own, or in a slice of the concatenation that they are
   part of. Outputs that are views of placed values share their storage.
4. Turn each group into a task (``tasks``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from taskmap.graph.analysis.access import Accesses
from taskmap.graph.analysis.classify import definition
from taskmap.graph.analysis.inlining import inlined_nodes, views_of_memory
from taskmap.graph.analysis.placement import Placement, choose_strides, equal_strides, slice_placement, view_placement
from taskmap.graph.fusion.clusters import Cluster
from taskmap.graph.fusion.groups import Fusion
from taskmap.graph.fusion.in_place_cat import concatenated_axis, parts_of
from taskmap.graph.fusion.tails import move_tails
from taskmap.graph.fusion.tasks import build_task, members_and_inlined, task_name
from taskmap.graph.nodes import ConstantNode, ExternNode, Graph, InputNode, Node
from taskmap.ir.nodes import Dim
from taskmap.ir.task import Task


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Nodes that become one kernel.

    ``inputs`` and ``outputs`` are in the task's order. ``nodes`` are all nodes computed, in dependency order, including
    those inlined into several groups. ``anchor`` is the node that a template schedules. ``kind`` is pointwise, row,
    reduce, scatter, recurrence, contraction or attention. ``refused`` pairs each neighbour that stayed outside with the
    reason. ``once`` is true when the group depends on constant inputs alone, so that it runs again only after one of
    them has changed.
    """

    name: str
    task: Task
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    nodes: tuple[Node, ...]
    anchor: Node | None = None
    kind: str = "pointwise"
    refused: tuple[tuple[Node, str], ...] = ()
    once: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Steps in running order (each a group or an extern node), the placement of every value, and the outputs."""

    steps: tuple[Group | ExternNode, ...]
    placements: Mapping[Node, Placement]
    outputs: tuple[Node | None, ...]

    def root(self, node: Node) -> Node:
        """The node whose storage holds the value of ``node``."""
        placement = self.placements.get(node)
        return node if placement is None else placement.root

    def __str__(self) -> str:
        return "\n".join(s.op if isinstance(s, Node) else f"{s.kind:12}{s.name}" for s in self.steps)


def plan(graph: Graph) -> Plan:
    """The kernels of ``graph`` and the places of its values. Run ``graph.passes`` first: planning rewrites no node."""
    return _Planner(graph).plan()


class _Planner:
    """The facts on which planning one graph rests, each computed once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = graph.nodes()
        self.order = {n: i for i, n in enumerate(self.nodes)}
        self.once = graph.computed_once()
        self.outside = _read_from_outside(graph, self.nodes)
        self.in_place = {n for n in self.nodes if n.attrs.get("in_place")}
        self.slices = {part: (cat, start) for cat in self.in_place for part, start in parts_of(cat)}
        own = choose_strides(self.nodes)
        self.strides = {n: self._place(n, own).strides for n in self.nodes}
        inlined = inlined_nodes(self.nodes, self.outside, self.once)
        seen = [n for n in self.nodes if n in self.outside and n in inlined]
        self.views = {n: place for n in seen if (place := self._view(n)) is not None}
        # A view read from outside that cannot share the storage of its source is computed by a kernel.
        self.accesses = Accesses(inlined - (self.outside - self.views.keys()))

    def plan(self) -> Plan:
        inlined = self.accesses.inlined
        real = [n for n in self.nodes if n not in inlined and not isinstance(n, (InputNode, ConstantNode))]
        reads = {n: self._reads(n) for n in real}
        users: dict[Node, list[Node]] = {n: [] for n in self.nodes}
        for node in real:
            for source in reads[node]:
                users[source].append(node)
        wanted = {s for n in self.outside for s in self._behind(n)}
        fusion = Fusion(self.order, self.accesses, self.strides, self.once, wanted, users)
        for node in real:
            if self._is_computed(node):
                fusion.add(node)
            else:
                fusion.add_fixed(node, reads[node])
        move_tails(fusion)
        clusters = fusion.parts.in_order()
        written = [
            n for n in real if n in wanted or any(fusion.parts.of[u] is not fusion.parts.of[n] for u in users[n])
        ]
        placements = {n: self._place(n, self.strides) for n in self.nodes if not n.is_compute or n in self.in_place}
        placements.update({n: self._place(n, self.strides) for n in written})
        placements.update(self.views)
        steps = [step for c in clusters if (step := self._step(c, placements)) is not None]
        return Plan(tuple(steps), MappingProxyType(placements), tuple(self.graph.outputs))

    def _is_computed(self, node: Node) -> bool:
        return node.is_compute and node not in self.in_place

    def _reads(self, node: Node) -> list[Node]:
        """The values, in memory or in kernels, that ``node`` reads."""
        if self._is_computed(node):
            return self.accesses.sources(node)
        return list(dict.fromkeys(s for n in node.inputs for s in self._behind(n)))

    def _behind(self, node: Node) -> list[Node]:
        """The values read in place of ``node``: itself or, if it has no memory, the values it is computed from."""
        return self.accesses.sources(node) if node in self.accesses.inlined else [node]

    def _place(self, node: Node, strides: Mapping[Node, tuple[Dim, ...]]) -> Placement:
        """The place of a value that is not a view: new storage, or a slice of the concatenation that it is part of."""
        if node not in self.slices:
            return Placement(node, strides[node])
        cat, start = self.slices[node]
        return slice_placement(self._place(cat, strides), concatenated_axis(cat), start)

    def _view(self, node: Node) -> Placement | None:
        """The place of a view in the storage of its source; None when that contradicts the view's fixed strides, or a
        result would run backwards (PyTorch has no negative strides)."""
        chain = view_chain(node)
        place: Placement | None = self._place(chain.pop(), self.strides)
        while chain and place is not None:
            place = view_placement(definition(chain.pop()), place)
        if place is None:
            return None
        if node.strides is None and node in self.graph.outputs:
            return None if any(isinstance(s, int) and s < 0 for s in place.strides) else place
        fixed = self.strides[node]
        return replace(place, strides=fixed) if equal_strides(node.shape, place.strides, fixed) else None

    def _step(self, cluster: Cluster, placements: Mapping[Node, Placement]) -> Group | ExternNode | None:
        """None for a node that nothing computes."""
        if cluster.kind == "fixed":
            (node,) = cluster.nodes
            return node if isinstance(node, ExternNode) else None
        members = set(cluster.nodes)
        nodes = members_and_inlined(cluster.nodes, self.accesses.inlined)
        outputs = tuple(n for n in cluster.nodes if n in placements)
        inputs = tuple(cluster.sources)
        name = task_name([n.op for n in nodes if n in members])
        task = build_task(name, nodes, inputs, outputs, placements, cluster.anchor)
        refused = tuple(r for r in dict.fromkeys(cluster.refused) if r[0] not in members)
        return Group(name, task, inputs, outputs, tuple(nodes), cluster.anchor, cluster.kind, refused, cluster.once)


def _read_from_outside(graph: Graph, nodes: Iterable[Node]) -> set[Node]:
    """Computed values that must be in memory: outputs, operands of externs, and the sources of views among these."""
    read = [n for n in graph.outputs if n is not None]
    read += [x for n in nodes if isinstance(n, ExternNode) for x in n.inputs]
    viewed = [view_chain(n)[-1] for n in read]
    return {n for n in (*read, *viewed) if n.is_compute}


def view_chain(node: Node) -> list[Node]:
    """``node``, then the source of each view in turn, up to the first value that is not a view."""
    chain = [node]
    while views_of_memory(chain[-1]):
        chain.append(chain[-1].inputs[0])
    return chain
