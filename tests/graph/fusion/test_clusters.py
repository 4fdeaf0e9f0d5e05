"""Clusters stay acyclic under every merge."""

from __future__ import annotations

import pytest

from taskmap.graph.fusion.clusters import Cluster, Partition
from taskmap.graph.nodes import InputNode, Node
from taskmap.ir.errors import FusionError
from taskmap.ir.types import f32


def nodes(count: int) -> list[Node]:
    return [InputNode((), (4,), f32) for _ in range(count)]


def opened(parts: Partition, node: Node, at: int, *reads: Node) -> Cluster:
    return parts.open(Cluster("pointwise", [node], {}, at, at, sources=dict.fromkeys(reads)))


def test_dependence_goes_through_a_third_cluster() -> None:
    parts = Partition()
    a, x, b = nodes(3)
    first, middle, last = opened(parts, a, 0), opened(parts, x, 1, a), opened(parts, b, 2, x)
    assert parts.depends([last], first)
    assert parts.depends([middle], middle)
    assert not parts.depends([first], last)


def test_dependence_is_that_of_merged_clusters() -> None:
    parts = Partition()
    a, b, c, d = nodes(4)
    order = {n: i for i, n in enumerate((a, b, c, d))}
    one, two = opened(parts, a, 0), opened(parts, b, 1)
    three, four = opened(parts, c, 2, a), opened(parts, d, 3, b)
    assert not parts.depends([four], one)
    parts.merge(two, three, order)  # now the cluster of d reads that of c, and through it a
    assert parts.depends([four], one)
    assert three.nodes == [b, c]
    assert parts.in_order() == [one, three, four]


def test_clusters_that_wait_for_each_other_are_refused() -> None:
    parts = Partition()
    a, b = nodes(2)
    opened(parts, a, 0, b)
    opened(parts, b, 1, a)
    with pytest.raises(FusionError, match="wait for each other"):
        parts.in_order()


def test_a_node_that_is_taken_away_leaves_no_source_behind() -> None:
    parts = Partition()
    a, b, c = nodes(3)
    order = {n: i for i, n in enumerate((a, b, c))}
    reads = {a: [], b: [a], c: [b]}
    first = opened(parts, a, 0)
    second = opened(parts, b, 1, a)
    last = opened(parts, c, 2, b)
    parts.merge(second, first, order)
    parts.take(b, last, order, reads.__getitem__)
    assert (first.nodes, last.nodes) == ([a], [b, c])
    assert (list(first.sources), list(last.sources)) == ([], [a])
    assert parts.in_order() == [first, last]
