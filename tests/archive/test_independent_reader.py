"""docs/archive-format.md suffices to write a reader: one of about 60 lines, which imports nothing of taskmap, runs an
archive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

import taskmap

READER = Path(__file__).parent / "independent_reader.py"


def test_a_reader_from_the_page_alone(tmp_path: Path) -> None:
    w = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Softmax", ["p"], ["q"]),
        helper.make_node("MatMul", ["q", "v"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])
    weights = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.ones((3, 5), np.float32), "v")]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    path = tmp_path / "model.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    taskmap.compile_onnx(path, tmp_path / "model.taskmap")
    given = np.linspace(-2, 2, 28, dtype=np.float32).reshape(7, 4)
    np.save(tmp_path / "x.npy", given)
    program = (
        "import sys; from pathlib import Path; import numpy as np\n"
        f"sys.path.insert(0, {str(READER.parent)!r}); from independent_reader import Reader\n"
        "(y,) = Reader(Path('model.taskmap'))([np.load('x.npy')]); np.save('y.npy', y)\n"
        "assert not [m for m in sys.modules if m.startswith(('taskmap', 'torch', 'onnx'))]"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    (expected,) = taskmap.load(tmp_path / "model.taskmap")(given)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected)
    lines = READER.read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) <= 62
    assert not [line for line in lines if line.startswith(("import taskmap", "from taskmap"))]
