"""`taskmap run`: inputs from files and random ones, comparisons with a verdict, profiles, and clear refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from taskmap.cli import main
from taskmap.cli.run.facts import save as save_outputs
from taskmap.ir.errors import InputError

Capture = pytest.CaptureFixture[str]
W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
X = np.linspace(-2, 2, 20, dtype=np.float32).reshape(5, 4)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = relu(x @ W), x of [batch, 4]; and i + i, of integers."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="mm"),
        helper.make_node("Relu", ["p"], ["y"]),
        helper.make_node("Add", ["i", "i"], ["j"]),
    ]
    ports: list[tuple[str, int, list[int | str]]] = [
        ("x", TensorProto.FLOAT, ["batch", 4]),
        ("i", TensorProto.INT64, [2]),
    ]
    results: list[tuple[str, int, list[int | str]]] = [
        ("y", TensorProto.FLOAT, ["batch", 3]),
        ("j", TensorProto.INT64, [2]),
    ]
    inputs, outputs = ([helper.make_tensor_value_info(n, t, s) for n, t, s in side] for side in (ports, results))
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(W, "w")])
    path = tmp_path / "model.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def run(capsys: Capture, *arguments: object) -> Any:
    """The JSON document."""
    assert main(["run", *(str(a) for a in arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_random_inputs_and_a_comparison(model: Path, capsys: Capture) -> None:
    found = run(capsys, model, "--shape", "batch=5", "--repeat", 3, "--compare", "reference")
    assert found["inputs"]["x"] == {"shape": [5, 4], "dtype": "float32"}
    assert found["assumed"] == {}
    assert found["graphs"] == {"made": 1, "for_many_sizes": 1, "prevented_by": [], "on_host": []}
    assert found["outputs"]["y"]["shape"] == [5, 3]
    assert found["seconds"]["runs"] == 3
    assert all(c["equal"] for c in found["compared"])
    assert len(found["compared"]) == 2


def test_what_prevents_one_graph_is_said(tmp_path: Path, capsys: Capture) -> None:
    node = helper.make_node("Det", ["x"], ["y"], name="volume")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    path = tmp_path / "model.onnx"
    save(helper.make_model(helper.make_graph([node], "g", [x], [y]), ir_version=10), path)
    assert main(["run", str(path), "--shape", "n=3"]) == 0
    said = capsys.readouterr().out
    assert "1 graph: another size costs a compilation" in said
    assert "one graph for all sizes is prevented by the Det node 'volume': Det of symbolic sizes" in said
    assert "on the host: Det" in said


def test_text_for_people(model: Path, capsys: Capture) -> None:
    assert main(["run", str(model), "--compare", "reference", "--profile"]) == 0
    out = capsys.readouterr().out
    assert "the dimension batch is assumed to be 1 (--shape batch=...)" in out
    assert "y: equal to reference" in out
    assert "first result after" in out
    assert "cpu.matmul" in out
    assert "\033" not in out


def test_a_difference_is_the_exit_status(model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [np.ones((1, 3), np.float32) * 9, np.zeros(2, np.int64)]
    monkeypatch.setattr("taskmap.cli.run.onnx.other_outputs", lambda *_: wrong)
    assert main(["run", str(model), "--compare", "reference", "--range", "i=1:5"]) == 1
    out = capsys.readouterr().out
    assert "y: different to reference" in out
    assert "j: different to reference" in out


@pytest.mark.parametrize("kind", ["npy", "npz", "pb", "bin"])
def test_inputs_from_files(model: Path, tmp_path: Path, capsys: Capture, kind: str) -> None:
    file, more = tmp_path / f"x.{kind}", []
    if kind == "npy":
        np.save(file, X)
    elif kind == "npz":
        np.savez(file, x=X)
    elif kind == "pb":
        file.write_bytes(numpy_helper.from_array(X, "x").SerializeToString())
    else:
        X.tofile(file)
        more = ["--shape", "batch=5"]
    saved = tmp_path / "out.npz"
    run(capsys, model, "--input", file if kind == "npz" else f"x={file}", *more, "--save", saved)
    with np.load(saved) as outputs:
        np.testing.assert_allclose(outputs["y"], np.maximum(X @ W, 0), rtol=1e-5, atol=1e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([file.name, "model.onnx", "out.npz"])


def test_files_in_order_need_no_name(model: Path, tmp_path: Path, capsys: Capture) -> None:
    for name, array in (("a", X), ("b", np.array([3, 4]))):
        np.save(tmp_path / f"{name}.npy", array)
    found = run(capsys, model, "--input", tmp_path / "a.npy", "--input", tmp_path / "b.npy")
    assert found["outputs"]["j"]["max"] == 8


def test_ranges_and_seeds(model: Path, capsys: Capture) -> None:
    one, other = (run(capsys, model, "--range", "10:20", "--range", "i=5:6", "--seed", seed) for seed in (1, 2))
    assert one["outputs"]["j"]["min"] == 10
    assert one["outputs"]["y"] != other["outputs"]["y"]


def test_profile_and_trace(model: Path, tmp_path: Path, capsys: Capture) -> None:
    trace = tmp_path / "trace.json"
    found = run(capsys, model, "--profile", "--trace", trace, "--repeat", 2)
    assert found["profile"]["groups"]
    events = json.loads(trace.read_text())["traceEvents"]
    assert events
    assert all(e["dur"] >= 0 for e in events)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--shape", "barch=8"], "the model has no dimension 'barch'"),
        (["--range", "z=0:1"], "the model has no range 'z'"),
        (["--input", "z=z.npy"], "belongs to no input"),
        (["--input", "x=none.npy"], "cannot be read"),
        (["--input", "x=short.bin"], "holds 3 numbers of float32"),
        (["--input", "empty"], "there is no input_0.pb in it"),
        (["--input", "x=empty"], "which holds several"),
        (["--input", "x=none.txt"], "has an unknown format"),
        (["--trace", "t.json"], "a trace needs a profile"),
        (["--shape", "batch=99999999999"], "larger than 8 GiB"),
        (["--save", "no/such/folder/out.npz"], "outputs cannot be written"),
    ],
)
def test_refusals(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, more: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "short.bin").write_bytes(bytes(12))
    assert main(["run", str(model), *more]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--shape", "eight"], "'eight' is neither the size of a dimension"),
        (["--range", "2:1"], "'2:1' is not LOW:HIGH"),
        (["--range", "x"], "'x' is not LOW:HIGH"),
        (["--repeat", "0"], "of at least 1"),
        (["--warmup", "-1"], "of at least 0"),
        (["--rtol", "-1"], "'-1' is not a number of at least 0"),
        (["--tune", "soon"], "'soon' is not a number of seconds"),
    ],
)
def test_bad_options(model: Path, capsys: Capture, more: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", str(model), *more])
    err = capsys.readouterr().err
    assert "usage: taskmap run" in err
    assert said in err


def test_a_folder_of_test_data(model: Path, tmp_path: Path, capsys: Capture) -> None:
    """ONNX's layout: input_0.pb and so on; other files in the folder are ignored."""
    arrays: list[Any] = [np.full((3, 4), 2, np.float32), np.array([1, 1], np.int64)]
    for n, x in enumerate(arrays):
        (tmp_path / f"input_{n}.pb").write_bytes(numpy_helper.from_array(x).SerializeToString())
    (tmp_path / "output_0.pb").write_bytes(b"?")
    found = run(capsys, model, "--input", tmp_path)
    assert found["inputs"]["x"]["shape"] == [3, 4]


