"""Growing concatenations: a ``cat`` that contains all tensors of an earlier ``cat`` can read that one instead.

    a = cat(x, y)                a = cat(x, y)              one buffer of the size of c holds all of them:
    b = cat(x, y, z)      ->     b = cat(a, z)              each tensor is written once, into its slice, and
    c = cat(x, y, z, w)          c = cat(b, w)              a and b are parts of c

The dense blocks of DenseNet (Huang et al., 2017) concatenate in this way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from taskmap.graph.analysis.classify import definition, redefined
from taskmap.graph.fusion.in_place_cat import concatenated_axis
from taskmap.graph.nodes import Node, OperatorNode
from taskmap.graph.ops.join import cat


@dataclass(slots=True)
class GrowthTable:
    """The concatenations of a graph that a longer one contains.

    ``contained`` holds their ids. ``longest`` maps the id of each longer one to (the id of the longest one in it, the
    positions of its tensors). ``made`` receives the concatenations that are made in place, by id.
    """

    contained: set[int] = field(default_factory=set)
    longest: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    made: dict[int, Node] = field(default_factory=dict)

    def with_shorter(self, node: OperatorNode) -> OperatorNode:
        """The ``cat`` that reads the longest one in it in place of that one's tensors; ``node`` itself if there is
        none that is made in place."""
        shorter, first, last = self.longest.get(node.id, (-1, 0, 0))
        part = self.made.get(shorter)
        if part is None or part in node.inputs:
            return node
        inputs = (*node.inputs[:first], part, *node.inputs[last:])
        return redefined(node, inputs, definition(cat(inputs, concatenated_axis(node))))

    def grows(self, node: Node) -> bool:
        """True if ``node`` is part of a longer concatenation, or contains one that is made in place."""
        return node.id in self.contained or any(n.id in self.made for n in node.inputs)


def growth(nodes: Iterable[Node]) -> GrowthTable:
    """The growing concatenations among ``nodes``, which come in graph order: only an earlier ``cat`` is read."""
    found = GrowthTable()
    earlier: defaultdict[tuple[int, int], list[Node]] = defaultdict(list)
    for node in nodes:
        if node.op != "cat":
            continue
        axis = concatenated_axis(node)
        known = [(i, shorter) for i, n in enumerate(node.inputs) for shorter in earlier[axis, n.id]]
        for first, shorter in sorted(known, key=lambda place: -len(place[1].inputs)):
            last = first + len(shorter.inputs)
            if 1 < last - first < len(node.inputs) and _ids(node)[first:last] == _ids(shorter):
                found.longest[node.id] = shorter.id, first, last
                found.contained.add(shorter.id)
                break
        if node.inputs:
            earlier[axis, node.inputs[0].id].append(node)
        found.contained.update(n.id for n in node.inputs if n.op == "cat" and concatenated_axis(n) == axis)
    return found


def _ids(node: Node) -> tuple[int, ...]:
    return tuple(n.id for n in node.inputs)
