"""Tails: values that a kernel writes for a single later kernel, which could compute them itself.

    mm ─► add ─► square ─► mean ─► ...          mm ─► add ─► │ square ─► mean ─► ...
          └──────────────► mul                        └────► │           mul
    two tensors written, two read               one written, one read

A tail moves when that reduces the elements read and written. The values that other kernels need stay in the first.
"""

from __future__ import annotations

from collections.abc import Iterator

from taskmap.graph.analysis.access import size_of
from taskmap.graph.fusion.clusters import Cluster
from taskmap.graph.fusion.groups import Fusion
from taskmap.graph.nodes import Node
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.polynomial import Poly


def move_tails(fusion: Fusion) -> None:
    """Moves each tail of a contraction or an attention into the kernel that reads it, last tails first."""
    for cluster in [c for c in fusion.parts.clusters if c.anchor is not None]:
        for node in reversed(cluster.nodes[:]):
            home = _only_reader(node, cluster, fusion)
            if home is None:
                continue
            tail = next((t for t in _tails(node, cluster, fusion) if _moves(t, cluster, home, fusion)), [])
            for moved in tail:
                fusion.parts.take(moved, home, fusion.order, fusion.accesses.sources)


def _only_reader(node: Node, cluster: Cluster, fusion: Fusion) -> Cluster | None:
    """The one other kernel that reads ``node``, provided that there is exactly one and it has no anchor."""
    readers = {fusion.parts.of[u] for u in fusion.users[node]}
    if node in fusion.kept or len(readers) != 1 or cluster in readers:
        return None
    (home,) = readers
    return home if home.kind in ("row", "reduce", "pointwise") else None


def _tails(node: Node, cluster: Cluster, fusion: Fusion) -> Iterator[list[Node]]:
    """First ``node`` alone, then with everything that the cluster computes only for it; readers before their inputs."""
    if node is cluster.anchor or fusion.parts.of[node] is not cluster:
        return
    yield [node]
    tail = {node}
    for before in reversed(cluster.nodes):
        if before is not cluster.anchor and before not in fusion.kept and tail.issuperset(fusion.users[before]):
            tail.add(before)
    if len(tail) > 1:
        yield [n for n in reversed(cluster.nodes) if n in tail]


def _moves(tail: list[Node], cluster: Cluster, home: Cluster, fusion: Fusion) -> bool:
    """True if ``home`` may compute the tail and this saves the traffic of writing and reading its result once."""
    first, last = fusion.order[tail[-1]], fusion.order[tail[0]]
    sources = dict.fromkeys(s for n in tail for s in fusion.accesses.sources(n) if s not in tail)
    part = Cluster("pointwise", tail, size_of(tail[0].shape), first, last, cluster.once, sources=sources)
    if fusion.why_not_absorb(part, home, fusion.users[tail[0]][-1]) is not None:
        return False
    added: Poly = {}
    for source in sources:
        if fusion.parts.of.get(source) is cluster and not _is_written(source, cluster, tail, fusion):
            added = poly.add(added, size_of(source.shape))
        if source not in home.sources:
            added = poly.add(added, size_of(source.shape))
    balance = poly.add(poly.multiply(size_of(tail[0].shape), poly.constant(2)), added, -1)
    return bool(balance) and all(c > 0 for c in balance.values())


def _is_written(value: Node, cluster: Cluster, tail: list[Node], fusion: Fusion) -> bool:
    """True if the cluster writes ``value`` for readers outside the tail."""
    return value in fusion.kept or any(fusion.parts.of[u] is not cluster and u not in tail for u in fusion.users[value])
