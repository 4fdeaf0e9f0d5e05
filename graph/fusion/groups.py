"""Fusion: the rules that decide which nodes share a kernel.

    ╭─ contraction ───────╮     ╭─ contraction ──────────────╮    ╭─ reduce ─╮    ╭─ contraction ─╮    ╭─ row ───╮
    │ conv ─► add ─► relu ├──┬─►│ conv ─► add ─► add ─► relu ├───►│   mean   ├───►│   mm ─► add   ├───►│ softmax │
    ╰─────────────────────╯  │  ╰─────────────────▲──────────╯    ╰──────────╯    ╰───────────────╯    ╰─────────╯
                             ╰────────────────────╯

Nodes are taken in graph order, so the inputs of a node already have their clusters. Each node goes through two steps:

1. *choose*: it joins the best of the clusters that it reads, or opens its own. An anchor (a contraction, an attention)
   opens one, so a cluster has at most one anchor; but a depthwise convolution that computes its image takes the place
   of the product's anchor. Any other node asks each cluster it reads, anchored and latest ones first. Each answers None
   (accepted) or the reason for a refusal; ``explain`` prints these reasons. A row reduction that every cluster refuses
   may still share the rows of another one that reads the same values.
2. *absorb*: the other pointwise clusters that it reads, and row clusters over the same rows, merge into its cluster
   where the same rules allow it.

Finally, values that only one later kernel reads move into that kernel if this saves traffic (``graph.fusion.tails``).

A cluster accepts nodes according to its kind, because the kind determines its kernel's loops:

    contraction   element-wise nodes at the anchor's own positions: they run while the tile is in registers; and a
                  depthwise convolution that computes its image (``passes.convolutions.expansions``)
    attention     the same
    row           nodes over the same rows (of ``length`` elements) or with one element per row: softmax, layer norm
    reduce        element-wise nodes at the positions of the reduced result
    scatter       nothing: no element is final before the kernel ends; but it absorbs the producers of its inputs
    recurrence    nothing: its steps run in sequence, and each reads its inputs from memory
    pointwise     element-wise nodes at the same positions; a row reduction of them turns it into a row cluster

"The same position" means the same row-major number, so reshapes in between do not matter (``graph.analysis.access``).
Values that other kernels also read become further outputs of the kernel. Nodes without memory
(``graph.analysis.inlining``) belong to no cluster: each reader recomputes them.
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
from taskmap.ir.expansion import ATTRIBUTE
from taskmap.ir.nodes import Dim

MAX_INPUTS = 40
MAX_NODES = 100
PREFERENCE = {"contraction": 3, "attention": 3, "row": 2, "reduce": 1, "pointwise": 0, "scatter": 0, "recurrence": 0}
_ALONE = ("scatter", "recurrence")
"""Kinds whose kernels compute nothing but the node that opened them."""

Refusal = str | None


@dataclass(slots=True)
class Fusion:
    """The state of fusing one graph.

    ``order`` numbers the nodes. ``strides`` are those of each value in memory. ``once`` holds the nodes computed once,
    from constants alone; ``kept``, the values read from outside the graph; ``users``, the readers of each node, inlined
    nodes left out. ``kinds`` is the kind of cluster that each node opens.
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
        """Places a node that has no kernel, and reads ``sources``, in the order."""
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
        """The kernels that ``node`` reads, in its order of preference."""
        found = {self.parts.of[s] for s in self.accesses.sources(node) if s in self.parts.of}
        kernels = [c for c in found if c.kind != "fixed"]
        return sorted(kernels, key=lambda c: (PREFERENCE[c.kind], c.last), reverse=True)

    def _choose(self, node: Node, rows: Rows | None) -> Cluster | None:
        """The cluster that ``node`` joins, or None. Records the reason for each refusal by a cluster that it reads."""
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
            elif self.kinds[node] == "contraction":
                home.anchor, home.size = node, size_of(node.shape)
        return home

    def _siblings(self, node: Node) -> list[Cluster]:
        """The row kernels that read the same values as the row reduction ``node``: one pass serves both."""
        readers = [self.parts.of.get(u) for s in self.accesses.sources(node) for u in self.users[s]]
        return list(dict.fromkeys(c for c in readers if c is not None and c.kind == "row"))

    # Rules: each returns None to accept a node, or the reason why it stays outside.

    def _why_not_join(self, cluster: Cluster, node: Node, rows: Rows | None) -> Refusal:
        if cluster.kind == "scatter":
            return "no element of a scatter is final before its kernel ends"
        if cluster.kind == "recurrence":
            return "the steps of a recurrence run in sequence, and its kernel computes nothing else"
        if self.kinds[node] in _ALONE:
            return f"a {self.kinds[node]} has loops of its own"
        if self.kinds[node] in ("contraction", "attention"):
            return self._why_not_expand(cluster, node)
        if cluster.once != (node in self.once):
            return "one is constant and computed once; the other runs on every call"
        reads = [a for a in self.accesses.of(node) if self.parts.of.get(a.source) is cluster]
        return (
            self._why_not_fit(cluster, node, rows, reads)
            or self._why_not_room(cluster, [node], self.accesses.sources(node))
            or self._why_not_acyclic(cluster, node)
        )

    def _why_not_expand(self, cluster: Cluster, node: Node) -> Refusal:
        """The reason why the kernel of ``node``, an anchor, does not compute the cluster's product as its operand."""
        if ATTRIBUTE not in node.attrs or cluster.kind != "contraction":
            return "an anchor reads its operands tile by tile, many times over, so they must be in memory"
        if cluster.once != (node in self.once):
            return "one is constant and computed once; the other runs on every call"
        members = set(cluster.nodes)
        if any(n in self.kept or any(u is not node and u not in members for u in self.users[n]) for n in members):
            return "its product's values are also read elsewhere"
        sources = self.accesses.sources(node)
        return self._why_not_room(cluster, [node], sources) or self._why_not_acyclic(cluster, node)

    def _why_not_fit(self, cluster: Cluster, node: Node, rows: Rows | None, reads: Sequence[GraphRead]) -> Refusal:
        """The reason why ``node``, which reads members by ``reads``, does not fit the cluster's loops, or None."""
        if cluster.kind == "row":
            return self._why_not_row(cluster, node, rows, reads)
        if rows is not None and cluster.kind == "pointwise":
            return self._why_not_rows_of(cluster, rows, node, reads)
        if self.kinds[node] != "pointwise":
            return _REDUCTION_REFUSED[cluster.kind]
        return self._why_not_aligned(cluster, node, reads)

    def _why_not_aligned(self, cluster: Cluster, node: Node, reads: Sequence[GraphRead]) -> Refusal:
        if size_of(node.shape) != cluster.size:
            return f"its number of elements differs from that of the {cluster.kind} kernel's domain"
        position = self.accesses.position(node)
        if not all(position.aligned(a) for a in reads):
            return f"it reads the {cluster.kind} kernel's values at positions other than its own"
        return None

    def _why_not_row(self, cluster: Cluster, node: Node, rows: Rows | None, reads: Sequence[GraphRead]) -> Refusal:
        if cluster.rows is None:
            return "the kernel has no rows"
        if self.kinds[node] == "reduce":
            return "it does not reduce the kernel's rows"
        if rows is not None and rows != cluster.rows:
            return "the length or shape of its rows differs from the kernel's"
        return self._why_not_in_rows(cluster.rows, node, reads)

    def _why_not_rows_of(self, cluster: Cluster, rows: Rows, node: Node, reads: Sequence[GraphRead]) -> Refusal:
        """The reason why a row reduction does not fit a pointwise cluster; None if it becomes a row cluster."""
        if cluster.size != poly.multiply(rows.count, rows.length):
            return "it reduces a tensor whose size differs from the pointwise kernel's domain"
        return self._why_not_in_rows(rows, node, reads)

    def _why_not_in_rows(self, rows: Rows, node: Node, reads: Sequence[GraphRead]) -> Refusal:
        """The reason why a read of a member leaves the row, or the place in it, being computed; None if none does."""
        size, wide = size_of(node.shape), poly.multiply(rows.count, rows.length)
        position = self.accesses.position(node)
        split = position.split(rows.count)
        if split is None or size not in (wide, rows.count):
            return "it has neither one element per element of a row nor one element per row"
        row = position.row_number(split)
        for access in reads:
            expected = row
            if size_of(access.source.shape) == wide:
                expected = poly.add(poly.multiply(row, rows.length), position.column_number(split, access))
            if not access.aligned and position.touched(access) != expected:
                return "it reads the kernel's values from other rows, or from other positions in the row, than its own"
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
            return "another of its operands needs this kernel's result first"
        return None

    def why_not_absorb(self, part: Cluster, home: Cluster, node: Node) -> Refusal:
        """The reason why ``part``, a cluster that ``node`` of ``home`` reads, may not merge into ``home``, or None."""
        if part.kind != "pointwise" and (part.rows is None or part.rows != home.rows):
            return "it has loops of its own"
        if part.once != home.once:
            return "one is constant and computed once; the other runs on every call"
        reason = self._why_not_room(home, part.nodes, list(part.sources))
        if reason is not None:
            return reason
        if self.parts.depends(self.parts.before(home) - {part}, part):
            return "a third kernel lies between them"
        shared = home.kind not in _ALONE and self._same_loops(part, home)
        return None if shared else self._why_not_prologue(part, home, node)

    def _same_loops(self, part: Cluster, home: Cluster) -> bool:
        """True if the cluster's nodes run in the loops of ``home``: every member reads them at its own position."""
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
        """The reason why the cluster's one result may not be recomputed at each read by ``node``; None if it may."""
        if home.kind not in ("pointwise", "reduce", "scatter"):
            return f"a {home.kind} kernel reads values at other positions from memory"
        members = set(part.nodes)
        if any(n.attrs.get("stored") for n in part.nodes):
            return "its values are stored, for another kernel to copy vectors from"
        if any(n in self.kept or any(u is not node and u not in members for u in self.users[n]) for n in part.nodes):
            return "its values are also read elsewhere"
        reads = [a for a in self.accesses.of(node) if a.source in members]
        cost = sum(arithmetic_cost(definition(n)) for n in part.nodes)
        if cost > CHEAP and not _read_at_most_once(node, reads):
            return "its values would be computed several times"
        return None


_REDUCTION_REFUSED = {
    "contraction": "a reduction needs whole rows, and an anchor's tile holds only part of each",
    "attention": "a reduction needs whole rows, and an anchor's tile holds only part of each",
    "reduce": "a kernel has one reduction, unless all its reductions run along the same rows",
    "pointwise": "it does not reduce rows that are contiguous in memory",
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
    """True if ``node`` makes no more reads than there are elements to read."""
    if len(reads) != 1:
        return False
    count = size_of([n for _, n in reads[0].folded])
    if not (reads[0].folded and is_scatter(definition(node))):  # a scatter iterates over its source, not its result
        count = poly.multiply(size_of(node.shape), count)
    there = size_of(reads[0].source.shape)
    made, present = poly.constant_value(count), poly.constant_value(there)
    return count == there if made is None or present is None else made <= present
