"""Runs a plan group by group in numpy, in real storage: each group reads and writes the places assigned to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taskmap.graph.analysis.placement import Placement
from taskmap.graph.fusion.planning import Group, Plan
from taskmap.graph.nodes import ConstantNode, Graph, ItemNode, Node
from taskmap.graph.reference import Extern, array_of, dimensions
from taskmap.ir.interp.definitions import NUMPY_TYPES, Array, evaluate, size_of
from taskmap.ir.nodes import Var
from taskmap.ir.task import Compute


def run_plan(graph: Graph, plan: Plan, inputs: Sequence[Any], extern: Extern | None = None) -> list[Any]:
    """The outputs of the graph, computed by the plan. Storage starts as NaN, which exposes unwritten values."""
    dims = dimensions(graph, inputs)
    memory: dict[Node, Array] = {}
    for given, array in zip(graph.inputs, inputs, strict=True):
        if given in plan.placements:
            _store(memory, plan.placements[given], array, dims)
    for node in graph.nodes():
        if isinstance(node, ConstantNode):
            _store(memory, plan.placements[node], array_of(node.value, node), dims)
    items: dict[Node, Any] = {}
    for step in plan.steps:
        if isinstance(step, Group):
            _run_group(step, plan, memory, dims)
            continue
        if extern is None:
            raise ValueError("the plan has an extern node")
        arguments = [_load(memory, plan.placements[n], n, dims) for n in step.inputs]
        items[step] = extern(step, arguments, lambda e: size_of(e, dims))
        if not isinstance(items[step], list):
            _store(memory, plan.placements[step], items[step], dims)
        for node in graph.nodes():
            if isinstance(node, ItemNode) and node.inputs[0] is step:
                _store(memory, plan.placements[node], items[step][node.index], dims)
    return [None if n is None else _load(memory, plan.placements[n], n, dims) for n in plan.outputs]


def _run_group(group: Group, plan: Plan, memory: dict[Node, Array], dims: dict[Var, int]) -> None:
    task = group.task
    values = {
        buffer: _load(memory, plan.placements[node], node, dims)
        for buffer, node in zip(task.inputs, group.inputs, strict=True)
    }
    for stage in task.stages:
        # A stage's body loads buffers, which represent the formals of a definition.
        define = Compute(stage.label, tuple(values), stage.shape, stage.out.dtype, stage.axes, stage.body)
        values[stage.out] = evaluate(define, list(values.values()), dims)
    for buffer, node in zip(task.outputs, group.outputs, strict=True):
        place = plan.placements[node]
        assert (buffer.strides, buffer.offset) == (place.strides, place.offset)
        _store(memory, place, values[buffer], dims)


def _window(memory: dict[Node, Array], place: Placement, shape: Sequence[int], dims: dict[Var, int]) -> Array:
    """The placed value as a view of its storage."""
    storage = memory[place.root]
    offset = size_of(place.offset, dims)
    strides = [size_of(s, dims) * storage.itemsize for s in place.strides]
    window: Array = np.lib.stride_tricks.as_strided(storage[offset:], shape, strides)
    return window


def _store(memory: dict[Node, Array], place: Placement, value: Array, dims: dict[Var, int]) -> None:
    if place.root not in memory:
        shape = [size_of(n, dims) for n in place.root.shape]
        strides = place.root.strides if place.root.strides is not None else place.strides
        span = 1 + sum((n - 1) * size_of(s, dims) for n, s in zip(shape, strides, strict=True))
        kind = NUMPY_TYPES[place.root.dtype.name]
        memory[place.root] = np.full(span, np.nan if np.issubdtype(kind, np.floating) else 77).astype(kind)
    _window(memory, place, np.shape(value), dims)[...] = value


def _load(memory: dict[Node, Array], place: Placement, node: Node, dims: dict[Var, int]) -> Array:
    return np.array(_window(memory, place, [size_of(n, dims) for n in node.shape], dims))
