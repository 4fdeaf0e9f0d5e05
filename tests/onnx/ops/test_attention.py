"""The standard's Attention against its reference in float64, with many and with few queries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from taskmap.errors import ImportGraphError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.models import model

FLOAT, HALF, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BOOL
ELEMS = {"float32": FLOAT, "float16": HALF, "bool": BOOL, "int64": TensorProto.INT64}
NAMES = ["Q", "K", "V", "mask", "past_key", "past_value", "lengths"]


def case(
    queries: int, keys: int, heads: int = 4, shared: int = 2, past: int = 0, mask: str = "", flat: bool = False
) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs by name, of batch 2 and head size 16."""
    rng = np.random.default_rng(queries * keys)

    def draw(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    given = {"Q": draw(2, heads, queries, 16), "K": draw(2, shared, keys, 16), "V": draw(2, shared, keys, 16)}
    if flat:
        given = {n: v.transpose(0, 2, 1, 3).reshape(2, v.shape[2], -1) for n, v in given.items()}
    if mask == "bool":
        given["mask"] = rng.random((queries, past + keys)) < 0.8
        given["mask"][:, 0] = True
    elif mask:
        given["mask"] = draw(1, heads, queries, past + keys)
    if past:
        given |= {"past_key": draw(2, shared, past, 16), "past_value": draw(2, shared, past, 16)}
    return given


def attention(given: dict[str, Any], outputs: int, **attributes: Any) -> Any:
    """A model of one Attention with these inputs."""
    last = max(NAMES.index(n) for n in given)
    node = helper.make_node(
        "Attention", [n if n in given else "" for n in NAMES[: last + 1]], ["Y", "PK", "PV"][:outputs], **attributes
    )
    ports: dict[str, tuple[int, list[Any]]] = {n: (ELEMS[v.dtype.name], list(v.shape)) for n, v in given.items()}
    return model([node], ports, ["Y", "PK", "PV"][:outputs], opset=24)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "many queries, causal": (case(40, 70), {"is_causal": 1}),
    "many queries, a mask of bools": (case(33, 64, mask="bool"), {"scale": 0.2}),
    "many queries after a past": (case(34, 40, past=30, mask="float"), {"is_causal": 1}),
    "few queries, causal": (case(5, 9), {"is_causal": 1}),
    "few queries after a past": (case(3, 3, past=12), {"is_causal": 1}),
    "flat": (case(4, 9, flat=True, mask="float"), {"q_num_heads": 4, "kv_num_heads": 2}),
    "lengths": ({**case(3, 9), "lengths": np.array([4, 9])}, {"is_causal": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(name: str) -> None:
    given, attributes = CASES[name]
    proto = attention(given, 3 if "past_key" in given else 1, **attributes)
    wide = {n: v.astype(np.float64) if v.dtype == np.float32 else v for n, v in given.items()}
    want: Any = ReferenceEvaluator(proto).run(None, wide)
    for got, expected in zip(load_model(proto)(given), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)


def test_half_precision_is_rounded_once() -> None:
    """The largest error is half a unit in the last place, which no implementation that rounds its scores attains."""
    given = {n: v.astype(np.float16) for n, v in case(6, 20).items()}
    (got,) = load_model(attention(given, 1), engine=by_definition)(given)
    (want,) = ReferenceEvaluator(attention(given, 1)).run(None, {n: v.astype(np.float64) for n, v in given.items()})
    assert np.abs(got - want).max() <= 0.502 * np.spacing(np.abs(want).max().astype(np.float16))
    assert (np.abs(got - want) <= 0.51 * np.spacing(np.abs(want).astype(np.float16))).all()


def test_a_query_that_may_look_at_nothing_gives_zeros() -> None:
    given = {**case(3, 4), "mask": np.array([[True] * 4, [False] * 4, [True] * 4])}
    (got,) = load_model(attention(given, 1), engine=by_definition)(given)
    assert (got[:, :, 1] == 0).all()
    assert (got[:, :, 0] != 0).all()


@pytest.mark.parametrize("attributes", [{"softcap": 2.0}, {"softmax_precision": TensorProto.DOUBLE}])
def test_the_rest_runs_by_the_function_body(attributes: dict[str, Any]) -> None:
    given = case(3, 5)
    proto = attention(given, 1, **attributes)
    want: Any = ReferenceEvaluator(proto).run(None, given)
    (got,) = load_model(proto, engine=by_definition)(given)
    np.testing.assert_allclose(got, want[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [{"scale": -1.0}, {"scale": float("nan")}, {"softcap": -2.0}])
def test_numbers_without_a_meaning_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ImportGraphError, match=r"a (scale|soft cap) of"):
        load_model(attention(case(3, 4), 1, **wrong))(case(3, 4))
