"""Clusters of nodes that can run one after another: no cluster depends on its own result through another.

Nodes are placed in graph order, each into a cluster of its own or into one that it reads. The graph of clusters must
stay acyclic:

    a ──► x ──► b        a and b may not share a cluster unless x is in it too: x would need the cluster's result,
    └───────────▲        and the cluster would need x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from taskmap.graph.nodes import Node
from taskmap.ir.analysis.polynomial import Poly
from taskmap.ir.errors import FusionError
from taskmap.ir.nodes import Dim


@dataclass(frozen=True, slots=True)
class Rows:
    """The row structure of a row cluster: ``count`` rows of ``length``; reductions reduce tensors of shape ``wide``."""

    count: Poly
    length: Poly
    wide: tuple[Dim, ...]


@dataclass(slots=True, eq=False)
class Cluster:
    """Nodes that become one kernel, or one node without a kernel (kind fixed: an extern, a concatenation in place).

    ``size`` is the number of elements of the iteration domain. ``sources`` are the outside nodes that members read.
    ``first`` and ``last`` are the positions of the earliest and the latest member in graph order.
    """

    kind: str
    nodes: list[Node]
    size: Poly
    first: int
    last: int
    once: bool = False
    anchor: Node | None = None
    rows: Rows | None = None
    sources: dict[Node, None] = field(default_factory=dict)
    refused: list[tuple[Node, str]] = field(default_factory=list)


@dataclass(slots=True)
class Partition:
    """The clusters so far, and the cluster of each node."""

    clusters: dict[Cluster, None] = field(default_factory=dict)
    of: dict[Node, Cluster] = field(default_factory=dict)

    def open(self, cluster: Cluster) -> Cluster:
        """Adds a new cluster."""
        self.clusters[cluster] = None
        self.of.update(dict.fromkeys(cluster.nodes, cluster))
        return cluster

    def put(self, node: Node, cluster: Cluster, position: int, sources: Iterable[Node]) -> None:
        """Adds the latest node to a cluster that it reads."""
        cluster.nodes.append(node)
        cluster.last = position
        cluster.sources.update((s, None) for s in sources if self.of.get(s) is not cluster)
        self.of[node] = cluster

    def merge(self, part: Cluster, into: Cluster, position: Mapping[Node, int]) -> None:
        """Moves the members of one cluster into another."""
        into.nodes = sorted((*part.nodes, *into.nodes), key=position.__getitem__)
        into.first, into.last = min(part.first, into.first), max(part.last, into.last)
        self.of.update(dict.fromkeys(part.nodes, into))
        sources = dict.fromkeys((*part.sources, *into.sources))
        into.sources = {s: None for s in sources if self.of.get(s) is not into}
        into.refused = [r for r in (*part.refused, *into.refused) if self.of.get(r[0]) is not into]
        del self.clusters[part]

    def take(
        self, node: Node, into: Cluster, position: Mapping[Node, int], sources: Callable[[Node], Iterable[Node]]
    ) -> None:
        """Moves one node from its cluster into a later one, its only reader."""
        home = self.of[node]
        home.nodes.remove(node)
        at = position[node]
        part = Cluster("pointwise", [node], into.size, at, at, into.once, sources=dict.fromkeys(sources(node)))
        self.merge(self.open(part), into, position)
        read = dict.fromkeys(s for n in home.nodes for s in sources(n))
        home.sources = {s: None for s in read if self.of.get(s) is not home}

    def before(self, cluster: Cluster) -> set[Cluster]:
        """The clusters whose results ``cluster`` reads."""
        return {self.of[s] for s in cluster.sources if s in self.of}

    def depends(self, starts: Iterable[Cluster], on: Cluster) -> bool:
        """True if one of ``starts`` is the cluster ``on`` or needs its result."""
        stack = list(starts)
        seen: set[Cluster] = set()
        while stack:
            cluster = stack.pop()
            if cluster is on:
                return True
            # On a path from `on`, every cluster has a member after the first member of `on`.
            if cluster in seen or cluster.last < on.first:
                continue
            seen.add(cluster)
            stack.extend(self.before(cluster))
        return False

    def in_order(self) -> list[Cluster]:
        """The clusters, each after those it reads, otherwise ordered by their last nodes."""
        waiting = {c: self.before(c) for c in self.clusters}
        after: dict[Cluster, list[Cluster]] = {c: [] for c in self.clusters}
        for cluster, needed in waiting.items():
            for n in needed:
                after[n].append(cluster)
        ready = [(c.last, i, c) for i, c in enumerate(self.clusters) if not waiting[c]]
        heapify(ready)
        order: list[Cluster] = []
        while ready:
            _, _, cluster = heappop(ready)
            order.append(cluster)
            for later in after[cluster]:
                waiting[later].discard(cluster)
                if not waiting[later]:
                    heappush(ready, (later.last, len(order) + len(self.clusters), later))
        if len(order) < len(self.clusters):
            stuck = next(c for c in self.clusters if waiting[c])
            raise FusionError(f"the kernels of {stuck.nodes[0]!r} and of its inputs wait for each other")
        return order
