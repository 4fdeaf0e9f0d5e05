"""Fusion: which nodes become one kernel.

    ╭─ contraction ───────╮     ╭─ contraction ──────────────╮    ╭─ reduce ─╮    ╭─ contraction ─╮    ╭─ row ───╮
    │ conv ─► add ─► relu ├──┬─►│ conv ─► add ─► add ─► relu ├───►│   mean   ├───►│   mm ─► add   ├───►│ softmax │
    ╰─────────────────────╯  │  ╰─────────────────▲──────────╯    ╰──────────╯    ╰───────────────╯    ╰─────────╯
                             ╰────────────────────╯

Nodes are taken in graph order, so whatever a node reads has its cluster already. Each node goes through two steps:

1. *choose*: it joins the best of the clusters that it reads, or opens its own. An anchor (a contraction, an attention)
   always opens one, so a cluster has at most one. Everything else asks each cluster it reads, the anchored and the
   latest first, and each answers None (welcome) or the reason why not. The reasons are kept: ``explain`` prints them.
   A row reduction that none of them welcomes may still share the rows of another one that reads the same values.
2. *absorb*: the pointwise clusters that it also reads, and row clusters over the same rows, become part of its cluster,
   where the same rules allow it.

At last, what a kernel would write for one later kernel only moves there if that saves traffic (``graph.fusion.tails``).

What a cluster welcomes depends on its kind, and so on the loops its kernel will have:

    contraction   element-wise nodes at the anchor's own positions: they run on the tile while it is in registers
    attention     the same
    row           nodes over the same rows (of ``length`` elements), and over one element a row: softmax, layer norm
    reduce        element-wise nodes at the positions of the reduced result
    scatter       nothing: an element is finished only when the kernel is; but it absorbs what it is made from
    recurrence    nothing: its steps follow one another, and what it reads at each of them is in memory
    pointwise     element-wise nodes at the same positions; a row reduction of them makes the cluster a row cluster

"The same position" means the same row-major number, so reshapes in between do not matter (``graph.analysis.access``).
Values read by others too are simply further outputs of the kernel. Nodes without memory (``graph.analysis.inlining``)
are in no cluster: they go wherever they are read.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from taskmap.graph.analysis.access import Accesses, GraphRead, size_of
from taskmap.graph.analysis.classify import arithmetic_cost, definition, is_injective, is_recurrence, is_scatter
from taskmap.graph.analysis.inlining import CHEAP, is_anchor
from taskmap.graph.fusion.clusters import Cluster, Partition, Rows
from taskmap.graph.fusion.rows import row_reduction
from taskmap.graph.nodes import Node
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.nodes import Dim

MAX_INPUTS = 40
MAX_NODES = 100
PREFERENCE = {"contraction": 3, "attention": 3, "row": 2, "reduce": 1, "pointwise": 0, "scatter": 0, "recurrence": 0}
_ALONE = ("scatter", "recurrence")
"""Kinds whose kernel does nothing beside what opens it."""

Refusal = str | None


@dataclass(slots=True)
class Fusion:
    """The state of fusing one graph.

    ``order`` numbers the nodes. ``strides`` says how each value will lie in memory. ``once`` are the nodes computed
    once, from constants alone; ``kept`` the values that the outside reads; ``users`` who reads a node, inlined nodes
    left out. ``kinds`` says which kind of cluster each node opens.
    """

    order: Mapping[Node, int]
    accesses: Accesses
    strides: Mapping[Node, Sequence[Dim]]
    once: Container[Node]
    kept: Container[Node]
    users: Mapping[Node, Sequence[Node]]
    parts: Partition = field(default_factory=Partition)
    kinds: dict[Node, str] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        """Puts the next compute node into a cluster."""
        rows = row_reduction(node, self.accesses, self.strides)
        self.kinds[node] = _kind(node, rows)
        home = self._choose(node, rows) or self._open(node, rows)
        for part in self._read_clusters(node):
            if part is not home and self.why_not_absorb(part, home, node) is None:
                self.parts.merge(part, home, self.order)

    def add_fixed(self, node: Node, sources: Sequence[Node]) -> None:
        """Puts a node that is no kernel, and reads ``sources``, into the order."""
        cluster = Cluster("fixed", [node], {}, self.order[node], self.order[node], sources=dict.fromkeys(sources))
        self.parts.open(cluster)

    def _open(self, node: Node, rows: Rows | None) -> Cluster:
        kind = self.kinds[node]
        size = poly.multiply(rows.count, rows.length) if rows else size_of(node.shape)
        at = self.order[node]
        anchor = node if kind in ("contraction", "attention") else None
        cluster = Cluster(kind, [node], size, at, at, node in self.once, anchor, rows)
        cluster.sources = dict.fromkeys(self.accesses.sources(node))
        return self.parts.open(cluster)

    def _read_clusters(self, node: Node) -> list[Cluster]:
        """The kernels that ``node`` reads, the one it would rather join first."""
        found = {self.parts.of[s] for s in self.accesses.sources(node) if s in self.parts.of}
        kernels = [c for c in found if c.kind != "fixed"]
        return sorted(kernels, key=lambda c: (PREFERENCE[c.kind], c.last), reverse=True)

    def _choose(self, node: Node, rows: Rows | None) -> Cluster | None:
        """The cluster that ``node`` joins, or None; every refusal of one that it reads is noted with its reason."""
        home: Cluster | None = None
        for cluster in self._read_clusters(node):
            reason = "it is fused with its other operand" if home else self._why_not_join(cluster, node, rows)
            if reason is None:
                home = cluster
            else:
                cluster.refused.append((node, reason))
        if home is None and rows is not None:
            home = next((c for c in self._siblings(node) if self._why_not_join(c, node, rows) is None), None)
        if home is not None:
            self.parts.put(node, home, self.order[node], self.accesses.sources(node))
            if rows is not None:
                home.kind, home.rows = "row", home.rows or rows
        return home

    def _siblings(self, node: Node) -> list[Cluster]:
        """The row kernels that read what the row reduction ``node`` reads: one walk along the rows serves both."""
        readers = [self.parts.of.get(u) for s in self.accesses.sources(node) for u in self.users[s]]
        return list(dict.fromkeys(c for c in readers if c is not None and c.kind == "row"))

    # Rules: each returns None, or the reason why a node stays outside.

    def _why_not_join(self, cluster: Cluster, node: Node, rows: Rows | None) -> Refusal:
        if cluster.kind == "scatter":
            return "the elements of a scatter are finished only when its kernel is"
        if cluster.kind == "recurrence":
            return "the steps of a recurrence follow one another, and its kernel does nothing else"
        if self.kinds[node] in _ALONE:
            return f"a {self.kinds[node]} has loops of its own"
        if self.kinds[node] in ("contraction", "attention"):
            return "an anchor reads its operands tile by tile, many times over, so they must be in memory"
        if cluster.once != (node in self.once):
            return "the one is computed once, from constants alone, the other at every call"
        reads = [a for a in self.accesses.of(node) if self.parts.of.get(a.source) is cluster]
        return (
            self._why_not_fit(cluster, node, rows, reads)
            or self._why_not_room(cluster, [node], self.accesses.sources(node))
            or self._why_not_acyclic(cluster, node)
        )

    def _why_not_fit(self, cluster: Cluster, node: Node, rows: Rows | None, reads: Sequence[GraphRead]) -> Refusal:
        """Whether ``node``, which reads members by ``reads``, fits into the loops of the cluster."""
        if cluster.kind == "row":
            return self._why_not_row(cluster, node, rows, reads)
        if rows is not None and cluster.kind == "pointwise":
            return self._why_not_rows_of(cluster, rows, node, reads)
        if self.kinds[node] != "pointwise":
            return _REDUCTION_REFUSED[cluster.kind]
        return self._why_not_aligned(cluster, node, reads)

    def _why_not_aligned(self, cluster: Cluster, node: Node, reads: Sequence[GraphRead]) -> Refusal:
        if size_of(node.shape) != cluster.size:
            return f"it has another number of elements than the {cluster.kind} kernel's domain"
        position = self.accesses.position(node)
        if not all(position.aligned(a) for a in reads):
            return f"it reads the {cluster.kind} kernel's values at other positions than its own"
        return None

    def _why_not_row(self, cluster: Cluster, node: Node, rows: Rows | None, reads: Sequence[GraphRead]) -> Refusal:
        if cluster.rows is None:
            return "the kernel has no rows"
        if self.kinds[node] == "reduce":
            return "it reduces something else than the kernel's rows"
        if rows is not None and rows != cluster.rows:
            return "its rows have another length or shape than the kernel's"
        return self._why_not_in_rows(cluster.rows, node, reads)

    def _why_not_rows_of(self, cluster: Cluster, rows: Rows, node: Node, reads: Sequence[GraphRead]) -> Refusal:
        """Whether a row reduction fits onto a pointwise cluster, which it makes a row cluster."""
        if cluster.size != poly.multiply(rows.count, rows.length):
            return "it reduces a tensor of another size than the pointwise kernel's domain"
        return self._why_not_in_rows(rows, node, reads)

    def _why_not_in_rows(self, rows: Rows, node: Node, reads: Sequence[GraphRead]) -> Refusal:
        """Whether each read of a member stays in the row that is being computed, at the same place of it."""
        size, wide = size_of(node.shape), poly.multiply(rows.count, rows.length)
        position = self.accesses.position(node)
        split = position.split(rows.count)
        if split is None or size not in (wide, rows.count):
            return "it has neither an element for every element of a row nor one for every row"
        row = position.row_number(split)
        for access in reads:
            expected = row
            if size_of(access.source.shape) == wide:
                expected = poly.add(poly.multiply(row, rows.length), position.column_number(split, access))
            if not access.aligned and position.touched(access) != expected:
                return "it reads the kernel's values from other rows, or other places of the row, than its own"
        return None

    def _why_not_room(self, cluster: Cluster, nodes: Sequence[Node], sources: Sequence[Node]) -> Refusal:
        if len(cluster.nodes) + len(nodes) > MAX_NODES:
            return f"a kernel has at most {MAX_NODES} operators"
        outside = {s for s in (*cluster.sources, *sources) if s not in cluster.nodes and s not in nodes}
        if len(outside) > MAX_INPUTS:
            return f"a kernel has at most {MAX_INPUTS} inputs"
        return None

    def _why_not_acyclic(self, cluster: Cluster, node: Node) -> Refusal:
        others = {self.parts.of[s] for s in self.accesses.sources(node) if s in self.parts.of} - {cluster}
        if self.parts.depends(others, cluster):
            return "another operand of it needs this kernel's result first"
        return None

    def why_not_absorb(self, part: Cluster, home: Cluster, node: Node) -> Refusal:
        """Whether the cluster ``part``, which ``node`` of ``home`` reads, may become part of ``home``."""
        if part.kind != "pointwise" and (part.rows is None or part.rows != home.rows):
            return "its loops are its own"
        if part.once != home.once:
            return "the one is computed once, the other at every call"
        reason = self._why_not_room(home, part.nodes, list(part.sources))
        if reason is not None:
            return reason
        if self.parts.depends(self.parts.before(home) - {part}, part):
            return "a third kernel stands between them"
        shared = home.kind not in _ALONE and self._same_loops(part, home)
        return None if shared else self._why_not_prologue(part, home, node)

    def _same_loops(self, part: Cluster, home: Cluster) -> bool:
        """Whether the cluster's nodes run in the loops of ``home``: every member reads them at its own position."""
        if part.size != home.size:
            return False
        members = set(part.nodes)
        for node in home.nodes:
            reads = [a for a in self.accesses.of(node) if a.source in members]
            if not reads:
                continue
            if home.rows is not None:
                if self._why_not_in_rows(home.rows, node, reads) is not None:
                    return False
            elif not all(self.accesses.position(node).aligned(a) for a in reads):
                return False
        return True

    def _why_not_prologue(self, part: Cluster, home: Cluster, node: Node) -> Refusal:
        """Whether the cluster's one result may be computed anew wherever ``node`` reads it."""
        if home.kind not in ("pointwise", "reduce", "scatter"):
            return f"a {home.kind} kernel reads from memory what is not at its own positions"
        members = set(part.nodes)
        if any(n in self.kept or any(u is not node and u not in members for u in self.users[n]) for n in part.nodes):
            return "its values are read elsewhere too"
        reads = [a for a in self.accesses.of(node) if a.source in members]
        cost = sum(arithmetic_cost(definition(n)) for n in part.nodes)
        if cost > CHEAP and not _read_at_most_once(node, reads):
            return "its values would be computed several times over"
        return None


_REDUCTION_REFUSED = {
    "contraction": "a reduction needs whole rows, and a tile of an anchor holds a part of them",
    "attention": "a reduction needs whole rows, and a tile of an anchor holds a part of them",
    "reduce": "a kernel has one reduction, unless all of them run along the same rows",
    "pointwise": "it does not reduce rows that lie together in memory",
}


def _kind(node: Node, rows: Rows | None) -> str:
    if is_anchor(node):
        return "attention" if node.op == "attention" else "contraction"
    if is_scatter(definition(node)):
        return "scatter"
    if is_recurrence(definition(node)):
        return "recurrence"
    if is_injective(definition(node)):
        return "pointwise"
    return "row" if rows else "reduce"


def _read_at_most_once(node: Node, reads: Sequence[GraphRead]) -> bool:
    """Whether ``node`` makes no more reads than there are elements to read."""
    if len(reads) != 1:
        return False
    count = size_of([n for _, n in reads[0].folded])
    if not (reads[0].folded and is_scatter(definition(node))):  # a scatter walks its source, and not its result too
        count = poly.multiply(size_of(node.shape), count)
    there = size_of(reads[0].source.shape)
    made, present = poly.constant_value(count), poly.constant_value(there)
    return count == there if made is None or present is None else made <= present
