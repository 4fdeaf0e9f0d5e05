"""Archives give the models' results: without a compiler, torch or onnx, and with identical bytes each time."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

import taskmap
from taskmap.archive.file import ALIGNMENT, PAGE, WEIGHTS, ArchiveFile
from taskmap.archive.manifest import document_of, manifest_from
from taskmap.ir.errors import IndexOutOfRangeError, InputError
from taskmap.onnx.model import load_model
from tests.archive.archives import kinds
from tests.onnx.models import FLOAT, convnet, mlp, model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def options(shared_cache: Path) -> taskmap.Options:
    return taskmap.Options(cache_dir=str(shared_cache), threads=2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, options: taskmap.Options) -> Path:
    """A folder with models and their archives."""
    folder = tmp_path_factory.mktemp("archives")
    for name, proto in (("mlp", mlp()[0]), ("convnet", convnet()[0]), ("kinds", kinds())):
        onnx.save(proto, folder / f"{name}.onnx")
        sizes = {"batch": [1, 4]} if name == "mlp" else None
        taskmap.compile_onnx(folder / f"{name}.onnx", folder / f"{name}.taskmap", sizes=sizes, options=options)
    return folder


@pytest.mark.parametrize("batch", [1, 3, 4, 7])
def test_one_archive_serves_all_sizes(files: Path, batch: int) -> None:
    """Sizes with plans of their own, and all others."""
    x = np.random.default_rng(batch).standard_normal((batch, 8)).astype(np.float32)
    (got,) = taskmap.load(files / "mlp.taskmap")(x)
    (want,) = load_model(files / "mlp.onnx")(x)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_a_plan_for_the_very_sizes_comes_first(files: Path) -> None:
    model = taskmap.load(files / "mlp.taskmap", profile=True)
    assert [bool(p.binding.dims) for p in model.manifest.plans] == [True, False, False]
    model(np.zeros((4, 8), np.float32))
    model(np.zeros((5, 8), np.float32))
    assert [(p.shapes[0][0] if not p.binding.dims else "all", len(runs)) for p, runs in model.timed_runs()] == [
        (4, 1),
        ("all", 1),
    ]


def test_convolutions_and_folded_weights(files: Path) -> None:
    _, inputs = convnet()
    model = taskmap.load(files / "convnet.taskmap", threads=1)
    for _ in range(2):
        (got,) = model(inputs)
        (want,) = load_model(files / "convnet.onnx")(inputs)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_outputs_of_all_kinds(files: Path) -> None:
    model = taskmap.load(files / "kinds.taskmap")
    x = np.array([[1, -2, 3], [0, 5, -6]], np.float32)
    u = np.array([1, 2**64 - 1], np.uint64)
    got = dict(zip((p.name for p in model.outputs), model(x, i=[3, 1], u=u), strict=True))
    np.testing.assert_array_equal(got["row"], np.arange(12, dtype=np.float32).reshape(4, 3)[[3, 1]])
    np.testing.assert_array_equal(got["same"], x)
    assert not np.shares_memory(got["same"], x)
    np.testing.assert_array_equal(got["whole"], u)
    assert got["whole"].dtype == np.uint64
    np.testing.assert_array_equal(got["short"], x.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(got["c"], x > 0)
    for name in ("square", "again"):
        np.testing.assert_array_equal(got[name], x * x)
    assert got["known"].shape == got["total"].shape == ()
    assert got["total"] == x.sum()
    assert all(a.flags.writeable for a in got.values())


def test_inputs_in_any_memory_order(files: Path) -> None:
    model = taskmap.load(files / "kinds.taskmap")
    x = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    backwards = np.array([3, 1])[::-1]
    got = model({"x": x, "i": backwards, "u": np.zeros(2, np.uint64)})
    np.testing.assert_array_equal(got[5], x * x)
    np.testing.assert_array_equal(got[0][0], [3, 4, 5])


def test_an_index_out_of_range_names_the_operator(files: Path) -> None:
    for profile in (False, True):
        model = taskmap.load(files / "kinds.taskmap", profile=profile)
        with pytest.raises(IndexOutOfRangeError, match="index out of range"):
            model(np.zeros((2, 3), np.float32), [0, 4], np.zeros(2, np.uint64))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "'x', 'i', 'u' are missing"),
        ((np.zeros((2, 3)), [0, 0], np.zeros(2, np.uint64)), "is of float64"),
        ((np.zeros((3, 3), np.float32), [0, 0], np.zeros(2, np.uint64)), "has shape [3, 3]"),
        ((np.zeros(6, np.float32), [0, 0], np.zeros(2, np.uint64)), "has shape [6]"),
        (({"y": 1},), "has no input 'y'"),
        ((1, 2, 3, 4), "takes 3 inputs, not 4"),
        ((["a"], [0, 0], np.zeros(2, np.uint64)), "cannot be made an array"),
    ],
)
def test_inputs_that_do_not_fit(files: Path, args: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        taskmap.load(files / "kinds.taskmap")(*args)
    assert message in str(caught.value)


def test_sizes_without_a_plan_are_refused(files: Path) -> None:
    with pytest.raises(InputError, match="no plan for inputs of shapes") as caught:
        taskmap.load(files / "mlp.taskmap")(np.zeros((0, 8), np.float32))
    assert "[batch, 8]; [1, 8]; [4, 8]" in str(caught.value)


def test_neither_compiler_nor_torch_nor_onnx_is_needed(files: Path, tmp_path: Path) -> None:
    code = (
        "import sys, json\n"
        "for name in ('torch', 'onnx', 'cuda'): sys.modules[name] = None\n"
        "from taskmap.cli import main\n"
        f"sys.exit(main(['run', {str(files / 'convnet.taskmap')!r}, '--json', '--profile']))"
    )
    cache = tmp_path / "cache"
    environment = {"PATH": "", "TASKMAP_CC": "/no/compiler", "TASKMAP_CACHE_DIR": str(cache), "HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["outputs"]["y"]["shape"] == [1, 4]
    assert not cache.exists()


def test_the_same_model_makes_the_same_bytes(files: Path, tmp_path: Path, options: taskmap.Options) -> None:
    again = tmp_path / "again.taskmap"
    taskmap.compile_onnx(files / "kinds.onnx", again, options=options)
    assert again.read_bytes() == (files / "kinds.taskmap").read_bytes()


def test_weights_lie_once_and_aligned(files: Path) -> None:
    file = ArchiveFile(files / "mlp.taskmap")
    assert file.entries[WEIGHTS][0] % PAGE == 0
    assert all(start % ALIGNMENT == 0 for start, _ in file.entries.values())
    manifest = manifest_from(document_of(file.manifest), len(file.entry(WEIGHTS)))
    assert manifest.to_json() == file.manifest
    contents = [bytes(file.entry(WEIGHTS)[w.offset : w.offset + w.bytes]) for w in manifest.weights]
    assert len({w.offset for w in manifest.weights}) == len(set(contents))
    assert sum(p.binding.constants.count(p.weights_from) for p in manifest.plans) >= 2  # plans share them


def test_threads_may_call_at_once(files: Path) -> None:
    model = taskmap.load(files / "mlp.taskmap", threads=1)
    inputs = [np.random.default_rng(n).standard_normal((n % 5 + 1, 8)).astype(np.float32) for n in range(20)]
    with ThreadPoolExecutor(4) as pool:
        at_once = list(pool.map(model, inputs))
    for x, (got,) in zip(inputs, at_once, strict=True):
        np.testing.assert_array_equal(got, model(x)[0])


def test_an_archive_that_is_replaced_while_it_is_used(files: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.taskmap"
    path.write_bytes((files / "convnet.taskmap").read_bytes())
    model, (_, inputs) = taskmap.load(path), convnet()
    before = model(inputs)
    other = tmp_path / "other"
    other.write_bytes((files / "mlp.taskmap").read_bytes())
    os.replace(other, path)
    np.testing.assert_array_equal(model(inputs)[0], before[0])


def test_no_two_results_share_memory(tmp_path: Path, options: taskmap.Options) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Identity", ["a"], ["b"])]
    onnx.save(model(nodes, {"x": (FLOAT, [3])}, ["a", "b"]), tmp_path / "twice.onnx")
    taskmap.compile_onnx(tmp_path / "twice.onnx", tmp_path / "twice.taskmap", options=options)
    first, second = taskmap.load(tmp_path / "twice.taskmap")(np.array([1, -2, 3], np.float32))
    first[...] = 7
    assert second.tolist() == [1, 0, 3]
