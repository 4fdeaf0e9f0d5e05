"""`taskmap tune model.onnx`: all its operators, with symbolic sizes from --shape."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from taskmap.cli import main
from taskmap.tuning.database import Database


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A convolution of images of a symbolic number, and a product."""
    weights = [np.ones((8, 3, 3, 3), np.float32), np.ones((6, 8), np.float32)]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w0"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("GlobalAveragePool", ["c"], ["p"]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("Gemm", ["f", "w1"], ["y"], transB=1),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])],
        [numpy_helper.from_array(w, f"w{n}") for n, w in enumerate(weights)],
    )
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_all_operators_are_tuned(model: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tune", str(model), "--shape", "n=3", "--first", "1", "--seconds", "20", "--threads", "1"]
    assert main(arguments) == 0
    assert "cost model (/ best)" in capsys.readouterr().out
    database = Database(cache_dir / "tuning.sqlite")
    assert {r.operator.shapes for r in database.records()} == {"?3x3x8x8*8x3x3x3", "1x?3x6x8"}
    database.close()


def test_the_simulator_tunes_no_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(model), "--target", "cuda-sim"]) == 2
    assert "a model cannot be tuned in the simulator" in capsys.readouterr().err
