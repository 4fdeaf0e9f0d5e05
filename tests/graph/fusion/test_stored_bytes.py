"""Kernels store bytes that others dequantise, and not the wider values."""

from __future__ import annotations

import numpy as np

from taskmap.graph.build import elementwise
from taskmap.graph.fusion.planning import Group, plan
from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.ops.arithmetic import add, mul
from taskmap.graph.ops.matmul import mm
from taskmap.graph.ops.pointwise import pointwise, to_dtype
from taskmap.graph.reference import run
from taskmap.ir.construct import call, cast, maximum, minimum
from taskmap.ir.types import f32, i8, i32
from tests.graph.running import run_plan


def quantised(x: Node) -> Node:
    return elementwise("quantize", [x], lambda e: cast(maximum(minimum(call("round", e), 127.0), -128.0), i8), i8)


def dequantised(q: Node, zero: int, scale: float) -> Node:
    shifted = pointwise("shift", (to_dtype(q, i32), zero), lambda a, z: a - z, i32, i32)
    return mul(to_dtype(shifted, f32), scale)


def test_a_sum_of_two_dequantised_products() -> None:
    rng = np.random.default_rng()
    a, b, c = (InputNode((), shape, f32, i) for i, shape in enumerate(((20, 30), (30, 16), (30, 16))))
    first, second = (dequantised(quantised(mm(a, w)), zero, 0.25) for w, zero in ((b, 3), (c, -5)))
    graph = Graph([a, b, c], [add(first, second)])
    planned = plan(graph)
    groups = [step for step in planned.steps if isinstance(step, Group)]
    assert [[n.dtype for n in g.outputs] for g in groups] == [[i8], [f32]]
    arrays = [rng.standard_normal(shape).astype(np.float32) * 4 for shape in ((20, 30), (30, 16), (30, 16))]
    (got,), (want,) = run_plan(graph, planned, arrays), run(graph, arrays)
    np.testing.assert_allclose(got, want, atol=0.25)  # a sum may round the other way


def test_a_result_of_the_graph_has_its_own_type() -> None:
    """It is stored as it is; a dequantised value that two kernels read is recomputed in each."""
    a, b, c = (InputNode((), shape, f32, i) for i, shape in enumerate(((20, 30), (30, 16), (20, 16))))
    value = dequantised(quantised(mm(a, b)), 3, 0.25)
    groups = [step for step in plan(Graph([a, b, c], [value, add(value, c)])).steps if isinstance(step, Group)]
    assert value in {n for g in groups for n in g.outputs}
