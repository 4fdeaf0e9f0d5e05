"""Arrays passed to native code unchanged: the same results and refusals as at the first call."""

import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from taskmap.ir.errors import IndexOutOfRangeError, InputError
from taskmap.onnx.model import OnnxModel, load_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Port = tuple[str, int, list[int | str]]


def model(nodes: list[Any], inputs: list[Port], outputs: list[Port], constants: list[Any] | None = None) -> OnnxModel:
    """A model of these nodes, ready to be called."""
    taken, given = ([helper.make_tensor_value_info(*port) for port in side] for side in (inputs, outputs))
    graph = helper.make_graph(nodes, "g", taken, given, constants or [])
    return load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


def affine(size: int | str = "n", elem: int = FLOAT) -> OnnxModel:
    """y = x + x, x of [size, 3]."""
    return model([helper.make_node("Add", ["x", "x"], ["y"])], [("x", elem, [size, 3])], [("y", elem, [size, 3])])


def direct(made: OnnxModel) -> int:
    """The number of input signatures that have a direct path."""
    return sum(d is not None for d in made._direct.values())


def test_later_calls_give_their_own_results() -> None:
    made = affine()
    kept: list[tuple[Any, Any]] = []
    for n in (4, 7, 4, 7, 4):
        x = np.random.default_rng(len(kept)).standard_normal((n, 3)).astype(np.float32)
        y = (made(x) if len(kept) % 2 else made({"x": x}))[0]
        kept.append((y, x + x))
    assert direct(made) == 2
    for y, expected in kept:
        np.testing.assert_array_equal(y, expected)
        assert y.flags.writeable


def test_arrays_that_are_not_plain_take_the_other_way() -> None:
    made = affine(4)
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for _ in range(2):
        np.testing.assert_array_equal(made(x[:, ::2])[0], 2 * x[:, ::2])
        np.testing.assert_array_equal(made(np.asfortranarray(x[:, :3]))[0], 2 * x[:, :3])
        np.testing.assert_array_equal(made(x[:, :3].tolist())[0], 2 * x[:, :3])
    assert direct(made) == 0
    read_only = x[:, :3].copy()
    read_only.flags.writeable = False
    for _ in range(2):
        np.testing.assert_array_equal(made(read_only)[0], 2 * read_only)


def test_refusals_stay() -> None:
    made = affine(4)
    x = np.ones((4, 3), np.float32)
    made(x)
    made(x)
    for wrong in (x.astype(np.float64), x[:2], x.reshape(2, 6), x.astype(">f4")):
        with pytest.raises(InputError):
            made(wrong)
    with pytest.raises(InputError):
        made({"z": x})
    with pytest.raises(InputError):
        made(x, x)
    with pytest.raises(InputError):
        made()


def test_sizes_of_one_name_must_agree() -> None:
    ports: list[Port] = [("a", FLOAT, ["n"]), ("b", FLOAT, ["n"])]
    made = model([helper.make_node("Add", ["a", "b"], ["y"])], ports, [("y", FLOAT, ["n"])])
    for _ in range(3):
        np.testing.assert_array_equal(made(np.ones(5, np.float32), np.ones(5, np.float32))[0], np.full(5, 2.0))
        with pytest.raises(InputError):
            made(np.ones(5, np.float32), np.ones(1, np.float32))


def test_values_that_decide_a_shape() -> None:
    made = model(
        [helper.make_node("Reshape", ["x", "s"], ["y"])],
        [("x", FLOAT, [6]), ("s", INT64, [2])],
        [("y", FLOAT, ["a", "b"])],
    )
    x = np.arange(6, dtype=np.float32)
    for shape in ((2, 3), (3, 2), (6, 1), (2, 3), (1, 6)):
        np.testing.assert_array_equal(made(x, np.array(shape))[0], x.reshape(shape))


def test_an_index_out_of_range_is_an_error_each_time() -> None:
    table = numpy_helper.from_array(np.arange(5, dtype=np.float32), "t")
    made = model([helper.make_node("Gather", ["t", "i"], ["y"])], [("i", INT64, [2])], [("y", FLOAT, [2])], [table])
    for _ in range(3):
        np.testing.assert_array_equal(made(np.array([1, 4]))[0], [1.0, 4.0])
        with pytest.raises(IndexOutOfRangeError):
            made(np.array([1, 5]))


@pytest.mark.parametrize(
    ("elem", "dtype"),
    [
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16), (TensorProto.FLOAT16, np.float16), (TensorProto.DOUBLE, np.float64),
        (TensorProto.UINT64, np.uint64), (TensorProto.UINT16, np.uint16), (TensorProto.INT8, np.int8),
    ],
)  # fmt: skip
def test_types_that_are_held_in_others(elem: int, dtype: Any) -> None:
    made = affine(2, elem)
    for k in range(3):
        x = np.arange(k, k + 6).reshape(2, 3).astype(dtype)
        (y,) = made(x)
        assert y.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(y, x + x)


