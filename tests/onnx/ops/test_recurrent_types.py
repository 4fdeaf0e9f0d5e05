"""LSTM, GRU and RNN in every floating type and on every instruction set, against the interpreter of definitions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from taskmap.options import Options
from tests.onnx.recurrences import BOTH, Array, Case

TYPES: dict[str, tuple[int, Any, float]] = {
    "f16": (TensorProto.FLOAT16, np.float16, 2e-3),
    "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16, 2e-2),
    "f64": (TensorProto.DOUBLE, np.float64, 1e-12),
}
CASES = [
    Case("LSTM", steps=4, hidden=37, lengths=(4, 2), attributes=BOTH),
    Case("GRU", steps=4, hidden=19, full=False),
    Case("RNN", hidden=16, batch=5),
]


def in_type(case: Case, elem: int, numpy_type: Any) -> tuple[ModelProto, dict[str, Array]]:
    """The case's model and inputs, with all floating-point values converted to another type."""
    proto, given = case.model()
    proto.opset_import[0].version = 22
    for stored in proto.graph.initializer:
        name, value = stored.name, numpy_helper.to_array(stored)
        stored.CopyFrom(numpy_helper.from_array(value.astype(numpy_type), name))
    for port in proto.graph.input:
        tensor = port.type.tensor_type
        tensor.elem_type = elem if tensor.elem_type == TensorProto.FLOAT else tensor.elem_type
    return proto, {n: v if n == "lengths" else v.astype(numpy_type) for n, v in given.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
@pytest.mark.parametrize("name", TYPES)
def test_types(name: str, case: Case) -> None:
    elem, numpy_type, tolerance = TYPES[name]
    proto, given = in_type(case, elem, numpy_type)
    expected = load_model(proto, engine=by_definition)(given)
    for have, want in zip(load_model(proto)(given), expected, strict=True):
        assert have.dtype == want.dtype == numpy_type
        np.testing.assert_allclose(have.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
@pytest.mark.parametrize("isa", ["avx2", "generic"])
def test_instruction_sets(isa: str, case: Case) -> None:
    proto, given = case.model()
    expected = load_model(proto, engine=by_definition)(given)
    for have, want in zip(load_model(proto, Options(isa=isa))(given), expected, strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)
