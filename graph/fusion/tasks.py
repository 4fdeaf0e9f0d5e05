"""A fused group of nodes as a Task: definitions over buffers with strides and offsets."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from taskmap.graph.analysis.classify import definition
from taskmap.graph.analysis.placement import Placement
from taskmap.graph.nodes import Node
from taskmap.ir.analysis.key import structure
from taskmap.ir.nodes import Buffer, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.visit import replace_buffers

LONGEST_NAME = 40


def build_task(
    name: str,
    nodes: Sequence[Node],
    inputs: Sequence[Node],
    outputs: Sequence[Node],
    placements: Mapping[Node, Placement],
    anchor: Node | None,
) -> Task:
    """The task that computes ``outputs`` from ``inputs`` by the definitions of ``nodes``, given in dependency order.

    Inputs and outputs are placed, so their buffers have strides and an offset; the other nodes' buffers are logical.
    """
    buffers: dict[Node, Buffer] = {n: _placed(f"in{i}", n, placements[n]) for i, n in enumerate(inputs)}
    written = {n: f"out{i}" for i, n in enumerate(outputs)}
    stages: list[Stage] = []
    for node in nodes:
        out = Buffer(f"t{node.id}", node.dtype, node.shape)
        if node in written:
            out = _placed(written[node], node, placements[node])
        define = definition(node)
        # An input that the body does not load (x ** 0, the argmax of one element) is not an input of the task.
        formals = {f: buffers[n] for f, n in zip(define.inputs, node.inputs, strict=True) if n in buffers}
        body = replace_buffers(define.body, formals)
        stages.append(Stage(out, define.axes, body, node.op, tuple(sorted(node.attrs.items()))))
        buffers[node] = out
    task_inputs = tuple(buffers[n] for n in inputs)
    task_outputs = tuple(buffers[n] for n in outputs)
    at = None if anchor is None else nodes.index(anchor)
    task = Task(name, task_inputs, tuple(stages), task_outputs, anchor=at)
    dims = _symbolic(task)
    return replace(task, dims=dims) if dims else task


def members_and_inlined(members: Sequence[Node], inlined: Container[Node]) -> list[Node]:
    """The members of a group and the inlined nodes they read, each after its inputs."""
    inside = set(members)
    nodes: dict[Node, None] = {}
    stack = [(m, False) for m in reversed(members)]
    while stack:
        node, ready = stack.pop()
        if ready:
            nodes[node] = None
        elif node not in nodes and (node in inside or node in inlined):
            stack.append((node, True))
            stack.extend((n, False) for n in reversed(node.inputs))
    return list(nodes)


def task_name(operators: Sequence[str]) -> str:
    """The operators' names joined in order, cut at a word's end to at most 40 characters; a valid identifier."""
    name = ""
    for op in operators:
        word = re.sub(r"[^0-9A-Za-z]+", "_", op)
        if name and len(name) + 1 + len(word) > LONGEST_NAME:
            break
        name = f"{name}_{word}" if name else word[:LONGEST_NAME]
    return name


def _placed(name: str, node: Node, placement: Placement) -> Buffer:
    return Buffer(name, node.dtype, node.shape, strides=placement.strides, offset=placement.offset)


def _symbolic(task: Task) -> tuple[Var, ...]:
    """The symbolic sizes that the task mentions anywhere, including in attributes, oldest first."""
    return tuple(sorted(structure(task).free, key=lambda v: v.uid))
