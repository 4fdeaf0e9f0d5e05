"""Broken or malicious files: each gives one clear error, and no file outside the model's folder is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.onnx_fuzz import run
from taskmap.ir.errors import ImportGraphError, InputError, TaskmapError, UnsupportedError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import OnnxModel, load_model
from taskmap.options import Options
from tests.onnx.models import BOOL, FLOAT, INT64, convnet, mlp, model

NAMES = ['"', "*/ int main(", "a\nb", "%s%n%d", "\\", "x" * 3000, "\u202e", "$(id)", "{0}", "'; --"]

SYNTAX = frozenset({'"', "\\"})
"""Names that are harmless in C text."""


def read(proto: onnx.ModelProto | bytes | Path) -> OnnxModel:
    return load_model(proto, engine=by_definition)


@pytest.mark.parametrize("name", NAMES)
def test_names_never_reach_generated_source(name: str, tmp_path: Path) -> None:
    node = helper.make_node("Exp", ["x" + name], ["y" + name], name=name)
    proto = model([node], {"x" + name: (FLOAT, ["n" + name, 3])}, ["y" + name])
    x = np.ones((2, 3), np.float32)
    loaded = load_model(proto, Options(dump_dir=str(tmp_path)))
    np.testing.assert_allclose(loaded(x)[0], np.exp(x), rtol=1e-6)
    generated = [path.read_text() for path in tmp_path.rglob("*.c")]
    assert generated
    assert [text for text in generated if name in text and name not in SYNTAX] == []


def test_every_unsupported_operator_is_listed() -> None:
    nodes = [
        helper.make_node("ImageDecoder", ["x"], ["a"], name="first"),
        helper.make_node("Foo", ["x"], ["c"], name="second"),
        helper.make_node("Relu", ["x"], ["d"], name="fine"),
    ]
    with pytest.raises(UnsupportedError) as caught:
        read(model(nodes, {"x": (FLOAT, [2])}, ["a", "c", "d"]))
    text = str(caught.value)
    assert "2 operators" in text
    assert "ImageDecoder" in text
    assert "'first'" in text
    assert "Foo" in text
    assert "'second'" in text
    assert "fine" not in text


def test_unsupported_operators_of_branches_and_functions_are_listed() -> None:
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [helper.make_empty_tensor_value_info(op)])
        for op in ("Bar", "Neg")
    ]
    own = helper.make_function(
        "own", "Both", ["a"], ["b"], [helper.make_node("Baz", ["a"], ["b"])], [helper.make_opsetid("", 21)]
    )
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Both", ["y"], ["z"], domain="own"),
        helper.make_node("Foo", ["z"], ["first"]),
        helper.make_node("Foo", ["z"], ["second"]),
    ]
    proto = model(nodes, {"x": (FLOAT, [2]), "c": (BOOL, [])}, ["first", "second"], functions=[own])
    with pytest.raises(UnsupportedError, match="3 operators that taskmap does not have, in 4 nodes") as caught:
        read(proto)
    version = "(the standard's version 21 does not have it)"
    lines = [
        f"  Foo {version}: 2 nodes, 'first', 'second'",
        f"  Bar {version}: 1 node, 'Bar'",
        f"  Baz {version}: 1 node, 'b'",
    ]
    assert str(caught.value).splitlines()[1:4] == lines


def test_functions_that_call_themselves_are_refused() -> None:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    ring = [
        helper.make_function("own", name, ["a"], ["b"], [helper.make_node(called, ["a"], ["b"], domain="own")], opsets)
        for name, called in (("One", "Two"), ("Two", "One"))
    ]
    node = helper.make_node("One", ["x"], ["y"], domain="own")
    with pytest.raises(ImportGraphError, match="calls itself"):
        read(model([node], {"x": (FLOAT, [2])}, ["y"], functions=ring))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: g.node.append(g.node[0]), "two values"),
        (lambda g: g.node[0].input.__setitem__(0, "nowhere"), "does not exist"),
        (lambda g: g.node[0].input.__setitem__(0, "y"), "cycle"),
        (lambda g: g.output[0].__setattr__("name", "nothing"), "no node makes"),
        (lambda g: g.initializer[0].dims.append(1 << 40), "too large|negative|cannot be read|elements"),
        (lambda g: g.initializer[0].dims.__setitem__(0, -4), "negative"),
        (lambda g: g.initializer[0].__setattr__("raw_data", b"123"), "cannot be read"),
        (lambda g: g.initializer[0].__setattr__("data_type", 11), "cannot be read|elements"),
        (lambda g: g.initializer[0].__setattr__("data_type", 99), "element type|99"),
    ],
)
def test_malformed_graphs(change: Any, words: str) -> None:
    proto, inputs = mlp()
    change(proto.graph)
    with pytest.raises(TaskmapError, match=words):
        read(proto)(inputs)


def test_wrong_types_of_operands() -> None:
    node = helper.make_node("Add", ["x", "i"], ["y"], name="sum")
    proto = model([node], {"x": (FLOAT, [2]), "i": (INT64, [2])}, ["y"])
    with pytest.raises(ImportGraphError, match="sum"):
        read(proto)(np.ones(2, np.float32), np.ones(2, np.int64))


def test_terabytes_are_refused() -> None:
    node = helper.make_node("ConstantOfShape", ["shape"], ["big"])
    last = helper.make_node("ReduceSum", ["big"], ["y"])
    other = helper.make_node("Add", ["big", "x"], ["z"])
    shape = {"shape": np.array([1 << 20, 1 << 19])}
    with pytest.raises(TaskmapError, match=r"bytes|large"):
        load_model(model([node, other, last], {"x": (FLOAT, [1])}, ["y", "z"], shape))(np.ones(1, np.float32))


@pytest.mark.parametrize("size", [-1, 1 << 62, (1 << 63) - 1, -(1 << 63)])
def test_sizes_that_overflow(size: int) -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    proto = model([node], {"x": (FLOAT, [4])}, ["y"], {"shape": np.array([size, size])})
    with pytest.raises(TaskmapError):
        read(proto)(np.ones(4, np.float32))


def test_truncated_files(tmp_path: Path) -> None:
    data = convnet()[0].SerializeToString()
    for length in (0, 1, 10, len(data) // 2, len(data) - 1):
        path = tmp_path / "model.onnx"
        path.write_bytes(data[:length])
        with pytest.raises(TaskmapError):
            read(path)(convnet()[1])


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ImportGraphError, match="cannot read"):
        read(tmp_path / "none.onnx")


def external(location: str, folder: Path, offset: str = "0", length: str = "16") -> Path:
    """A model whose weight is stored in the file ``location``."""
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=value)
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": (FLOAT, [4])}, ["y"])
    proto.graph.initializer.append(tensor)
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder / "model.onnx"


def test_external_data_inside_the_folder(tmp_path: Path) -> None:
    path = external("w.bin", tmp_path / "m")
    (tmp_path / "m" / "w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    np.testing.assert_array_equal(read(path)(np.ones(4, np.float32))[0], np.arange(4) + 1)


@pytest.mark.parametrize("how", ["relative", "absolute", "link", "linked folder"])
def test_external_data_outside_the_folder(how: str, tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "up").symlink_to(tmp_path)
    places = {
        "relative": "../secret.bin",
        "absolute": str(tmp_path / "secret.bin"),
        "link": "link.bin",
        "linked folder": "up/secret.bin",
    }
    with pytest.raises(ImportGraphError, match="outside"):
        read(external(places[how], folder))(np.ones(4, np.float32))


@pytest.mark.parametrize(("offset", "length"), [("-4", "16"), ("60", "16"), ("0", "99999999999999"), ("x", "16")])
def test_external_data_beyond_the_file(offset: str, length: str, tmp_path: Path) -> None:
    path = external("w.bin", tmp_path / "m", offset, length)
    (tmp_path / "m" / "w.bin").write_bytes(bytes(64))
    with pytest.raises(ImportGraphError):
        read(path)(np.ones(4, np.float32))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"z": np.ones((2, 8), np.float32)},
        {"x": np.ones((2, 8))},
        {"x": np.ones((2, 9), np.float32)},
        {"x": np.ones(8, np.float32)},
        {"x": None},
        {"x": "text"},
        {"x": [[1, 2], [3]]},
    ],
)
def test_inputs_that_do_not_fit(given: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        read(mlp()[0])(given)


def test_mutated_models() -> None:
    tally = run(first=0, count=300, compare=True)
    assert tally.wrong == []
    assert tally.outcomes["result"] > 10
    assert tally.outcomes["ImportGraphError"] > 50
    assert tally.verdicts["right"] > 10
