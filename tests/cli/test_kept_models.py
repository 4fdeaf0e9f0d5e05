"""`taskmap run model.onnx` a second time: nothing is compiled, and a change of any of its inputs is noticed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from taskmap.archive.file import ArchiveFile
from taskmap.cli import main
from taskmap.onnx import kept_models
from taskmap.onnx.kept_models import Request, find

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parent.parent.parent


def write(path: Path, scale: float, size: int | str = "n", external: bool = False) -> Path:
    """y = x * [scale, 2 scale, ...], x of [size, 40]."""
    w = numpy_helper.from_array(np.arange(1, 41, dtype=np.float32) * np.float32(scale), "w")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size, 40])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [size, 40])],
        [w],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch, cache_dir: Path) -> None:
    """Treats files written just now as settled. The store is a test's own: a model is kept only while the tuning cache
    in it does not change."""
    monkeypatch.setattr(kept_models, "_SETTLED_SECONDS", 0.0)


def run(capsys: Capture, model: Path, *arguments: str) -> Any:
    """The JSON document, and the output."""
    out = model.parent / "out.npz"
    assert main(["run", str(model), "--json", "--save", str(out), *arguments]) == 0
    facts = json.loads(capsys.readouterr().out)
    return facts, np.load(out)["y"]


def test_the_second_run_gives_the_same_and_compiles_nothing(tmp_path: Path, capsys: Capture) -> None:
    model = write(tmp_path / "model.onnx", 3.0)
    first, y = run(capsys, model, "--shape", "n=5")
    assert "kept" not in first
    second, again = run(capsys, model, "--shape", "n=5", "--compare", "reference")
    assert second["kept"]
    np.testing.assert_array_equal(y, again)
    assert second["compared"][0]["equal"]
    fresh, again = run(capsys, model, "--shape", "n=5", "--fresh")
    assert "kept" not in fresh
    np.testing.assert_array_equal(y, again)


def test_a_kept_model_needs_neither_torch_nor_onnx(tmp_path: Path, capsys: Capture) -> None:
    model = write(tmp_path / "model.onnx", 3.0, 4)
    run(capsys, model)
    program = (
        "import sys\nfrom taskmap.onnx import kept_models\nfrom taskmap.cli import main\n"
        "kept_models._SETTLED_SECONDS = 0\n"
        f"assert main(['run', {str(model)!r}]) == 0\nassert not {{'torch', 'onnx'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, cwd=ROOT)


def test_the_manifest_of_a_kept_model_is_one_line(tmp_path: Path, capsys: Capture, cache_dir: Path) -> None:
    run(capsys, write(tmp_path / "model.onnx", 3.0, 4))
    (kept,) = (cache_dir / "objects").glob("*.taskmap")
    manifest = ArchiveFile(kept).manifest
    assert json.loads(manifest)["plans"]
    assert b"\n" not in manifest


def test_another_model_under_the_name_is_another_model(tmp_path: Path, capsys: Capture) -> None:
    model = write(tmp_path / "model.onnx", 3.0, 2)
    _, y = run(capsys, model)
    times = os.stat(model)
    write(model, 5.0, 2)
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))  # the same size and time of change
    facts, changed = run(capsys, model)
    assert "kept" not in facts
    np.testing.assert_allclose(changed, y / 3 * 5, rtol=1e-6)


def test_a_change_of_external_data_is_noticed(tmp_path: Path, capsys: Capture) -> None:
    model = write(tmp_path / "model.onnx", 3.0, 2, external=True)
    _, y = run(capsys, model)
    assert run(capsys, model)[0]["kept"]
    data = tmp_path / "weights.bin"
    with open(data, "r+b") as file:
        file.write(np.full(40, 7.0, np.float32).tobytes())
    facts, changed = run(capsys, model)
    assert "kept" not in facts
    assert not np.array_equal(y, changed)


def test_other_sizes_than_those_kept(tmp_path: Path, capsys: Capture) -> None:
    model = write(tmp_path / "model.onnx", 3.0, 6)
    wanted = tmp_path / "x.npy"
    np.save(wanted, np.ones((6, 40), np.float32))
    run(capsys, model, "--input", f"x={wanted}")
    assert run(capsys, model, "--input", f"x={wanted}")[0]["kept"]
    general = write(tmp_path / "general.onnx", 3.0)
    for n in (3, 7):
        assert run(capsys, general, "--shape", f"n={n}")[1].shape == (n, 40)
        assert run(capsys, general, "--shape", f"n={n}")[1].shape == (n, 40)


def test_a_damaged_archive_is_made_again(tmp_path: Path, capsys: Capture) -> None:
    model = write(tmp_path / "model.onnx", 3.0, 2)
    _, y = run(capsys, model)
    kept = find(Request(model, ("isa=None", "threads=None"), None))
    assert kept is not None
    content = bytearray(kept.archive.read_bytes())
    content[len(content) // 2] ^= 255
    kept.archive.write_bytes(content)
    facts, again = run(capsys, model)
    assert "kept" not in facts
    np.testing.assert_array_equal(y, again)
    assert run(capsys, model)[0]["kept"]


def test_a_file_that_changed_just_now_is_not_kept(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next change could have the same time."""
    monkeypatch.setattr(kept_models, "_SETTLED_SECONDS", 1e6)
    model = write(tmp_path / "model.onnx", 3.0, 2)
    run(capsys, model)
    assert "kept" not in run(capsys, model)[0]


def test_a_model_that_no_archive_can_hold_runs_as_before(tmp_path: Path, capsys: Capture) -> None:
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [1, "k"])],
    )
    model = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), model)
    for _ in range(2):
        assert "kept" not in run(capsys, model)[0]


