"""One graph for all sizes: each operator computes what ONNX computes at several sizes, and a second size compiles
nothing new. Where this is impossible, the message names the node that prevents it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

from taskmap.backend.program.sizes import sizes_function
from taskmap.graph.analysis.size_forms import normal
from taskmap.graph.importers.onnx import load
from taskmap.graph.nodes import Graph
from taskmap.ir.construct import index, maximum, minimum, static_size
from taskmap.ir.nodes import Dim, Var
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import OnnxModel, load_model
from tests.onnx.models import BOOL, FLOAT, INT64, model

Array = NDArray[Any]
Node = onnx.NodeProto


def floats(*shape: int) -> Array:
    """Numbers between -2 and 2."""
    return np.random.default_rng(sum(shape)).uniform(-2, 2, shape).astype(np.float32)


def ints(below: int, *shape: int) -> Array:
    """Integers in [0, ``below``)."""
    return np.random.default_rng(sum(shape)).integers(0, below, shape)


@dataclass(frozen=True)
class Case:
    """A model of open sizes; ``give`` makes its inputs for each of ``sizes``. ``graphs``: how many graphs it needs."""

    nodes: list[Node]
    give: Callable[..., list[Array]]
    sizes: Sequence[tuple[int, ...]]
    stored: dict[str, Array] | None = None
    outputs: tuple[str, ...] = ("y",)
    opset: int = 21
    graphs: int = 1

    def build(self) -> onnx.ModelProto:
        """The model; dimensions that differ between the sizes are open."""
        first, second = (self.give(*s) for s in self.sizes[:2])
        inputs: dict[str, tuple[int, list[Any]]] = {}
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            shape = [m if m == n else f"d{i}{k}" for k, (m, n) in enumerate(zip(a.shape, b.shape, strict=True))]
            inputs[f"x{i}"] = (helper.np_dtype_to_tensor_dtype(a.dtype), shape)
        return model(self.nodes, inputs, list(self.outputs), self.stored, self.opset)


def op(kind: str, inputs: str, outputs: str = "y", **attributes: Any) -> Node:
    """A node; blanks separate names, "-" stands for a missing one."""
    names = ["" if n == "-" else n for n in inputs.split()]
    return helper.make_node(kind, names, outputs.split(), **attributes)


def resized(*nodes: Node, **attributes: Any) -> list[Node]:
    """The first image resized to the height and width of the second."""
    return [
        op("Shape", "x1", "like", start=2),
        op("Shape", "x0", "kept", end=2),
        op("Concat", "kept like", "sizes", axis=0),
        *nodes,
        op("Resize", "x0 - - sizes", **attributes),
    ]


def two_images(n: int, h: int, w: int, k: int, m: int) -> list[Array]:
    """An image, and another one of a different size."""
    return [floats(n, 3, h, w), floats(n, 3, k, m)]


def image(n: int, h: int, w: int) -> list[Array]:
    """Images of four channels."""
    return [floats(n, 4, h, w)]


IMAGES = [(2, 6, 9), (3, 7, 5), (1, 11, 8), (5, 8, 8)]
PAIRS = [(2, 6, 9, 12, 7), (3, 7, 5, 3, 5), (1, 4, 4, 8, 12), (2, 5, 3, 1, 1), (4, 1, 2, 5, 6)]
LINES = [(2, 7), (3, 12), (1, 5), (4, 2)]
W = floats(4, 6, 3, 3)
BOTH: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2]}
CASES: dict[str, Case] = {}
for mode in ("nearest", "linear", "cubic"):
    for way in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"):
        pairs = [p for p in PAIRS if way != "pytorch_half_pixel" or min(p) > 1]
        CASES[f"resize {mode} {way}"] = Case(
            resized(mode=mode, coordinate_transformation_mode=way, nearest_mode="floor"), two_images, pairs
        )
for scale, way in ((2.0, "asymmetric"), (3.0, "half_pixel"), (0.5, "half_pixel"), (1.5, "asymmetric")):
    for mode in ("nearest", "linear"):
        rule = "floor" if way == "asymmetric" else "round_prefer_floor"
        CASES[f"resize by {scale} {mode} {way}"] = Case(
            [op("Resize", "x0 - s", mode=mode, coordinate_transformation_mode=way, nearest_mode=rule)],
            image,
            IMAGES,
            {"s": np.array([1, 1, scale, scale], np.float32)},
        )
CASES |= {
    "upsample": Case(
        [op("Upsample", "x0 s", mode="nearest")], image, IMAGES, {"s": np.array([1, 1, 2, 3], np.float32)}, opset=9
    ),
    "transposed convolution": Case([op("ConvTranspose", "x0 w", **BOTH)], image, IMAGES, {"w": W}),
    "transposed convolution, padded": Case(
        [op("ConvTranspose", "x0 w", **BOTH, pads=[1, 0, 1, 1], output_padding=[1, 0])], image, IMAGES, {"w": W}
    ),
    "transposed convolution, same": Case(
        [op("ConvTranspose", "x0 w", **BOTH, auto_pad="SAME_UPPER")], image, IMAGES, {"w": W}
    ),
    "convolution, same": Case(
        [op("Conv", "x0 w", strides=[2, 1], auto_pad="SAME_LOWER")], image, IMAGES, {"w": floats(5, 4, 3, 3)}
    ),
    "convolution, asymmetric": Case(
        [op("Conv", "x0 w", strides=[2, 2], pads=[0, 1, 2, 1])], image, IMAGES, {"w": floats(5, 4, 3, 3)}
    ),
    "max pool, asymmetric": Case([op("MaxPool", "x0", **BOTH, pads=[0, 1, 1, 0])], image, IMAGES),
    "max pool, rounded up": Case([op("MaxPool", "x0", **BOTH, ceil_mode=1)], image, IMAGES),
    "max pool, rounded up and padded": Case([op("MaxPool", "x0", **BOTH, ceil_mode=1, pads=[1] * 4)], image, IMAGES),
    "max pool, same": Case([op("MaxPool", "x0", **BOTH, auto_pad="SAME_UPPER")], image, IMAGES),
    "average pool, asymmetric": Case([op("AveragePool", "x0", **BOTH, pads=[0, 1, 1, 0])], image, IMAGES),
    "average pool, same": Case([op("AveragePool", "x0", **BOTH, auto_pad="SAME_LOWER")], image, IMAGES),
    "depth to space": Case([op("DepthToSpace", "x0", blocksize=2)], image, IMAGES),
    "space to depth": Case([op("SpaceToDepth", "x0", blocksize=2)], image, [(2, 6, 8), (3, 4, 10), (1, 2, 2)]),
    "gather nd": Case([op("GatherND", "x0 x1", batch_dims=1)], lambda n, m: [floats(n, m, 5), ints(m, n, 3, 1)], LINES),
    "scatter nd": Case(
        [op("ScatterND", "x0 x1 x2", reduction="add")],
        lambda n, m: [floats(n, 4), ints(n, m, 1), floats(m, 4)],
        LINES,
    ),
    "scatter elements": Case(
        [op("ScatterElements", "x0 x1 x2", axis=1, reduction="max")],
        lambda n, m: [floats(n, m), ints(m, n, 3), floats(n, 3)],
        LINES,
    ),
    "squeeze of what is 1": Case([op("Squeeze", "x0")], lambda n, m: [floats(n, 1, m)], LINES[:2]),
    "squeeze of another thing": Case(
        [op("Squeeze", "x0")], lambda n, m: [floats(n, 1, m)], [(2, 7), (3, 5), (1, 4), (1, 9)], graphs=2
    ),
    "sizes as data": Case(
        [
            op("Shape", "x0", "shape"),
            op("Cast", "shape", "whole", to=FLOAT),
            op("ReduceSum", "x0", "sum", keepdims=0),
            op("Mul", "whole sum"),
        ],
        lambda n, m: [floats(n, m)],
        LINES,
    ),
    "a size equal to another": Case(
        [op("Shape", "x0", "s"), op("Equal", "s two", "e"), op("Where", "e one s", "t"), op("Expand", "x1 t")],
        lambda n, m: [floats(n, m), floats(1, 1)],
        [(3, 7), (4, 5), (2, 6), (2, 9)],
        {"two": np.array([2, 2]), "one": np.array([1, 1])},
        graphs=2,
    ),
    "half a size, in floating point": Case(
        [
            op("Shape", "x0", "n", start=1),
            op("Cast", "n", "f", to=FLOAT),
            op("Mul", "f half", "h"),
            op("Floor", "h", "l"),
            op("Cast", "l", "e", to=INT64),
            op("Slice", "x0 zero e one"),
        ],
        lambda n, m: [floats(n, m)],
        LINES,
        {"half": np.array([0.5], np.float32), "zero": np.array([0]), "one": np.array([1])},
    ),
    "a third of a size, rounded up": Case(
        [
            op("Shape", "x0", "n", start=1),
            op("Cast", "n", "f", to=FLOAT),
            op("Div", "f three", "h"),
            op("Ceil", "h", "l"),
            op("Cast", "l", "e", to=INT64),
            op("Slice", "x0 zero e one"),
        ],
        lambda n, m: [floats(n, m)],
        LINES,
        {"three": np.array([3], np.float32), "zero": np.array([0]), "one": np.array([1])},
    ),
    "a range of floats": Case(
        [
            op("Shape", "x0", "n", start=1),
            op("Squeeze", "n", "s"),
            op("Cast", "s", "f", to=FLOAT),
            op("Range", "zero f two", "r"),
            op("Add", "r zero"),
        ],
        lambda n, m: [floats(n, m)],
        LINES,
        {"zero": np.array(0, np.float32), "two": np.array(2, np.float32)},
    ),
    "split in equal parts": Case(
        [op("Split", "x0", "a b c", axis=1, num_outputs=3)],
        lambda n, m: [floats(n, m)],
        [(2, 7), (3, 12), (1, 9)],
        outputs=("a", "b", "c"),
    ),
    "backward slice": Case(
        [op("Slice", "x0 from to axis step")],
        lambda n, m: [floats(n, m)],
        LINES,
        {"from": np.array([-1]), "to": np.array([-(1 << 63)]), "axis": np.array([1]), "step": np.array([-2])},
    ),
    "slice from the end by a size": Case(
        [op("Shape", "x1", "n", start=1), op("Neg", "n", "m"), op("Slice", "x0 m big axis")],
        lambda n, m: [floats(n, m), floats(2, m - 1)],
        LINES,
        {"big": np.array([(1 << 63) - 1]), "axis": np.array([1])},
    ),
    "padded to a multiple": Case(
        [
            op("Shape", "x0", "n", start=1),
            op("Mod", "n four", "r"),
            op("Sub", "four r", "m"),
            op("Mod", "m four", "k"),
            op("Concat", "zeros k", "pads", axis=0),
            op("Pad", "x0 pads"),
        ],
        lambda n, m: [floats(n, m)],
        LINES,
        {"four": np.array([4]), "zeros": np.array([0, 0, 0])},
    ),
    "einsum": Case(
        [op("Einsum", "x0 x1", equation="nij,njk->nik")],
        lambda n, m: [floats(n, m, 4), floats(n, 4, m + 1)],
        LINES,
    ),
    "one hot": Case([op("OneHot", "x0 d v")], lambda n, m: [ints(6, n, m)], LINES, {"d": np.array(6), "v": floats(2)}),
    "identity matrix": Case([op("EyeLike", "x0", k=1)], lambda n, m: [floats(n, m)], LINES),
    "reversed sequences": Case(
        [op("ReverseSequence", "x0 x1", time_axis=1, batch_axis=0)],
        lambda n, m: [floats(n, m), ints(m, n) + 1],
        LINES,
    ),
}


def expected(proto: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """The result of ONNX Runtime or, failing that, of ONNX's reference."""
    if find_spec("onnxruntime") is None:
        results: Any = ReferenceEvaluator(proto).run(None, feeds)
        return list(results)
    return list(import_module("onnxruntime").InferenceSession(proto.SerializeToString()).run(None, feeds))


