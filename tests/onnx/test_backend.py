"""taskmap behind ONNX's backend interface."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx.backend.base import Backend

from taskmap.ir.errors import NoDeviceError
from taskmap.onnx import backend as onnx_backend
from tests.onnx.models import mlp


def test_the_standard_functions() -> None:
    model, inputs = mlp()
    (x,) = inputs.values()
    prepared = onnx_backend.prepare(model)
    (by_name,) = prepared.run(inputs)
    (in_order,) = prepared.run([x])
    (at_once,) = onnx_backend.run_model(model, [x])
    np.testing.assert_array_equal(by_name, in_order)
    np.testing.assert_array_equal(by_name, at_once)
    assert prepared.run([x]).y is not None  # type: ignore[attr-defined]  # results have the names of the outputs
    assert issubclass(onnx_backend.TaskmapBackend, Backend)


def test_a_single_node() -> None:
    x = np.array([[-1, 2]], np.float32)
    node = helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.5)
    (y,) = onnx_backend.run_node(node, [x])
    np.testing.assert_array_equal(y, [[-0.5, 2]])


def test_devices() -> None:
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("TPU")
    with pytest.raises(NoDeviceError):
        onnx_backend.prepare(mlp()[0], "TPU:0")
