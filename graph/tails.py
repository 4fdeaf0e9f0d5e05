"""Tails: values that a kernel writes for one later kernel only, and that this could as well compute itself.

    mm ─► add ─► square ─► mean ─► ...          mm ─► add ─► │ square ─► mean ─► ...
          └──────────────► mul                        └────► │           mul
    two tensors written, two read               one written, one read

A tail moves when less is read and written afterwards. What remains in the first kernel is what others need too.
"""

from __future__ import annotations

from taskmap.graph.access import size_of
from taskmap.graph.fusion import Fusion
from taskmap.graph.graph import Node
from taskmap.graph.partition import Cluster
from taskmap.ir import polynomial as poly
from taskmap.ir.polynomial import Poly


def move_tails(fusion: Fusion) -> None:
    """Moves each tail of a contraction or an attention into the kernel that reads it, the last ones first."""
    for cluster in list(fusion.parts.clusters):
        if cluster.anchor is None:
            continue
        for node in reversed(cluster.nodes[:]):
            home = _only_reader(node, cluster, fusion)
            if home is not None and _saves(node, cluster, home, fusion):
                fusion.parts.take(node, home, fusion.order, fusion.accesses.sources)


def _only_reader(node: Node, cluster: Cluster, fusion: Fusion) -> Cluster | None:
    """The one other kernel that reads ``node``, if it could compute it."""
    readers = {fusion.parts.of[u] for u in fusion.users[node]}
    if node is cluster.anchor or node in fusion.kept or len(readers) != 1 or cluster in readers:
        return None
    (home,) = readers
    if home.kind not in ("row", "reduce", "pointwise"):
        return None
    at = fusion.order[node]
    alone = Cluster("pointwise", [node], size_of(node.shape), at, at, cluster.once)
    return home if fusion.why_not_absorb(alone, home, fusion.users[node][-1]) is None else None


def _saves(node: Node, cluster: Cluster, home: Cluster, fusion: Fusion) -> bool:
    """Whether moving ``node`` saves memory traffic: now it is written once and read once."""
    added: Poly = {}
    for source in fusion.accesses.sources(node):
        elsewhere = source in fusion.kept or any(fusion.parts.of[u] is not cluster for u in fusion.users[source])
        if fusion.parts.of.get(source) is cluster and not elsewhere:
            added = poly.add(added, size_of(source.shape))  # it would have to be written
        if source not in home.sources:
            added = poly.add(added, size_of(source.shape))
    saved = poly.multiply(size_of(node.shape), poly.constant(2))
    balance = poly.add(saved, added, -1)
    return bool(balance) and all(c > 0 for c in balance.values())
