"""Small models for tests, each with matching inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
FLOAT, INT64, BOOL, UINT8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8
Example = tuple[onnx.ModelProto, dict[str, Array]]


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: list[str],
    stored: dict[str, Array] | None = None,
    opset: int = 21,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    """A model of ``nodes``."""
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(n, elem, shape) for n, (elem, shape) in inputs.items()],
        [helper.make_empty_tensor_value_info(n) for n in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in (stored or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    if functions:
        opsets.append(helper.make_opsetid("own", 1))
    return helper.make_model(graph, opset_imports=opsets, functions=functions or [], ir_version=10)


def _random(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float32)


def mlp() -> Example:
    """Two layers; the batch dimension has a name."""
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["m"]),
        helper.make_node("Add", ["m", "b2"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"]),
    ]
    stored = {"w1": _random(16, 8), "b1": _random(16, seed=1), "w2": _random(16, 5, seed=2), "b2": _random(5, seed=3)}
    return model(nodes, {"x": (FLOAT, ["batch", 8])}, ["y"], stored), {"x": _random(3, 8, seed=4)}


def convnet() -> Example:
    """A residual block with batch normalisation and pooling."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c1", "s", "b", "m", "v"], ["n1"]),
        helper.make_node("Relu", ["n1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["p1", "w2"], ["c2"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "p1"], ["a"]),
        helper.make_node("GlobalAveragePool", ["a"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "wf", "bf"], ["y"], transB=1),
    ]
    stored = {
        "w1": _random(8, 3, 3, 3),
        "b1": _random(8),
        "s": _random(8, seed=1) + 1,
        "b": _random(8, seed=2),
        "m": _random(8, seed=3),
        "v": np.abs(_random(8, seed=4)) + 1,
        "w2": _random(8, 8, 3, 3, seed=5),
        "wf": _random(4, 8, seed=6),
        "bf": _random(4, seed=7),
    }
    return model(nodes, {"x": (FLOAT, ["n", 3, 16, 16])}, ["y"], stored), {"x": _random(2, 3, 16, 16, seed=8)}


def shape_chain() -> Example:
    """A reshape whose shape is computed from sizes."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["t"], axis=0),
        helper.make_node("Reshape", ["x", "t"], ["y"]),
    ]
    stored = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([2, -1])}
    return model(nodes, {"x": (FLOAT, ["n", 4, 3])}, ["y"], stored), {"x": _random(5, 4, 3)}


def branch() -> Example:
    """An If whose condition depends on data."""
    then = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["t"])], "then", [], [helper.make_empty_tensor_value_info("t")]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["e"])], "else", [], [helper.make_empty_tensor_value_info("e")]
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    return model(nodes, {"x": (FLOAT, [3])}, ["y"], {"zero": np.array(0, np.float32)}), {"x": np.ones(3, np.float32)}


def loop() -> Example:
    """A Loop that doubles until a bound, and collects."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "v"], ["v2"]),
            helper.make_node("ReduceMax", ["v2"], ["top"], keepdims=0),
            helper.make_node("Less", ["top", "bound"], ["go"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("c", BOOL, []),
            helper.make_tensor_value_info("v", FLOAT, [2]),
        ],
        [helper.make_empty_tensor_value_info(n) for n in ("go", "v2", "top")],
    )
    nodes = [helper.make_node("Loop", ["most", "true", "x"], ["y", "tops"], body=body)]
    stored = {"most": np.array(20), "true": np.array(True), "bound": np.float32(100)}
    return model(nodes, {"x": (FLOAT, [2])}, ["y", "tops"], stored), {"x": np.array([1, 3], np.float32)}


def function() -> Example:
    """A function defined by the model, with an attribute."""
    own = helper.make_function(
        "own",
        "Leaky",
        ["a"],
        ["b"],
        [onnx.parser.parse_node("b = LeakyRelu<alpha : float = @slope>(a)")],
        [helper.make_opsetid("", 21)],
        ["slope"],
    )
    nodes = [helper.make_node("Leaky", ["x"], ["y"], domain="own", slope=0.25)]
    return model(nodes, {"x": (FLOAT, [4])}, ["y"], functions=[own]), {"x": np.array([-2, -1, 0, 1], np.float32)}


def quantized() -> Example:
    """A product between quantisation and dequantisation."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["w"], axis=1),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    stored = {
        "s": np.float32(0.02),
        "z": np.uint8(128),
        "wq": np.random.default_rng(0).integers(-128, 128, (6, 4)).astype(np.int8),
        "ws": np.array([0.01, 0.02, 0.03, 0.04], np.float32),
        "wz": np.zeros(4, np.int8),
    }
    return model(nodes, {"x": (FLOAT, [3, 6])}, ["y"], stored), {"x": _random(3, 6)}


def detections() -> Example:
    """Sizes that depend on data: the positive elements, doubled."""
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["m"]),
        helper.make_node("Compress", ["x", "m"], ["kept"], axis=0),
        helper.make_node("Add", ["kept", "kept"], ["y"]),
        helper.make_node("Shape", ["y"], ["n"]),
    ]
    x = np.array([1, -2, 3, -4, 5], np.float32)
    return model(nodes, {"x": (FLOAT, [5])}, ["y", "n"], {"zero": np.array(0, np.float32)}), {"x": x}


def scan(backwards: bool = False) -> Example:
    """A Scan over rows that keeps a running sum and collects products with a value from outside."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "r"], ["s2"]), helper.make_node("Mul", ["r", "w"], ["p"])],
        "body",
        [helper.make_tensor_value_info("s", FLOAT, [3]), helper.make_tensor_value_info("r", FLOAT, [3])],
        [helper.make_tensor_value_info("s2", FLOAT, [3]), helper.make_tensor_value_info("p", FLOAT, [3])],
    )
    order = [int(backwards)]
    nodes = [
        helper.make_node("Scan", ["zero", "x"], ["y", "ps"], body=body, num_scan_inputs=1, scan_input_directions=order)
    ]
    stored = {"zero": np.zeros(3, np.float32), "w": _random(3, seed=1)}
    return model(nodes, {"x": (FLOAT, [4, 3])}, ["y", "ps"], stored), {"x": _random(4, 3)}


