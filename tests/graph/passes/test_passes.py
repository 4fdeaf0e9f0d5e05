"""Each pass on the smallest graph that it changes, and on one that it must leave alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from taskmap.graph.build import elementwise
from taskmap.graph.nodes import ConstantNode, Graph, InputNode, Node
from taskmap.graph.ops.activations import relu
from taskmap.graph.ops.arithmetic import add, mul
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.graph.ops.creation import full
from taskmap.graph.ops.join import cat
from taskmap.graph.ops.norms import batch_norm_inference
from taskmap.graph.ops.pointwise import to_dtype
from taskmap.graph.ops.views import copy, expand, permute, reshape, slice_
from taskmap.graph.passes import PASSES, GraphPass, run_passes
from taskmap.graph.passes.casts import FoldCasts
from taskmap.graph.passes.concatenations import ConcatenateInPlace
from taskmap.graph.passes.constants import FoldConstants
from taskmap.graph.passes.duplicates import MergeDuplicates
from taskmap.graph.passes.scales import FoldScales
from taskmap.graph.passes.views import FoldViews
from taskmap.graph.reference import run
from taskmap.ir.construct import as_expr, cast
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.types import ALL_DTYPES, DType, bf16, boolean, e4m3, f16, f32, f64, i8, i32, i64, is_exact, tf32, u8


def given(*shapes: tuple[Dim, ...], dtype: DType = f32) -> list[InputNode]:
    return [InputNode((), shape, dtype, i) for i, shape in enumerate(shapes)]


def result(step: GraphPass, inputs: list[InputNode], *outputs: Node, constant: int = 0) -> list[Node]:
    """The outputs after one pass; the last ``constant`` inputs are constant."""
    fixed = frozenset(range(len(inputs) - constant, len(inputs)))
    made = step.run(Graph(inputs, list(outputs), {}, fixed)).outputs
    return [n for n in made if n is not None]


def ops_behind(node: Node) -> list[str]:
    return [n.op for n in Graph([], [node]).nodes() if not isinstance(n, InputNode)]


def test_every_pass_says_what_it_is_and_why_it_stands_where_it_does() -> None:
    assert len({p.name for p in PASSES}) == len(PASSES)
    assert all(p.after and p.why_here for p in PASSES)


def test_the_given_graph_is_left_as_it_is() -> None:
    (x,) = given((4, 6))
    graph = Graph([x], [relu(reshape(reshape(x, (24,)), (6, 4)))])
    before = str(graph)
    run_passes(graph)
    assert str(graph) == before


class TestViews:
    def test_two_reshapes_are_one(self) -> None:
        (x,) = given((4, 6))
        (y,) = result(FoldViews(), [x], relu(reshape(reshape(x, (2, 12)), (24,))))
        assert ops_behind(y) == ["view", "relu"]
        assert y.inputs[0].inputs == (x,)

    def test_a_permutation_and_its_inverse_go(self) -> None:
        (x,) = given((4, 6, 2))
        (y,) = result(FoldViews(), [x], relu(permute(permute(x, (2, 0, 1)), (1, 2, 0))))
        assert ops_behind(y) == ["relu"]

    def test_a_reshape_back_goes_for_symbolic_sizes(self) -> None:
        n = Var("n")
        (x,) = given((n, 6))
        (y,) = result(FoldViews(), [x], relu(reshape(reshape(x, (n * 6,)), (n, 6))))
        assert ops_behind(y) == ["relu"]

    def test_other_views_in_a_row_are_one(self) -> None:
        (x,) = given((4, 1, 6))
        y = slice_(permute(expand(x, (4, 3, 6)), (1, 2, 0)), 1, 2, 5)
        (z,) = result(FoldViews(), [x], relu(y))
        assert len(ops_behind(z)) == 2

    def test_a_copy_inside_goes(self) -> None:
        (x,) = given((4, 6))
        (y,) = result(FoldViews(), [x], relu(copy(permute(x, (1, 0)))))
        assert ops_behind(y) == ["permute", "relu"]

    def test_a_copy_that_the_caller_gets_stays(self) -> None:
        (x,) = given((4, 6))
        (y,) = result(FoldViews(), [x], reshape(copy(x), (24,)))
        assert ops_behind(y) == ["copy", "view"]

    def test_a_copy_with_fixed_strides_stays(self) -> None:
        (x,) = given((4, 6))
        y = replace(copy(x), strides=(1, 4))
        assert result(FoldViews(), [x], relu(y))[0].inputs[0].op == "copy"


class TestCasts:
    def test_there_and_back_goes(self) -> None:
        (x,) = given((4,), dtype=bf16)
        (y,) = result(FoldCasts(), [x], relu(to_dtype(to_dtype(x, f32), bf16)))
        assert y.inputs == (x,)

    def test_through_a_wider_type_is_direct(self) -> None:
        (x,) = given((4,), dtype=f16)
        (y,) = result(FoldCasts(), [x], to_dtype(to_dtype(x, f32), f64))
        assert (ops_behind(y), y.inputs, y.dtype) == (["to"], (x,), f64)

    def test_through_a_narrower_type_stays(self) -> None:
        (x,) = given((4,))
        assert ops_behind(result(FoldCasts(), [x], to_dtype(to_dtype(x, bf16), f32))[0]) == ["to", "to"]

    @pytest.mark.parametrize(
        ("a", "b", "exact"),
        [
            (f16, f32, True), (bf16, f32, True), (f16, bf16, False), (bf16, f16, False), (f32, f64, True),
            (boolean, i8, True), (u8, i8, False), (u8, i32, True), (i8, u8, False), (i32, f32, False),
            (i32, f64, True), (i64, f64, False), (i8, f16, True), (f32, i64, False), (u8, boolean, False),
            (i8, e4m3, False), (e4m3, f16, True), (bf16, tf32, True), (f32, tf32, False),
        ],
    )  # fmt: skip
    def test_which_conversions_lose_nothing(self, a: DType, b: DType, exact: bool) -> None:
        assert is_exact(a, b) == exact

    def test_every_type_is_exact_in_itself(self) -> None:
        assert all(is_exact(t, t) for t in ALL_DTYPES)


class TestConstants:
    def test_a_tensor_of_one_value_becomes_a_number(self) -> None:
        (x,) = given((4, 6))
        (y,) = result(FoldConstants(), [x], mul(x, expand(full((1, 6), 2.5), (4, 6))))
        assert y.inputs == (x,)
        np.testing.assert_array_equal(run(Graph([x], [y]), [np.ones((4, 6), np.float32)])[0], np.full((4, 6), 2.5))

    def test_a_constant_of_one_element_becomes_a_number(self) -> None:
        (x,) = given((4,))
        c = ConstantNode((), (1,), f32, np.array([3.0], np.float32))
        (y,) = result(FoldConstants(), [x], mul(x, c))
        assert y.inputs == (x,)

    def test_a_constant_of_many_elements_stays(self) -> None:
        (x,) = given((4,))
        c = ConstantNode((), (4,), f32, np.arange(4, dtype=np.float32))
        assert result(FoldConstants(), [x], mul(x, c))[0].inputs == (x, c)


class TestDuplicates:
    def test_equal_nodes_become_one(self) -> None:
        (x,) = given((4, 4))
        (y,) = result(MergeDuplicates(), [x], add(relu(x), mul(relu(x), relu(x))))
        assert ops_behind(y) == ["relu", "mul", "add"]

    def test_another_order_of_indices_is_another_value(self) -> None:
        (x,) = given((4, 4))
        (y,) = result(MergeDuplicates(), [x], add(permute(x, (1, 0)), reshape(permute(x, (0, 1)), (4, 4))))
        assert len(ops_behind(y)) == 2
        (z,) = result(MergeDuplicates(), [x], add(mul(x, 2.0), mul(x, 3.0)))
        assert len(ops_behind(z)) == 3

    def test_values_of_different_sizes_stay_apart(self) -> None:
        n, m = Var("n"), Var("m")
        x, y, z = given((4,), (n,), (m,))

        def scaled(size: Dim) -> Node:
            return elementwise("scale", [x], lambda v: v * cast(as_expr(size, i64), f32))

        def behind(a: Dim, b: Dim) -> list[str]:
            graph = Graph([x, y, z], [add(scaled(a), scaled(b))], {n: ("size", 1, 0), m: ("size", 2, 0)})
            (out,) = MergeDuplicates().run(graph).outputs
            return [] if out is None else ops_behind(out)

        assert behind(n, m) == ["scale", "scale", "add"]
        assert behind(n, n) == ["scale", "add"]
        assert behind(n + 1, m + 1) == ["scale", "scale", "add"]

    def test_two_results_stay_two(self) -> None:
        (x,) = given((4, 6))
        y, z = result(MergeDuplicates(), [x], relu(x), reshape(relu(x), (24,)))
        assert y is not z.inputs[0]


def normalised(x: Node, w: Node, statistics: Sequence[Node], bias: Node | None = None) -> Node:
    y = convolution(x, w, (1, 1), (1, 1), (1, 1))
    if bias is not None:
        y = add_channel_bias(y, bias)
    weight, shift, mean, var = statistics
    return batch_norm_inference(y, weight, shift, mean, var, 1e-5)


class TestScales:
    shapes: tuple[tuple[int, ...], ...] = ((2, 3, 4, 4), (5, 3, 3, 3), (5,), (5,), (5,), (5,), (5,))

    @pytest.mark.parametrize("with_bias", [False, True])
    def test_batch_norm_goes_into_the_weights(self, with_bias: bool) -> None:
        inputs = given(*self.shapes)
        x, w, *rest = inputs
        y = relu(normalised(x, w, rest[:4], rest[4] if with_bias else None))
        (z,) = result(FoldScales(), inputs, y, constant=6)
        assert "batch_norm" not in ops_behind(z)
        assert z.inputs[0].op == "add"
        assert z.inputs[0].inputs[0].inputs[1].op == "scaled_weight"
        rng = np.random.default_rng(1)
        arrays = [rng.uniform(0.5, 1.5, s).astype(np.float32) for s in self.shapes]
        a, b = (run(Graph(inputs, [n]), arrays)[0] for n in (y, z))
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)

    def test_weights_that_change_stay(self) -> None:
        inputs = given(*self.shapes)
        x, w, *rest = inputs
        y = normalised(x, w, rest[:4])
        assert result(FoldScales(), inputs, y, constant=5)[0].op == "batch_norm"

    def test_statistics_that_change_stay(self) -> None:
        x, w, *rest = given(*self.shapes)
        inputs = [x, *rest, w]
        y = normalised(x, w, rest[:4])
        assert result(FoldScales(), inputs, y, constant=1)[0].op == "batch_norm"

    def test_a_convolution_that_others_read_stays(self) -> None:
        inputs = given(*self.shapes)
        x, w, *rest = inputs
        y = normalised(x, w, rest[:4])
        outputs = result(FoldScales(), inputs, y, relu(y.inputs[0]), constant=6)
        assert outputs[0].op == "batch_norm"

    def test_a_transposed_convolution_stays(self) -> None:
        inputs = given((2, 3, 4, 4), (3, 5, 3, 3), (5,), (5,), (5,), (5,))
        x, w, *rest = inputs
        y = convolution(x, w, (1, 1), (1, 1), (1, 1), transposed=True)
        z = batch_norm_inference(y, rest[0], rest[1], rest[2], rest[3], 1e-5)
        assert result(FoldScales(), inputs, z, constant=5)[0].op == "batch_norm"

    def test_half_precision_stays(self) -> None:
        inputs = given(*self.shapes, dtype=bf16)
        x, w, *rest = inputs
        assert result(FoldScales(), inputs, normalised(x, w, rest[:4]), constant=6)[0].op == "batch_norm"


def in_place(node: Node) -> list[Node]:
    return [n for n in Graph([], [node]).nodes() if n.attrs.get("in_place")]


class TestConcatenations:
    def of(self, x: Node, w: Node, last: Node, *extra: Node) -> Node:
        made = [convolution(x, w, (1, 1), (0, 0), (1, 1)) for _ in range(2)]
        return convolution(cat([*made, *extra], 1), last, (1, 1), (0, 0), (1, 1))

    def test_convolutions_write_in_place(self) -> None:
        inputs = given((1, 4, 5, 5), (3, 4, 1, 1), (2, 6, 1, 1))
        (y,) = result(ConcatenateInPlace(), inputs, self.of(*inputs))
        (found,) = in_place(y)
        assert [p.op for p in found.inputs] == ["convolution"] * 2

    def test_an_input_of_the_graph_is_copied(self) -> None:
        inputs = given((1, 4, 5, 5), (3, 4, 1, 1), (2, 10, 1, 1))
        (y,) = result(ConcatenateInPlace(), inputs, self.of(*inputs, inputs[0]))
        (found,) = in_place(y)
        assert [p.op for p in found.inputs] == ["convolution", "convolution", "copy"]

    def test_mostly_inputs_is_no_gain(self) -> None:
        x, w = given((1, 4, 5, 5), (2, 9, 1, 1))
        y = convolution(cat([x, x, relu(x).inputs[0]], 1), given((2, 12, 1, 1))[0], (1, 1), (0, 0), (1, 1))
        assert not in_place(result(ConcatenateInPlace(), [x, w], y)[0])

    def test_what_element_wise_operators_read_is_an_operator(self) -> None:
        inputs = given((1, 4, 5, 5), (3, 4, 1, 1))
        x, w = inputs
        parts = [convolution(x, w, (1, 1), (0, 0), (1, 1)) for _ in range(2)]
        assert not in_place(result(ConcatenateInPlace(), inputs, relu(cat(parts, 1)))[0])

    def test_a_value_that_occurs_twice_is_copied(self) -> None:
        inputs = given((1, 4, 5, 5), (3, 4, 1, 1), (2, 12, 1, 1))
        x, w, last = inputs
        a, b, c = (convolution(x, w, (1, 1), (0, 0), (1, 1)) for _ in range(3))
        y = convolution(cat([a, b, c, c], 1), last, (1, 1), (0, 0), (1, 1))
        (found,) = in_place(result(ConcatenateInPlace(), inputs, y)[0])
        assert [p.op for p in found.inputs] == ["convolution", "convolution", "copy", "copy"]

    def test_a_result_of_the_graph_is_copied(self) -> None:
        inputs = given((1, 4, 5, 5), (3, 4, 1, 1), (2, 9, 1, 1))
        x, w, last = inputs
        a, b, c = (convolution(x, w, (1, 1), (0, 0), (1, 1)) for _ in range(3))
        y = convolution(cat([a, b, c], 1), last, (1, 1), (0, 0), (1, 1))
        (found,) = in_place(result(ConcatenateInPlace(), inputs, y, a)[0])
        assert [p.op for p in found.inputs] == ["copy", "convolution", "convolution"]
