"""Takes apart a fused group that no schedule accepts as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from taskmap.graph.analysis.inlining import is_anchor
from taskmap.graph.analysis.placement import Placement
from taskmap.graph.fusion.planning import Group
from taskmap.graph.fusion.tasks import build_task
from taskmap.graph.nodes import Node
from taskmap.ir.errors import TaskmapError
from taskmap.ir.lower.flatten import row_major_strides


def unfuse(
    placements: Mapping[Node, Placement], group: Group, available: AbstractSet[Node], reason: TaskmapError
) -> tuple[list[Group], dict[Node, Placement]]:
    """One group for each node of ``group``, in order, each value in memory of its own; none for a group of one node.
    Also the places of the values that had none in ``placements``.

    ``available``: the values that earlier steps have computed. Every new group records ``reason``.
    """
    if len(group.nodes) < 2:
        return [], {}
    parts: list[Group] = []
    added: dict[Node, Placement] = {}
    computed = set(available)
    outputs = set(group.outputs)
    inputs = set(group.inputs)
    for node in group.nodes:
        if node in inputs or (node in computed and node not in outputs):
            continue
        place = placements.get(node)
        if place is not None and place.root is not node and node not in outputs:
            continue  # a view of a value in memory
        if node not in placements:
            added[node] = Placement(node, row_major_strides(node.shape))
        sources = tuple(dict.fromkeys(node.inputs))
        # The image of a depthwise convolution is a product, which has a template too.
        anchor = node if node is group.anchor or is_anchor(node) else None
        task = build_task(node.op, [node], sources, [node], {**placements, **added}, anchor)
        kind = "pointwise" if anchor is None else group.kind
        noted = tuple((n, reason.why or reason.what) for n in group.nodes if n is not node)
        parts.append(Group(node.op, task, sources, (node,), (node,), anchor, kind, noted, group.once))
        computed.add(node)
    return parts, added