def sequence() -> Example:
    """A sequence that is built, modified and concatenated again, and a Loop over its length."""
    body = helper.make_graph(
        [
            helper.make_node("SequenceAt", ["parts", "i"], ["part"]),
            helper.make_node("ReduceSum", ["part"], ["one"], keepdims=0),
            helper.make_node("Add", ["t", "one"], ["t2"]),
            helper.make_node("Identity", ["c"], ["go"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("c", BOOL, []),
            helper.make_tensor_value_info("t", FLOAT, []),
        ],
        [helper.make_tensor_value_info("go", BOOL, []), helper.make_tensor_value_info("t2", FLOAT, [])],
    )
    nodes = [
        helper.make_node("SplitToSequence", ["x", "two"], ["split"], axis=0),
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("SequenceInsert", ["split", "n", "first"], ["parts"]),
        helper.make_node("SequenceLength", ["parts"], ["count"]),
        helper.make_node("ConcatFromSequence", ["parts"], ["y"], axis=0),
        helper.make_node("Loop", ["count", "true", "zero"], ["total"], body=body),
    ]
    stored = {"two": np.array(2), "first": np.array(0), "true": np.array(True), "zero": np.float32(0)}
    return model(nodes, {"x": (FLOAT, [5, 3])}, ["y", "count", "total"], stored), {"x": _random(5, 3)}


def quantized_convolution() -> Example:
    """A convolution of int8 weights with one scale per channel, between quantisation and dequantisation."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["w"], axis=0),
        helper.make_node("Conv", ["d", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    stored = {
        "s": np.float32(0.01),
        "z": np.int8(-3),
        "wq": np.random.default_rng(0).integers(-128, 128, (4, 3, 3, 3)).astype(np.int8),
        "ws": np.array([0.01, 0.02, 0.03, 0.04], np.float32),
        "wz": np.zeros(4, np.int8),
        "b": _random(4),
    }
    return model(nodes, {"x": (FLOAT, [1, 3, 5, 6])}, ["y"], stored), {"x": _random(1, 3, 5, 6)}


EXAMPLES: dict[str, Callable[[], Example]] = {
    f.__name__: f
    for f in (
        mlp,
        convnet,
        shape_chain,
        branch,
        loop,
        scan,
        sequence,
        function,
        quantized,
        quantized_convolution,
        detections,
    )
}
