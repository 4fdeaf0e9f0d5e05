"""Views of any shape: random reshapes, permutations and slices against numpy, and shapes that must be refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.ops import views
from taskmap.graph.reference import run
from taskmap.ir.errors import GraphError
from taskmap.ir.nodes import Binary, Dim, Load, Var
from taskmap.ir.types import f32


def leaf(*shape: Dim) -> InputNode:
    return InputNode((), tuple(shape), f32)


def value(node: Node, x: InputNode, array: np.ndarray, dims: dict[Var, tuple[object, ...]] | None = None) -> np.ndarray:
    (result,) = run(Graph([x], [node], dims or {}), [array])
    assert isinstance(result, np.ndarray)
    return result


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


@st.composite
def factorisations(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes with equal numbers of elements."""
    primes = draw(st.lists(st.sampled_from([1, 2, 2, 3, 5]), max_size=5))
    shapes: list[tuple[int, ...]] = []
    for _ in range(2):
        rest, shape = draw(st.permutations(primes)), [1]
        for p in rest:
            if draw(st.booleans()):
                shape.append(p)
            else:
                shape[-1] *= p
        shapes.append(tuple(shape[draw(st.integers(0, 1)) if shape[0] == 1 else 0 :]))
    return shapes[0], shapes[1]


@given(factorisations())
def test_reshape(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    old, new = shapes
    x = leaf(*old)
    np.testing.assert_array_equal(value(views.reshape(x, new), x, numbered(old)), numbered(old).reshape(new))


@given(st.data())
def test_permute_and_slice(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    order = data.draw(st.permutations(range(len(shape))))
    dim = data.draw(st.integers(0, len(shape) - 1))
    bounds = st.integers(-7, 7) | st.none()
    start, end, step = data.draw(bounds), data.draw(bounds), data.draw(st.integers(1, 3))
    x, array = leaf(*shape), numbered(shape)
    cut = array.transpose(order)[(slice(None),) * dim + (slice(start, end, step),)]
    node = views.slice_(views.permute(x, order), dim, start, end, step)
    assert node.shape == cut.shape
    if cut.size:
        np.testing.assert_array_equal(value(node, x, array), cut)


def test_a_view_that_changes_nothing_is_its_operand() -> None:
    x = leaf(2, 3)
    assert views.reshape(x, (2, 3)) is x
    assert views.reshape(x, (2, -1)) is x
    assert views.permute(x, (0, 1)) is x
    assert views.expand(x, (-1, 3)) is x
    assert views.slice_(x, 0, 0, 2**63 - 1) is x


def test_a_reshape_divides_only_where_dimensions_are_cut() -> None:
    n = Var("n")
    node = views.reshape(leaf(n, 4, 6, 5), (n, 24, 5))
    assert node.define is not None
    body = node.define.body
    assert isinstance(body, Load)
    assert [isinstance(i, Binary) for i in body.indices] == [False, True, True, False]
    joined = views.reshape(leaf(n, 24, 5), (n, 4, 6, 5)).define
    assert joined is not None
    assert "floordiv" not in repr(joined.body)
    assert "mod" not in repr(joined.body)


def test_reshape_of_a_symbolic_size() -> None:
    n = Var("n")
    x = leaf(n, 6)
    node = views.reshape(views.reshape(x, (-1,)), (n, 2, 3))
    array = numbered((5, 6))
    np.testing.assert_array_equal(value(node, x, array, {n: ("size", 0, 0)}), array.reshape(5, 2, 3))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(GraphError, match="cannot be reshaped"):
        views.reshape(leaf(2, 3), (4, 2))
    with pytest.raises(GraphError, match="cannot be expanded"):
        views.expand(leaf(2, 3), (3,))
