"""Writing an archive is atomic; models that cannot be archived are refused with every reason."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import taskmap
from taskmap.archive import file as archive_file
from taskmap.archive.file import ArchiveEntry, ArchiveFile, write_archive
from taskmap.backend.program.sizes import sizes_function
from taskmap.ir.construct import binary, cast, compare, minimum, select, unary
from taskmap.ir.errors import InputError, UnsupportedError
from taskmap.ir.nodes import Call, Dim, Expr, Var
from taskmap.ir.types import f64, i64
from taskmap.ir.util import atomic_write
from taskmap.ir.util.atomic_write import replaced
from taskmap.util.size_codec import record_of, size_from
from tests.archive.archives import flags, host_operators, splits
from tests.onnx.models import FLOAT, branch, detections, loop, mlp, model

ROOT = Path(__file__).parents[2]
BEFORE = b"what was there before"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A file to be replaced."""
    path = tmp_path / "model.taskmap"
    path.write_bytes(BEFORE)
    return path


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("named", [False, True])
def test_a_full_disk_leaves_what_was_there(target: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    """On file systems with unnamed files, and on those without."""
    if named:
        monkeypatch.setattr(atomic_write, "_unnamed", lambda *_: None)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="cannot be written") as caught:
        write_archive(target, b"{}", [ArchiveEntry("weights.bin", 3, [b"abc"])])
    assert "No space left on device" in str(caught.value)
    assert "Make room" in str(caught.value)
    assert target.read_bytes() == BEFORE
    assert [p.name for p in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize("named", [False, True])
def test_an_interrupt_leaves_what_was_there(target: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    if named:
        monkeypatch.setattr(atomic_write, "_unnamed", lambda *_: None)

    def content() -> Iterator[bytes]:
        yield b"a"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_archive(target, b"{}", [ArchiveEntry("weights.bin", 2, content())])
    assert target.read_bytes() == BEFORE
    assert [p.name for p in target.parent.iterdir()] == [target.name]


def test_what_is_written_takes_the_place_at_once(target: Path) -> None:
    write_archive(target, b"{}", [ArchiveEntry("weights.bin", 5, [b"ab", b"cde"], 4096)])
    assert bytes(ArchiveFile(target).entry("weights.bin")) == b"abcde"
    assert [p.name for p in target.parent.iterdir()] == [target.name]


def test_entries_of_more_than_four_gigabytes(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their headers are longer; a small entry is written as if it were one."""
    monkeypatch.setattr(archive_file, "_LARGE", 0)
    write_archive(
        target, b"{}", [ArchiveEntry("kernels/0.so", 3, [b"abc"]), ArchiveEntry("weights.bin", 5, [b"abcde"], 4096)]
    )
    file = ArchiveFile(target, hashlib.sha256(target.read_bytes()).hexdigest())
    assert (file.manifest, bytes(file.entry("weights.bin"))) == (b"{}", b"abcde")
    assert file.entries["weights.bin"][0] == 4096
    with zipfile.ZipFile(target) as known:
        assert known.testzip() is None


@pytest.mark.parametrize("after", [b"a", b"a" * 100_000])
def test_kill_leaves_what_was_there(target: Path, after: bytes) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom taskmap.archive.file import ArchiveEntry, write_archive\n"
        f"def content():\n    yield bytes({len(after)})\n    print('half', flush=True)\n    time.sleep(60)\n"
        f"write_archive(Path({str(target)!r}), b'{{}}', [ArchiveEntry('weights.bin', {len(after) + 1}, content())])"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    assert target.read_bytes() == BEFORE
    assert [p.name for p in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize("moment", ["compiling for all sizes", "writing"])
def test_killing_the_command_leaves_what_was_there(target: Path, moment: str) -> None:
    onnx.save(mlp()[0], target.with_suffix(".onnx"))
    command = [sys.executable, "-m", "taskmap.cli", "compile", str(target.with_suffix(".onnx")), "-o", str(target)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert f"taskmap: {moment}\n" in iter(process.stderr.readline, "")
        process.send_signal(signal.SIGKILL)
    there = target.read_bytes()
    if there != BEFORE:  # it was done before the signal came
        assert ArchiveFile(target).entries
    assert sorted(p.name for p in target.parent.iterdir()) == ["model.onnx", "model.taskmap"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    onnx.save(mlp()[0], tmp_path / "model.onnx")
    for place, message in ((tmp_path, "it is a folder"), (tmp_path / "no" / "a.taskmap", "there is no folder")):
        with pytest.raises(InputError) as caught:
            taskmap.compile_onnx(tmp_path / "model.onnx", place)
        assert message in str(caught.value)


def test_replacing_a_file_on_another_kind_of_file_system(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_write, "_unnamed", lambda *_: None)
    with replaced(target) as file:
        file.write(b"new")
    assert target.read_bytes() == b"new"
    assert [p.name for p in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize(
    ("proto", "reasons"),
    [
        (
            host_operators(),
            ["TopK: runs on the host (sorting many elements)", "Pow: runs on the host", "NonZero", "depend on data"],
        ),
        (loop()[0], ["Loop", "depend on data"]),
        (branch()[0], ["the values of the input 'x' decide"]),
        (detections()[0], ["Compress"]),
        (flags(), ["the values of the input 'flag' decide"]),
        (splits(), ["the values of the input 'parts' decide"]),
    ],
)
def test_models_that_cannot_be_archived(
    tmp_path: Path, shared_cache: Path, proto: onnx.ModelProto, reasons: list[str]
) -> None:
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(UnsupportedError, match="the model cannot be archived") as caught:
        taskmap.compile_onnx(
            tmp_path / "model.onnx", tmp_path / "a.taskmap", options=taskmap.Options(cache_dir=str(shared_cache))
        )
    assert [r for r in reasons if r not in str(caught.value)] == []
    assert "taskmap run model.onnx" in str(caught.value)
    assert not (tmp_path / "a.taskmap").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"options": taskmap.Options(target="cuda", tune_seconds=1.0)},
            "an archive for a GPU cannot be tuned while it is written",
        ),
        ({"sizes": {"barch": [1]}}, "the model has no dimension 'barch'"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    onnx.save(mlp()[0], tmp_path / "model.onnx")
    with pytest.raises(taskmap.TaskmapError, match=message):
        taskmap.compile_onnx(tmp_path / "model.onnx", tmp_path / "a.taskmap", **more)


def test_inputs_that_an_archive_cannot_take(tmp_path: Path) -> None:
    strings = model([onnx.helper.make_node("Identity", ["s"], ["t"])], {"s": (8, [1])}, ["t"])
    unranked = model([onnx.helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, [1])}, ["y"])
    unranked.graph.input[0].type.tensor_type.ClearField("shape")
    for proto, message in ((strings, "'s' is a tensor of strings"), (unranked, "the inputs 'x' have no shape")):
        onnx.save(proto, tmp_path / "model.onnx")
        with pytest.raises(taskmap.TaskmapError) as caught:
            taskmap.compile_onnx(tmp_path / "model.onnx", tmp_path / "a.taskmap")
        assert message in str(caught.value)


N0, N1 = Var("batch; rm -rf /"), Var("\n")
NAMES = {N0: "n0", N1: "n1"}
LEAVES: st.SearchStrategy[Dim] = st.one_of(st.integers(1, 50), st.sampled_from([N0, N1]))
OPERATIONS = ("add", "sub", "mul", "floordiv", "mod", "max")


def _combined(parts: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    pairs = st.tuples(parts, parts)
    return st.one_of(
        st.tuples(st.sampled_from(OPERATIONS), parts, st.integers(1, 9)).map(lambda t: binary(*t)),
        pairs.map(lambda t: minimum(*t)),
        pairs.map(lambda t: select(compare("lt", *t), *t)),
        parts.map(lambda e: unary("neg", e)),
        parts.map(lambda e: cast(Call("floor", (cast(e, f64) * 1.5,), f64, 1), i64)),
    )


@given(st.recursive(LEAVES, _combined, max_leaves=12), st.integers(1, 99), st.integers(1, 99))
def test_sizes_survive_being_written(size: Dim, a: int, b: int) -> None:
    variables = {"n0": Var("n0"), "n1": Var("n1")}
    read = size_from(record_of(size, NAMES), variables)
    assert sizes_function([read], list(variables.values()))((a, b)) == sizes_function([size], [N0, N1])((a, b))


def test_sizes_that_cannot_be_written() -> None:
    deep: Expr = N0 + 1
    for _ in range(100):
        deep = deep * N0
    for size in (deep, Var("unknown") + 1, N0 << 2):
        with pytest.raises(UnsupportedError, match="size"):
            record_of(size, NAMES)


def test_a_model_without_a_graph_for_all_sizes_has_plans_for_the_sizes_given(tmp_path: Path) -> None:
    node = helper.make_node("Slice", ["x", "from", "to", "axis", "back"], ["y"])  # its size depends on n's
    stored = {"from": [-2], "to": [-(1 << 63)], "axis": [0], "back": [-1]}
    arrays = {name: np.array(v) for name, v in stored.items()}
    square = helper.make_node("Det", ["z"], ["d"])  # by the host: no plan at all
    onnx.save(model([node], {"x": (FLOAT, ["n", 4])}, ["y"], arrays), tmp_path / "model.onnx")
    taskmap.compile_onnx(tmp_path / "model.onnx", tmp_path / "a.taskmap", sizes={"n": [2, 3]})
    loaded = taskmap.load(tmp_path / "a.taskmap")
    for n in (2, 3):
        x = np.arange(4 * n, dtype=np.float32).reshape(n, 4)
        np.testing.assert_array_equal(loaded(x)[0], x[-2::-1])
    onnx.save(model([square], {"z": (FLOAT, ["n", "n"])}, ["d"]), tmp_path / "other.onnx")
    choices: list[dict[str, list[int]]] = [{}, {"n": [3]}]
    for sizes in choices:
        with pytest.raises(UnsupportedError, match="runs on the host"):
            taskmap.compile_onnx(tmp_path / "other.onnx", tmp_path / "b.taskmap", sizes=sizes)