def graphs_of(found: OnnxModel) -> int:
    """The number of graphs made, all of which must serve many sizes."""
    assert not found.refusals
    assert all(s.guard is not None for s in found.program.segments())
    return len(found.program.segments())


@pytest.mark.parametrize("name", CASES)
def test_operators_at_several_sizes(name: str) -> None:
    case = CASES[name]
    proto = case.build()
    ours = OnnxModel(load(proto), by_definition)
    for sizes in case.sizes:
        given = case.give(*sizes)
        theirs = expected(proto, {f"x{i}": a for i, a in enumerate(given)})
        for a, b in zip(ours(*given), theirs, strict=True):
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert graphs_of(ours) == case.graphs


@pytest.mark.parametrize(
    "name", ["resize linear half_pixel", "transposed convolution, padded", "max pool, rounded up", "sizes as data",
             "padded to a multiple", "half a size, in floating point"],
)  # fmt: skip
def test_compiled_at_several_sizes(name: str) -> None:
    case = CASES[name]
    proto = case.build()
    ours = load_model(proto)
    for sizes in case.sizes:
        given = case.give(*sizes)
        theirs = expected(proto, {f"x{i}": a for i, a in enumerate(given)})
        for a, b in zip(ours(*given), theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert graphs_of(ours) == case.graphs


def branches() -> onnx.ModelProto:
    """The negative of a tensor of more than four rows, else its double."""

    def body(kind: str, inputs: str) -> onnx.GraphProto:
        return helper.make_graph([op(kind, inputs, "t")], kind, [], [helper.make_empty_tensor_value_info("t")])

    nodes = [
        op("Shape", "x", "s", end=1),
        op("Greater", "s four", "c"),
        op("If", "c", then_branch=body("Neg", "x"), else_branch=body("Add", "x x")),
    ]
    return model(nodes, {"x": (FLOAT, ["n", "m"])}, ["y"], {"four": np.array([4])})


def test_a_branch_on_a_size_has_a_graph_for_each_side() -> None:
    ours = OnnxModel(load(branches()), by_definition)
    for n, m in ((5, 2), (9, 3), (4, 3), (1, 7), (70, 1)):
        x = floats(n, m)
        np.testing.assert_array_equal(ours(x)[0], -x if n > 4 else x + x)
    assert graphs_of(ours) == 2


def test_sizes_that_are_1_are_repeated() -> None:
    proto = model([op("Add", "x z")], {"x": (FLOAT, ["n", "m"]), "z": (FLOAT, ["k", "m"])}, ["y"])
    ours = OnnxModel(load(proto), by_definition)
    for n, k, m in ((1, 5, 3), (1, 4, 8), (1, 1, 2), (6, 1, 2), (7, 1, 4), (3, 3, 2), (9, 9, 4)):
        x, z = floats(n, m), floats(k, m) + 1
        np.testing.assert_array_equal(ours(x, z)[0], x + z)
    assert graphs_of(ours) == 3


def counted(graphs: list[Graph]) -> Callable[[Graph], Any]:
    """An engine that records what it compiles."""

    def engine(graph: Graph) -> Any:
        graphs.append(graph)
        return by_definition(graph)

    return engine


def test_a_graph_that_is_wrong_for_these_sizes_is_not_compiled_and_its_node_is_named() -> None:
    # Read with open sizes, the dimension is split into its half and the rest, which are added: only even sizes work.
    nodes = [
        op("Shape", "x", "n", end=1),
        op("Div", "n two", "h"),
        op("Slice", "x zero h", "a"),
        op("Slice", "x h n", "b"),
        helper.make_node("Mul", ["a", "b"], ["y"], name="halves"),
    ]
    proto = model(nodes, {"x": (FLOAT, ["n", 2])}, ["y"], {"two": np.array([2]), "zero": np.array([0])})
    made: list[Graph] = []
    ours = OnnxModel(load(proto), counted(made))
    for n in (3, 2, 6, 8):
        x = floats(n, 2)
        np.testing.assert_array_equal(ours(x)[0], x[: n // 2] * x[n // 2 :])
    assert len(made) == 2
    assert [bool(g.dims) for g in made] == [False, True]
    assert "the Mul node 'halves'" in str(ours.refusals[0])


def test_the_node_that_prevents_one_graph_is_named() -> None:
    proto = model([helper.make_node("Det", ["x"], ["y"], name="volume")], {"x": (FLOAT, ["n", "n"])}, ["y"])
    ours = OnnxModel(load(proto), by_definition)
    for n in (2, 3):
        np.testing.assert_allclose(ours(floats(n, n))[0], np.linalg.det(floats(n, n)), rtol=1e-5)
    assert [str(r) for r in ours.refusals] == ["the Det node 'volume': Det of symbolic sizes"]


def test_graphs_after_a_step_of_the_host_are_for_all_sizes_too() -> None:
    nodes = [
        op("Greater", "x zero", "c"),
        op("NonZero", "c", "places"),
        op("Transpose", "places", "rows"),
        op("GatherND", "x rows", "found"),
        op("Shape", "x", "shape"),
        op("ReduceProd", "shape", "count", keepdims=0),
        op("Cast", "count", "whole", to=FLOAT),
        op("Div", "found whole"),
    ]
    proto = model(nodes, {"x": (FLOAT, ["n", "m"])}, ["y"], {"zero": np.array(0, np.float32)})
    made: list[Graph] = []
    ours = OnnxModel(load(proto), counted(made))
    for n, m in ((3, 5), (4, 2), (9, 9)):
        x = floats(n, m)
        np.testing.assert_allclose(ours(x)[0], x[x > 0] / (n * m), rtol=1e-6)
    assert len(made) == 2
    nothing = -np.abs(floats(3, 5))  # the result has no elements, which takes another graph
    assert ours(nothing)[0].shape == (0,)


def test_a_size_as_the_number_of_iterations() -> None:
    body = helper.make_graph(
        [op("Identity", "go", "on"), op("Add", "v one", "w")],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go", BOOL, []),
            helper.make_tensor_value_info("v", FLOAT, ["n"]),
        ],
        [helper.make_tensor_value_info("on", BOOL, []), helper.make_tensor_value_info("w", FLOAT, ["n"])],
    )
    nodes = [op("Shape", "x", "s"), op("Squeeze", "s", "n"), op("Loop", "n - x", body=body)]
    proto = model(nodes, {"x": (FLOAT, ["n"])}, ["y"], {"one": np.array(1, np.float32)})
    ours = OnnxModel(load(proto), by_definition)
    for n in (3, 5, 2):
        np.testing.assert_allclose(ours(floats(n))[0], floats(n) + n, rtol=1e-6)


def test_sizes_inside_a_deep_network_have_names() -> None:
    nodes = [op("MaxPool", f"x{k}", f"x{k + 1}", **BOTH, ceil_mode=1) for k in range(6)]
    proto = model(nodes, {"x0": (FLOAT, [1, 2, "h", "w"])}, ["x6"])
    made: list[Graph] = []
    ours = OnnxModel(load(proto), counted(made))
    for h, w in ((200, 150), (131, 322)):
        x = floats(1, 2, h, w)
        assert ours(x)[0].shape == expected(proto, {"x0": x})[0].shape
    (graph,) = made
    assert all(static_size(n) is not None or isinstance(n, Var) for node in graph.nodes() for n in node.shape)


n, m = Var("n"), Var("m")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((n + 6 - 7) // 4 + 1, 1 + (n - 1) // 4),
        ((n + 1) // 2 - 1, (n - 1) // 2),
        ((n * m * 8) // (m * n), 8),
        ((4 * n + 3) // 4, n),
        ((4 * n + 3) % 4, 3),
        (minimum(n + 1, n), n),
        (maximum(m, n), maximum(n, m)),
        (n - n, 0),
    ],
)
def test_equal_sizes_have_one_form(a: Dim, b: Dim) -> None:
    assert normal(a) == normal(b)


@pytest.mark.parametrize("a", [(n * m) // m // 2, (n + 3) // 2, n % m, n // m, minimum(n, m), (n - 5) // 3 * 3])
def test_forms_have_the_values_of_the_sizes(a: Dim) -> None:
    form = index(normal(a))
    both = sizes_function([a, form], [n, m])
    for values in ((1, 1), (7, 2), (3, 5), (16, 4), (5, 13)):
        x, y = both(values)
        assert x == y