def test_results_that_nothing_computes() -> None:
    """An input, a constant and an empty tensor as outputs."""
    constant = numpy_helper.from_array(np.array([1.0, 2.0], np.float32), "c")
    ports: list[Port] = [("x", FLOAT, ["n"])]
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["c"], ["z"])]
    made = model(nodes, ports, [("y", FLOAT, ["n"]), ("z", FLOAT, [2])], [constant])
    for n in (3, 0, 3, 0):
        x = np.arange(n, dtype=np.float32)
        y, z = made(x)
        np.testing.assert_array_equal(y, x)
        np.testing.assert_array_equal(z, [1.0, 2.0])


def test_large_results_and_threads(tmp_path: Path) -> None:
    made = affine("n")
    large = np.ones((200_000, 3), np.float32)
    for _ in range(2):
        assert made(large)[0][-1, -1] == 2.0
    wrong: list[int] = []

    def call(k: int) -> None:
        x = np.full((k + 2, 3), k, np.float32)
        wrong.extend(1 for _ in range(100) if not np.array_equal(made(x)[0], x + x))

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_values_that_decide_have_direct_ways_of_their_own() -> None:
    made = model(
        [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Add", ["r", "r"], ["y"])],
        [("x", FLOAT, [6]), ("s", INT64, [2])],
        [("y", FLOAT, ["a", "b"])],
    )
    for number in range(12):
        shape = ((2, 3), (3, 2), (6, 1))[number % 3]
        x = np.full(6, number, np.float32)
        (y,) = made(x, np.array(shape))
        assert y.shape == shape
        np.testing.assert_array_equal(y, np.full(shape, 2.0 * number))
    assert direct(made) == 3


def test_a_result_may_be_another_shape_of_what_is_computed() -> None:
    shape = numpy_helper.from_array(np.array([3, -1]), "s")
    made = model(
        [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Reshape", ["a", "s"], ["y"])],
        [("x", FLOAT, ["n", 3])],
        [("y", FLOAT, [3, "n"])],
        [shape],
    )
    for number, n in enumerate((4, 2, 4, 2, 4)):
        x = np.random.default_rng(number).standard_normal((n, 3)).astype(np.float32)
        np.testing.assert_array_equal(made(x)[0], (x + x).reshape(3, n))
    assert direct(made) == 2


def test_results_may_be_parts_of_what_is_computed() -> None:
    made = model(
        [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Split", ["a"], ["y", "z"], num_outputs=2)],
        [("x", FLOAT, [4, 3])],
        [("y", FLOAT, [2, 3]), ("z", FLOAT, [2, 3])],
    )
    for number in range(3):
        x = np.random.default_rng(number).standard_normal((4, 3)).astype(np.float32)
        y, z = made(x)
        np.testing.assert_array_equal(np.concatenate([y, z]), x + x)
        z[:] = 0
        np.testing.assert_array_equal(y, (x + x)[:2])
    assert direct(made) == 1


def test_no_two_results_share_memory() -> None:
    """One tensor under two names, an input among the results, parts of a result, and stored results."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("Reshape", ["a", "shape"], ["c"]),
        helper.make_node("Identity", ["x"], ["d"]),
        helper.make_node("Identity", ["w"], ["e"]),
    ]
    stored = [numpy_helper.from_array(np.array([2, 2]), "shape"), numpy_helper.from_array(np.ones(4, np.float32), "w")]
    without_input: list[Port] = [("a", FLOAT, [4]), ("b", FLOAT, [4]), ("c", FLOAT, [2, 2])]
    outputs: list[Port] = [*without_input, ("d", FLOAT, [4]), ("e", FLOAT, [4])]
    x = np.array([1, -2, 3, -4], np.float32)
    for asked in (outputs, without_input):
        made = model(nodes, [("x", FLOAT, [4])], asked, stored)
        for _ in range(3):
            given = x.copy()
            results = made(given)
            wanted = {"a": [1, 0, 3, 0], "b": [1, 0, 3, 0], "c": [[1, 0], [3, 0]], "d": x.tolist(), "e": [1] * 4}
            for (name, _, _), result in zip(asked, results, strict=True):
                assert result.tolist() == wanted[name]
                result[...] = 7
                assert given.tolist() == x.tolist()


def test_a_result_without_elements_beside_one_that_is_computed() -> None:
    bounds = [numpy_helper.from_array(np.array([n], np.int64), name) for name, n in (("from", 90), ("to", 100))]
    nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Slice", ["x", "from", "to"], ["z"])]
    made = model(nodes, [("x", FLOAT, [4, 3])], [("y", FLOAT, [4, 3]), ("z", FLOAT, [0, 3])], bounds)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((4, 3)).astype(np.float32)
        y, z = made(x)
        np.testing.assert_array_equal(y, x + x)
        assert z.shape == (0, 3)
    alone = model(nodes[1:], [("x", FLOAT, [4, 3])], [("z", FLOAT, [0, 3])], bounds)
    assert all(alone(x)[0].shape == (0, 3) for _ in range(3))
