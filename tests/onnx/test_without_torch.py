"""ONNX models are compiled and run for the CPU without PyTorch: a process with an empty store does not load it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.onnx.models import FLOAT, Example, convnet, loop, model

DRIVER = """
import sys
from taskmap.cli import main
status = main(sys.argv[1:])
print(sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "functorch")))
sys.exit(status)
"""
CALLED = """
import sys
import ml_dtypes
import numpy as np
import taskmap.onnx.backend
from taskmap.onnx.model import load_model
model = load_model(sys.argv[1])
x = np.load(sys.argv[2])
first, second = model(x)[0], model(x)[0]
np.testing.assert_array_equal(first, second)
print("torch" in sys.modules)
import torch
third = model(torch.from_numpy(x))[0]
np.testing.assert_array_equal(first, third)
print(torch.get_num_threads() > 0)
"""


def transformer() -> Example:
    """A block of attention and a feed-forward network, with normalisations and an embedding."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.1).astype(np.float32)

    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("LayerNormalization", ["e", "s1", "b1"], ["n1"]),
        *(helper.make_node("MatMul", ["n1", f"w{p}"], [f"{p}0"]) for p in "qkv"),
        *(helper.make_node("Reshape", [f"{p}0", "heads"], [f"{p}1"]) for p in "qkv"),
        helper.make_node("Transpose", ["q1"], ["q"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["k1"], ["k"], perm=[0, 2, 3, 1]),
        helper.make_node("Transpose", ["v1"], ["v"], perm=[0, 2, 1, 3]),
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["joined"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["joined", "whole"], ["flat"]),
        helper.make_node("MatMul", ["flat", "wo"], ["o"]),
        helper.make_node("Add", ["o", "e"], ["r1"]),
        helper.make_node("LayerNormalization", ["r1", "s2", "b2"], ["n2"]),
        helper.make_node("MatMul", ["n2", "up"], ["u"]),
        helper.make_node("Gelu", ["u"], ["g"]),
        helper.make_node("MatMul", ["g", "down"], ["d"]),
        helper.make_node("Add", ["d", "r1"], ["y"]),
    ]
    stored = {
        "table": weight(50, 32), "heads": np.array([0, 0, 4, 8]), "whole": np.array([0, 0, 32]),
        "scale": np.array(8**-0.5, np.float32), "up": weight(32, 64), "down": weight(64, 32), "wo": weight(32, 32),
        **{f"w{p}": weight(32, 32) for p in "qkv"},
        **{f"s{i}": weight(32) + 1 for i in (1, 2)}, **{f"b{i}": weight(32) for i in (1, 2)},
    }  # fmt: skip
    ids = rng.integers(0, 50, (2, 6))
    return model(nodes, {"ids": (onnx.TensorProto.INT64, ["batch", 6])}, ["y"], stored), {"ids": ids}


def on_host() -> Example:
    """An operator that numpy runs inside a graph, between kernels."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("TopK", ["a", "k"], ["best", "where"]),
        helper.make_node("Neg", ["best"], ["y"]),
    ]
    x = np.linspace(-1, 2, 300, dtype=np.float32)
    return model(nodes, {"x": (FLOAT, [300])}, ["y", "where"], {"k": np.array([40])}), {"x": x}


EXAMPLES = {"convolutions": convnet, "transformer": transformer, "host": on_host, "loop": loop}


def loaded(*words: object) -> str:
    """The output of a process that runs the command line; the last line names the modules of PyTorch that it loaded."""
    command = [sys.executable, "-c", DRIVER, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_cold_run_does_not_load_pytorch(name: str, tmp_path: Path) -> None:
    proto, inputs = EXAMPLES[name]()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    np.savez(tmp_path / "inputs.npz", **inputs)  # type: ignore[arg-type]  # its stubs know no keywords
    said = loaded("run", path, "--input", tmp_path / "inputs.npz", "--compare", "reference").splitlines()
    assert said[-1] == "[]"
    assert any("equal to reference" in line for line in said)
    assert not any("different" in line for line in said)


@pytest.mark.parametrize("name", ["convolutions", "transformer"])
@pytest.mark.parametrize("words", [(), ("--shape", "{}=2")])
def test_a_cold_compilation_does_not_load_pytorch(name: str, words: tuple[str, ...], tmp_path: Path) -> None:
    proto, _ = EXAMPLES[name]()
    path, archive = tmp_path / "model.onnx", tmp_path / "model.taskmap"
    onnx.save(proto, path)
    dimension = "n" if name == "convolutions" else "batch"
    shape = [word.format(dimension) for word in words]
    assert loaded("compile", path, "-o", archive, *shape).splitlines()[-1] == "[]"
    assert loaded("run", archive, "--shape", f"{dimension}=2", "--onnx", path, "--compare", "reference").endswith("[]")


def test_python_needs_it_only_for_its_own_tensors(tmp_path: Path) -> None:
    """Models run before PyTorch is loaded, and take its tensors afterwards."""
    proto, inputs = convnet()
    onnx.save(proto, tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", inputs["x"])
    command = [sys.executable, "-c", CALLED, str(tmp_path / "model.onnx"), str(tmp_path / "x.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["False", "True"]), done.stderr
