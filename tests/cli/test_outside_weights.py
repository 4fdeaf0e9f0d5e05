"""A kept model holds no copy of weights that the next run finds in the model's files, or computes from these."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import taskmap
from taskmap.archive.file import ArchiveFile
from taskmap.archive.load import load_kept
from taskmap.archive.manifest import Weight, document_of, manifest_from
from taskmap.archive.outside_weights import Outside, OutsideWeights
from taskmap.cli import main
from taskmap.errors import ArchiveError
from taskmap.onnx import kept_models
from taskmap.onnx.kept_models import Kept, Request, find

Capture = pytest.CaptureFixture[str]
ROWS, INNER, COLUMNS = 48, 257, 515
STORED = (INNER * COLUMNS + 1000 * INNER) * 4


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch, cache_dir: Path) -> None:
    """Treats files written just now as settled, in a store of the test's own: other tests tune."""
    monkeypatch.setattr(kept_models, "_SETTLED_SECONDS", 0.0)


def model(path: Path, external: bool = True) -> Path:
    """Rows of a table, times a matrix that the compiler packs."""
    draw = np.random.default_rng(5)
    table = draw.standard_normal((1000, INNER)).astype(np.float32)
    matrix = draw.standard_normal((INNER, COLUMNS)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "i"], ["x"]), helper.make_node("MatMul", ["x", "matrix"], ["y"])],
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [ROWS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, COLUMNS])],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(matrix, "matrix")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(made, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path


def run(capsys: Capture, path: Path, *options: str) -> Any:
    """The facts of a run with the same inputs, and its result."""
    out, given = path.parent / "out.npz", path.parent / "i.npy"
    np.save(given, np.arange(ROWS) * 7 % 1000)
    arguments = ["run", str(path), "--json", "--save", str(out), "--input", f"i={given}", *options]
    assert main(arguments) == 0
    return json.loads(capsys.readouterr().out), np.load(out)["y"]


def kept(path: Path) -> Kept:
    found = find(Request(path, ("isa=None", "threads=None"), None))
    assert found is not None
    return found


def weights(archive: Path) -> tuple[Weight, ...]:
    document = document_of(ArchiveFile(archive).manifest)
    return manifest_from(document, document.field("weight_bytes").number()).weights


def test_an_archive_of_external_data_holds_no_weights(tmp_path: Path, capsys: Capture) -> None:
    path = model(tmp_path / "model.onnx")
    _, first = run(capsys, path)
    found = weights(kept(path).archive)
    assert {w.file for w in found if not w.made} == {str(tmp_path / "weights.bin")}
    assert sum(w.made for w in found) == 1  # the packed matrix
    assert kept(path).archive.stat().st_size < STORED / 4
    facts, again = run(capsys, path, "--compare", "reference")
    assert facts["kept"]
    assert facts["compared"][0]["equal"]
    np.testing.assert_array_equal(first, again)


def test_weights_inside_the_model_are_held(tmp_path: Path, capsys: Capture) -> None:
    path = model(tmp_path / "model.onnx", external=False)
    _, first = run(capsys, path)
    assert not any(w.is_outside for w in weights(kept(path).archive))
    facts, again = run(capsys, path)
    assert facts["kept"]
    np.testing.assert_array_equal(first, again)


def test_a_file_that_changes_after_it_was_checked_is_noticed(tmp_path: Path, capsys: Capture) -> None:
    path = model(tmp_path / "model.onnx")
    run(capsys, path)
    found = kept(path)
    load_kept(found.archive, None, found.files)
    for change in (_rewrite, _shorten, _replace, Path.unlink):
        change(tmp_path / "weights.bin")
        with pytest.raises(ArchiveError, match="lacks weights"):
            load_kept(found.archive, None, found.files)
        model(path)
        run(capsys, path)
        found = kept(path)


def _rewrite(file: Path) -> None:
    with open(file, "r+b") as content:
        content.write(bytes(40))


def _shorten(file: Path) -> None:
    with open(file, "r+b") as content:
        content.truncate(4096)


def _replace(file: Path) -> None:
    other = file.with_suffix(".other")
    other.write_bytes(file.read_bytes())
    other.replace(file)


def test_memory_that_the_process_changed_is_held(tmp_path: Path, capsys: Capture) -> None:
    """A mapped page that was written shows other bytes than the file."""
    file = tmp_path / "weights.bin"
    file.write_bytes(bytes(range(256)) * 64)
    files = kept_models.stamps([file])
    assert files is not None
    mapped = np.memmap(file, np.float32, "c", offset=4096, shape=(1024,))
    tensor = np.asarray(mapped)
    float(tensor.sum())
    assert OutsideWeights(files, None).place_of(tensor[3:]) == Outside(str(file), 4096 + 12)
    assert OutsideWeights({}, None).place_of(tensor) is None
    assert OutsideWeights(files, None).place_of(tensor.copy()) is None
    tensor[5] = 1.0
    assert OutsideWeights(files, None).place_of(tensor) is None


def test_only_a_kept_model_may_lack_weights(tmp_path: Path, capsys: Capture) -> None:
    path = model(tmp_path / "model.onnx")
    run(capsys, path)
    with pytest.raises(ArchiveError, match="does not hold all weights"):
        taskmap.load(kept(path).archive)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m.pop("prepare"), "does not say how a weight is made"),
        (lambda m: m["prepare"]["outputs"].pop(), "makes 0 outputs, but 1 are needed"),
        (
            lambda m: m["prepare"]["constants"].__setitem__(0, _number(m, "made")),
            "a weight is made of others that are made",
        ),
        (lambda m: _weight(m, "file").update(offset=1 << 40), "a weight lies outside"),
        (lambda m: _weight(m, "file").update(made=True), "lies in two places"),
        (lambda m: _weight(m, "file").update(sha256="0" * 64), "has no checksum, or lies in two places"),
        (lambda m: _weight(m, "made").update(bytes=1 << 40), "a weight is larger than the prepared tensor"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    tmp_path: Path, capsys: Capture, change: Callable[[Any], Any], why: str
) -> None:
    path = model(tmp_path / "model.onnx")
    run(capsys, path)
    found = kept(path)
    content = json.loads(ArchiveFile(found.archive).manifest)
    change(content)
    with pytest.raises(ValueError, match=why):
        _with_manifest(found, content)


def _number(manifest: Any, place: str) -> int:
    return next(i for i, w in enumerate(manifest["weights"]) if place in w)


def _weight(manifest: Any, place: str) -> Any:
    return manifest["weights"][_number(manifest, place)]


def _with_manifest(found: Kept, content: Any) -> None:
    loaded = load_kept(found.archive, None, found.files)
    loaded.manifest = manifest_from(document_of(json.dumps(content).encode()), content["weight_bytes"])
    loaded.find_weights(found.files)