def test_another_taskmap_compiles_anew(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write(tmp_path / "model.onnx", 3.0, 2)
    run(capsys, model)
    request = Request(model, ("isa=None", "threads=None"), None)
    assert find(request) is not None
    monkeypatch.setattr("taskmap.__version__", "0.0.0+other")
    assert find(request) is None


def halving(path: Path, height: int | str, batch: int | str = 1) -> Path:
    """Convolutions of stride 2 and additions: sizes inside that are (h + 1) // 2 of the one before."""
    draw = np.random.default_rng(0)
    nodes, weights, name = [], [], "x"
    for i in range(4):
        w = (draw.standard_normal((6, 6, 3, 3)) / 5).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        nodes.append(helper.make_node("Conv", [name, f"w{i}"], [f"c{i}"], strides=[2, 2], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Conv", [f"c{i}", f"w{i}"], [f"d{i}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Add", [f"c{i}", f"d{i}"], [name := f"e{i}"]))
    nodes.append(helper.make_node("Flatten", [name], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 6, height, "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def test_a_graph_with_sizes_of_its_own_is_kept_for_all_sizes(tmp_path: Path, capsys: Capture) -> None:
    model = halving(tmp_path / "model.onnx", "h", "n")
    first, _ = run(capsys, model, "--shape", "h=33", "--shape", "w=50", "--shape", "n=2")
    assert "kept" not in first
    assert first["graphs"]["for_many_sizes"] == 1
    for n, h, w in ((2, 33, 50), (1, 33, 50), (3, 64, 47), (1, 1, 9)):
        sizes = ("--shape", f"h={h}", "--shape", f"w={w}", "--shape", f"n={n}")
        facts, y = run(capsys, model, *sizes, "--compare", "reference")
        assert facts["kept"]
        assert facts["compared"][0]["equal"]
        _, fresh = run(capsys, model, *sizes, "--fresh")
        np.testing.assert_array_equal(y, fresh)


def deciding(path: Path) -> Path:
    """y = 3 x, or x + 3 where c is false."""
    branches = [
        helper.make_graph([helper.make_node(op, ["x", "k"], [op])], op, [], [helper.make_empty_tensor_value_info(op)])
        for op in ("Mul", "Add")
    ]
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(np.array(3, np.float32), "k")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def test_a_model_is_kept_for_the_values_that_decided(tmp_path: Path, capsys: Capture) -> None:
    model = deciding(tmp_path / "model.onnx")
    x = np.array([1, 5, -2], np.float32)
    files = {value: tmp_path / f"{value}.npz" for value in (True, False)}
    for value, file in files.items():
        np.savez(file, c=np.array(value), x=x)  # in another order than the model's
    for value, kept in ((True, False), (True, True), (False, False), (False, True), (True, False)):
        facts, y = run(capsys, model, "--input", str(files[value]), "--compare", "reference")
        assert ("kept" in facts) is kept
        assert facts["compared"][0]["equal"]
        np.testing.assert_array_equal(y, x * 3 if value else x + 3)


def computing(path: Path, size: int | str) -> Path:
    """x, or x twice where its sum is not positive; then three times that, or it twice where its maximum is at most 10:
    two computed values decide in turn."""

    def branches(name: str, of: str) -> dict[str, Any]:
        made = {}
        for which, times in (("then_branch", 1), ("else_branch", 2)):
            node = helper.make_node("Concat", [of] * times, [f"{name}_{times}"], axis=0)
            made[which] = helper.make_graph([node], which, [], [helper.make_empty_tensor_value_info(f"{name}_{times}")])
        return made

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["a"], **branches("a", "x")),
        helper.make_node("Mul", ["a", "k"], ["b"]),
        helper.make_node("ReduceMax", ["b"], ["t"], keepdims=0),
        helper.make_node("Greater", ["t", "limit"], ["d"]),
        helper.make_node("If", ["d"], ["y"], **branches("y", "b")),
    ]
    values = {"zero": 0.0, "k": 3.0, "limit": 10.0}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(v, np.float32), name) for name, v in values.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def test_graphs_that_computed_values_choose_are_kept_one_after_another(tmp_path: Path, capsys: Capture) -> None:
    model, file = computing(tmp_path / "model.onnx", 40), tmp_path / "x.npy"

    def result(pair: list[float]) -> dict[str, Any]:
        x = pair * 20  # more than the program takes by value
        np.save(file, np.array(x, np.float32))
        facts, y = run(capsys, model, "--input", f"x={file}")
        a = np.array(x if sum(x) > 0 else x * 2, np.float32) * 3
        np.testing.assert_array_equal(y, a if a.max() > 10 else np.concatenate([a, a]))
        return dict(facts)

    for x in ([1.0, 5.0], [-4.0, 1.0], [1.0, 1.0], [-9.0, 5.0]):
        assert "kept" not in result(x)
        again = result(x)
        assert again["kept"]
        assert again["graphs"]["made"] == 3
    assert all(result([1.5 * n for n in x])["kept"] for x in ([1.0, 5.0], [-4.0, 1.0], [-9.0, 5.0]))


def test_several_graphs_of_free_sizes_are_right_at_all_of_them(tmp_path: Path, capsys: Capture) -> None:
    model, file = computing(tmp_path / "model.onnx", "n"), tmp_path / "x.npy"
    for x in ([1.0, 5.0], [1.0, 5.0, 2.0], [1.0, 5.0], [-4.0, 1.0, 9.0], [-4.0, 1.0], [1.0, 5.0, 2.0]):
        np.save(file, np.array(x * 20, np.float32))
        for _ in range(2):
            facts, _ = run(capsys, model, "--input", f"x={file}", "--compare", "reference")
            assert facts["compared"][0]["equal"]
