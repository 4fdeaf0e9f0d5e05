"""Strings as inputs and outputs of models: operators that move them, and operators on text, against ONNX Runtime."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from taskmap.errors import InputError
from taskmap.graph.importers.onnx.strings import STRINGS, StringTable
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.models import FLOAT, INT64, model
from tests.onnx.rival import Array, onnxruntime_results

STRING = TensorProto.STRING
WORDS = np.array([["one", "zwölf", ""], ["two", "one", "A b"]], object)
NUMBERS = np.array(["1.5", "-3", "2e3", "inf", "nan", " 7.25"], object)
C_LOCALE: dict[str, Any] = {"locale": "C"}
Case = tuple[str, dict[str, Any], list[Array], int]


def text(*values: str) -> Array:
    """An array of strings."""
    return np.array(values, object)


CASES: dict[str, Case] = {
    "transpose": ("Transpose", {"perm": [1, 0]}, [WORDS], 1),
    "reshape": ("Reshape", {}, [WORDS, np.array([3, 2])], 1),
    "gather": ("Gather", {"axis": 1}, [WORDS, np.array([2, 0])], 1),
    "concat": ("Concat", {"axis": 0}, [WORDS, WORDS[:1]], 1),
    "equal": ("Equal", {}, [WORDS, text("one", "one", "A b")], 1),
    "where": ("Where", {}, [WORDS == "one", WORDS, text("x", "y", "z")], 1),
    "tile": ("Tile", {}, [WORDS, np.array([1, 2])], 1),
    "unique": ("Unique", {"sorted": 1}, [WORDS.reshape(-1)], 4),
    "slice": ("Slice", {}, [WORDS, np.array([1]), np.array([3]), np.array([1])], 1),
    "scatter": ("ScatterElements", {"axis": 1}, [WORDS, np.array([[1], [0]]), np.array([["p"], ["q"]], object)], 1),
    "lower": ("StringNormalizer", C_LOCALE | {"case_change_action": "LOWER"}, [WORDS[1]], 1),
    "stop words": (
        "StringNormalizer",
        C_LOCALE | {"stopwords": ["ONE", "two"], "case_change_action": "UPPER"},
        [WORDS[1:]],
        1,
    ),
    "case matters": (
        "StringNormalizer",
        C_LOCALE | {"stopwords": ["ONE", "two"], "is_case_sensitive": 1},
        [WORDS[1]],
        1,
    ),
    "all stop": ("StringNormalizer", C_LOCALE | {"stopwords": ["one", "two", "a b"]}, [WORDS[1]], 1),
    "joined": ("StringConcat", {}, [WORDS, text("-x", "", "ß")], 1),
    "split": ("StringSplit", {}, [text("a bc  d", "", "x")], 2),
    "split at": ("StringSplit", {"delimiter": ",", "maxsplit": 1}, [text("a,b,c", "d", ",e")], 2),
    "match": ("RegexFullMatch", {"pattern": "[a-z]+"}, [WORDS], 1),
    "to floats": ("Cast", {"to": FLOAT}, [NUMBERS], 1),
    "to whole numbers": ("Cast", {"to": INT64}, [text("12", "-3", "+4")], 1),
    "from floats": ("Cast", {"to": STRING}, [np.array([0.1, -2.0, 1e10, 1e-7, np.inf, 12345.678], np.float32)], 1),
    "from doubles": ("Cast", {"to": STRING}, [np.array([0.1, -2.0, 1 / 3, -np.inf])], 1),
    "from whole numbers": ("Cast", {"to": STRING}, [np.array([1, -20])], 1),
}


def single(op: str, attributes: dict[str, Any], inputs: list[Array], results: int) -> tuple[Any, dict[str, Array]]:
    """A model of one operator, and its inputs; whole numbers are part of the model."""
    names = [f"x{i}" for i in range(len(inputs))]
    given = dict(zip(names, inputs, strict=True))
    stored = {} if op == "Cast" else {k: v for k, v in given.items() if v.dtype == np.int64}
    feeds = {k: v for k, v in given.items() if k not in stored}
    outputs = [f"y{i}" for i in range(results)]
    ports = {
        k: (STRING if v.dtype == object else int(helper.np_dtype_to_tensor_dtype(v.dtype)), list(v.shape))
        for k, v in feeds.items()
    }
    return model([helper.make_node(op, names, outputs, **attributes)], ports, outputs, stored), feeds


@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str) -> None:
    pytest.importorskip("onnxruntime")
    proto, feeds = single(*CASES[name])
    theirs = onnxruntime_results(proto, feeds)
    for a, b in zip(load_model(proto, engine=by_definition)(feeds), theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype.kind == "f":
            np.testing.assert_array_equal(a, b)
        else:
            assert a.tolist() == b.tolist()


def looked_up(x: str, y: str) -> list[Any]:
    """Nodes that choose among the strings of ``x`` and look the result up."""
    table: dict[str, Any] = {"keys_strings": ["one", "two"], "values_floats": [1.0, 2.0], "default_float": -1.0}
    return [
        helper.make_node("Gather", [x, "order"], ["moved"], axis=1),
        helper.make_node("LabelEncoder", ["moved"], ["found"], domain="ai.onnx.ml", **table),
        helper.make_node("Mul", ["found", "found"], [y]),
    ]


def lookup_model(shape: list[Any]) -> Any:
    proto = model(looked_up("x", "y"), {"x": (STRING, shape)}, ["y"], {"order": np.array([1, 0])})
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return proto


def expected(words: Array) -> Array:
    values: Mapping[str, float] = {"one": 1.0, "two": 2.0}
    return np.array([[values.get(w, -1.0) ** 2 for w in row[[1, 0]]] for row in words], np.float32)


def test_strings_of_every_size_in_one_compiled_graph() -> None:
    run = load_model(lookup_model(["n", 2]))
    for words in (np.array([["one", "x"], ["two", "one"], ["", "two"]]), np.array([["two", "one"]], object)):
        np.testing.assert_array_equal(run(words)[0], expected(words.astype(object)))
    np.testing.assert_array_equal(run([["one", "two"]])[0], [[4, 1]])
    np.testing.assert_array_equal(run(np.array([[b"one", b"?"]]))[0], [[1, 1]])


def test_threads_call_with_strings_at_once() -> None:
    run = load_model(lookup_model(["n", 2]))
    draw = np.random.default_rng(3)
    given = [draw.choice(["one", "two", *(f"w{i}" for i in range(50))], (40, 2)).astype(object) for _ in range(24)]
    got: dict[int, Array] = {}

    def some(first: int) -> None:
        for i in range(first, 24, 4):
            got[i] = run(given[i])[0]

    workers = [threading.Thread(target=some, args=(i,)) for i in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    for i, words in enumerate(given):
        np.testing.assert_array_equal(got[i], expected(words))


def test_what_is_no_text_is_refused() -> None:
    run = load_model(lookup_model(["n", 2]), engine=by_definition)
    for given, message in (
        (np.zeros((1, 2)), "of float64"),
        (np.array([["one", 2]], object), "holds 2"),
        (np.array([[b"\xff", b""]]), "not text"),
        (np.array([["one"]]), "has shape"),
    ):
        with pytest.raises(InputError, match=message):
            run(given)
    proto, _ = single(*CASES["to floats"])
    with pytest.raises(InputError, match="'x' is not a number"):
        load_model(proto, engine=by_definition)(text("1", "x", "2", "3", "4", "5"))


def test_the_table_gives_up_what_no_model_holds() -> None:
    table = StringTable(most=3)
    own = table.numbers(text("red", "green"), keep=True)
    with table.in_use():
        with table.in_use():
            numbers = table.numbers(text(*(f"w{i}" for i in range(10)), "red"))
        assert table.texts(numbers).tolist() == [*(f"w{i}" for i in range(10)), "red"]
        assert numbers[-1] == own[0]
    assert len(table) == 3  # "" too
    assert table.texts(own).tolist() == ["red", "green"]
    again = table.numbers(text("w3"))
    assert int(again[0]) not in numbers.tolist()


def test_strings_of_the_model_outlive_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's results on a model's own strings are known when the model is read, however many strings follow."""
    nodes = [
        helper.make_node("StringConcat", ["a", "b"], ["own"]),
        helper.make_node("Gather", ["own", "i"], ["y"]),
        helper.make_node("Identity", ["x"], ["z"]),
    ]
    stored = {"a": text("one", "two"), "b": text("-1", "-2")}
    proto = model(nodes, {"i": (INT64, ["n"]), "x": (STRING, ["m"])}, ["y", "z"], stored)
    run = load_model(proto)
    monkeypatch.setattr(STRINGS, "_most", 10)
    held = set()
    for first in range(0, 200, 50):
        words = text(*(f"w{i}" for i in range(first, first + 50)))
        y, z = run(np.array([1, 0, 1]), words)
        assert y.tolist() == ["two-2", "one-1", "two-2"]
        assert z.tolist() == words.tolist()
        held.add(len(STRINGS))
    assert len(held) == 1
