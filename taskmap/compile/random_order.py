"""Runs random operators in the model's order, so that they draw the same random numbers as eager."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import replace

from taskmap.graph.fusion.planning import Group, Plan
from taskmap.graph.nodes import ExternNode, Graph, ItemNode, Node
from taskmap.graph.passes.base import rewrite


def number_random(graph: Graph, is_random: Callable[[object], bool]) -> Graph:
    """``graph`` with numbers on the extern nodes that draw random numbers, in the order in which the importer read
    them. ``is_random`` tells it of a node's target."""
    drawing = sorted(n.id for n in graph.nodes() if isinstance(n, ExternNode) and is_random(n.target))
    rank = {number: i for i, number in enumerate(drawing)}
    return rewrite(graph, lambda n: replace(n, draw=rank[n.id]) if isinstance(n, ExternNode) and n.id in rank else n)


def in_random_order(plan: Plan) -> Plan:
    """``plan`` with its steps reordered so that numbered nodes follow their numbers, with as few other changes as
    possible.

    If fusion has made that impossible, the steps stay as they are.
    """
    steps = plan.steps
    drawing = [i for i, s in enumerate(steps) if isinstance(s, ExternNode) and s.draw is not None]
    if drawing == sorted(drawing, key=lambda i: _rank(steps[i])):
        return plan
    after = _dependents(plan)
    chain = sorted(drawing, key=lambda i: _rank(steps[i]))
    for first, second in itertools.pairwise(chain):
        after[first].add(second)
    waiting = [0] * len(steps)
    for followers in after:
        for i in followers:
            waiting[i] += 1
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for follower in after[i]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    if len(order) < len(steps):
        return plan
    return replace(plan, steps=tuple(steps[i] for i in order))


def _rank(step: Group | ExternNode) -> int:
    return step.draw or 0 if isinstance(step, ExternNode) else 0


def _dependents(plan: Plan) -> list[set[int]]:
    """For each step, the later steps that read its results."""

    def root(node: Node) -> Node:
        owner = plan.placements[node].root if node in plan.placements else node
        return owner.inputs[0] if isinstance(owner, ItemNode) else owner

    writers: dict[Node, list[int]] = {}
    after: list[set[int]] = [set() for _ in plan.steps]
    for i, step in enumerate(plan.steps):
        for node in step.inputs:
            for writer in writers.get(root(node), ()):
                after[writer].add(i)
        for node in step.outputs if isinstance(step, Group) else [step]:
            writers.setdefault(root(node), []).append(i)
    return after