def test_outputs_of_any_name_are_saved(tmp_path: Path) -> None:
    """Also "file", which np.savez uses itself; a sequence is saved tensor by tensor; other values than numbers are
    refused."""
    path = tmp_path / "out.npz"
    save_outputs(path, {"file": np.arange(3), "s": [np.ones(1), np.zeros(2)], "none": None})
    with np.load(path, allow_pickle=False) as saved:
        assert sorted(saved.files) == ["file", "s.0", "s.1"]
        np.testing.assert_array_equal(saved["file"], np.arange(3))
    before = path.read_bytes()
    with pytest.raises(InputError, match="not a tensor of numbers"):
        save_outputs(path, {"words": np.array(["a"], object)})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["out.npz"]


def test_a_pickle_is_not_loaded(model: Path, tmp_path: Path, capsys: Capture) -> None:
    np.save(tmp_path / "x.npy", np.array([object()], object), allow_pickle=True)
    assert main(["run", str(model), "--input", f"x={tmp_path / 'x.npy'}"]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_explain_prints_every_kernel_and_writes_a_page(
    model: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["explain", str(model), "--shape", "batch=5"]) == 0
    out = capsys.readouterr().out
    assert "cpu.matmul" in out
    assert "· roofline " in out
    assert "group 0     mm" in out, "the ONNX node's name"
    assert out.endswith("\nthe page is model.taskmap.html\n")
    page = (tmp_path / "model.taskmap.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "<h1>model.onnx</h1>" in page
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "model.taskmap.html"]


def test_explain_writes_where_it_is_told(model: Path, tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "page.html"
    assert main(["explain", str(model), "--html", str(page), "--json", "--threads", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["html"] == str(page)
    assert found["assumed"] == {"batch": 1}
    assert found["threads"] == 1
    assert found["peaks"]["arithmetic"][0]["rate"] > 1e8
    page.unlink()
    assert main(["explain", str(model), "--no-html", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["html"] is None
    assert not page.exists()
    assert main(["explain", str(model), "--html", str(tmp_path / "no" / "page.html")]) == 2
    assert "the page cannot be written" in capsys.readouterr().err


def test_a_model_is_tuned(tmp_path: Path, cache_dir: Path, capsys: Capture) -> None:
    weight = numpy_helper.from_array(np.ones((32, 64), np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [16, d]) for n, d in (("x", 32), ("y", 64)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    path = tmp_path / "small.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    assert main(["tune", str(path), "--seconds", "20", "--threads", "1"]) == 0
    capsys.readouterr()
    assert main(["cache", "best", "--json"]) == 0
    assert "1x16x64x32" in capsys.readouterr().out


def test_a_run_of_a_model_loads_neither_reports_nor_what_gpus_need() -> None:
    code = """
import sys
import taskmap.cli.run.onnx
unused = ("cli.run.layers", "report", "archive.targets", "backend.cuda.codegen", "backend.sim")
assert not [m for m in sys.modules for u in unused if m == f"taskmap.{u}" or m.startswith(f"taskmap.{u}.")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
