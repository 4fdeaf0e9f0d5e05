"""Archives that are damaged, foreign or hostile are refused, each with one clear error, before anything runs."""

import hashlib
import json
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import taskmap
from taskmap.archive.file import MANIFEST, WEIGHTS, ArchiveFile
from taskmap.ir.errors import ArchiveError, InputError
from tests.archive.archives import Change, changed, rewritten
from tests.onnx.models import mlp

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Path:
    """The archive of a small model, with a plan for all sizes and one for one size."""
    folder = tmp_path_factory.mktemp("archive")
    onnx.save(mlp()[0], folder / "model.onnx")
    options = taskmap.Options(cache_dir=str(shared_cache), threads=2)
    path = folder / "model.taskmap"
    taskmap.compile_onnx(folder / "model.onnx", path, sizes={"batch": [3]}, options=options)
    return path


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading native code fails the test."""

    def refuse(_: object) -> None:
        raise AssertionError("native code was loaded")

    monkeypatch.setattr("taskmap.archive.load.load_image", refuse)


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(ArchiveError) as caught:
        taskmap.load(path, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty or not a file"),
        (b"\x08\x07 an ONNX model", "is not a zip file"),
        (b"PK\x03\x04", "truncated or damaged"),
        (b"PK\x03\x04" + bytes(5000), "truncated or damaged"),
    ],
)
def test_what_is_no_archive(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.taskmap"
    path.write_bytes(content)
    assert message in refusal(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        taskmap.load(tmp_path / "none.taskmap")
    assert "is empty or not a file" in refusal(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.taskmap")
    assert "is empty or not a file" in refusal(tmp_path / "model.taskmap")


def test_another_zip_file(tmp_path: Path) -> None:
    path = tmp_path / "model.taskmap"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(MANIFEST, "{}")
    assert "a zip file that taskmap did not write" in refusal(path)


@pytest.mark.usefixtures("nothing_runs")
def test_truncated_anywhere(archive: Path, tmp_path: Path) -> None:
    content, path = archive.read_bytes(), tmp_path / "model.taskmap"
    for cut in (1, 2, 22, 100, 1000, len(content) // 2, len(content) - 100, len(content) - 5):
        path.write_bytes(content[:-cut])
        assert "truncated or damaged" in refusal(path)


def test_a_flipped_bit_is_noticed_or_changes_nothing(archive: Path, tmp_path: Path) -> None:
    """Undetected changes are in unused bytes: dates and padding of the zip file, and padding between weights."""
    content, path = bytearray(archive.read_bytes()), tmp_path / "model.taskmap"
    model = taskmap.load(archive)
    (want,) = model(X)
    draw = random.Random(0)
    file = ArchiveFile(archive)
    parts = [place for name, place in file.entries.items() if name != WEIGHTS]
    parts += [(file.entries[WEIGHTS][0] + w.offset, w.bytes) for w in model.manifest.weights]
    places = [start + draw.randrange(size) for start, size in parts for _ in range(8)]
    vital = len(places)
    places += [draw.randrange(len(content)) for _ in range(20)] + [
        len(content) - 1 - draw.randrange(600) for _ in range(60)
    ]
    refused = 0
    for number, place in enumerate(places):
        content[place] ^= 1 << draw.randrange(8) if number >= vital else 0x10
        path.write_bytes(content)
        try:
            (got,) = taskmap.load(path)(X)
            np.testing.assert_array_equal(got, want)
            assert number >= vital
        except ArchiveError:
            refused += 1
        content = bytearray(archive.read_bytes())
    assert refused > vital


def test_the_checksum_that_one_knows(archive: Path) -> None:
    known = hashlib.sha256(archive.read_bytes()).hexdigest()
    taskmap.load(archive, sha256=known.upper())
    assert "is not the archive that was asked for" in refusal(archive, sha256="0" * 64)
    for other in ("", "é\x1b", known[:-1]):
        assert "is not the archive that was asked for" in refusal(archive, sha256=other)


def entry_called(name: str, archive: Path, path: Path) -> None:
    """The archive with one more entry."""
    path.write_bytes(archive.read_bytes())
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(name, b"evil")


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    "name",
    [
        "../evil.so",
        "/etc/evil",
        "kernels/../../evil.so",
        "kernels/0.so/x",
        "kernels\\0.so",
        "kernels/0.SO",
        "a\nb",
        "..",
    ],
)
def test_names_that_lead_elsewhere(archive: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "inside" / "model.taskmap"
    path.parent.mkdir()
    entry_called(name, archive, path)
    assert "has an entry called" in refusal(path)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["model.taskmap"]


@pytest.mark.usefixtures("nothing_runs")
def test_something_before_the_archive(archive: Path, tmp_path: Path) -> None:
    """Zip files allow it, for example a program that unpacks them."""
    path = tmp_path / "model.taskmap"
    path.write_bytes(b"#!/bin/sh\n" + archive.read_bytes())
    assert "is not a zip file" in refusal(path)
    path.write_bytes(b"PK\x03\x04" + archive.read_bytes())
    assert "does not begin where it should" in refusal(path)


def test_an_archive_of_another_version_of_taskmap_runs(archive: Path, tmp_path: Path) -> None:
    other = taskmap.load(changed(archive, tmp_path / "model.taskmap", put("taskmap", value="99.0")))
    np.testing.assert_array_equal(other(X)[0], taskmap.load(archive)(X)[0])


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_entry_that_is_there_twice(archive: Path, tmp_path: Path) -> None:
    entry_called(WEIGHTS, archive, tmp_path / "model.taskmap")
    assert f"two entries {WEIGHTS}" in refusal(tmp_path / "model.taskmap")


@pytest.mark.usefixtures("nothing_runs")
def test_compressed_entries(archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.taskmap"
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        new.comment = old.comment
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert "compressed or encrypted" in refusal(path)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("entry", [WEIGHTS, "kernels/0.so"])
def test_an_entry_that_is_missing(archive: Path, tmp_path: Path, entry: str) -> None:
    file = ArchiveFile(archive)
    path = rewritten(file, tmp_path / "model.taskmap", file.manifest, without=entry)
    assert f"it has no entry {entry}" in refusal(path)


def put(*path: str | int, value: Any) -> Change:
    """A change of one place of the manifest."""

    def change(document: Any) -> None:
        for part in path[:-1]:
            document = document[part]
        document[path[-1]] = value

    return change


def drop(*path: str | int) -> Change:
    """A change that leaves something out."""

    def change(document: Any) -> None:
        for part in path[:-1]:
            document = document[part]
        del document[path[-1]]

    return change


def nested(depth: int) -> Any:
    size: Any = "n0"
    for _ in range(depth):
        size = ["add", size, 1]
    return size


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("format", value=2), "its version is 2, and this taskmap reads 1"),
        (put("format", value="1"), "format is not a whole number"),
        (put("target", "kind", value="tpu"), "for the target 'tpu'"),
        (put("target", "kind", value="cuda"), "the manifest.target has no gpu"),
        (put("target", "os", value="plan9"), "it is for 'plan9' on"),
        (put("target", "machine", value="riscv64"), "'riscv64'"),
        (put("target", "byteorder", value="big"), "'big' endian"),
        (put("target", "isa", value="avx9000"), "instruction set 'avx9000'"),
        (put("target", "abi", value=99), "called by convention 99"),
        (put("target", "threads", value=0), "threads is not a whole number"),
        (drop("target"), "has no target"),
        (drop("plans"), "has no plans"),
        (put("plans", value=[]), "has no plan"),
        (put("objects", 0, "sha256", value="0" * 64), "the checksum of kernels/0.so does not match"),
        (put("objects", 0, "sha256", value="x"), "is not a SHA-256"),
        (put("objects", 0, "bytes", value=3), "another size than the manifest says"),
        (put("objects", 0, "entry", value="../../lib/libc.so.6"), "no entry ../../lib/libc.so.6"),
        (put("objects", 0, "entry", value="manifest.json"), "another size than the manifest says"),
        (put("objects", 0, "symbols", 0, value="system"), "is not the name of a kernel"),
        (put("objects", 0, "symbols", 0, value="tm_x; rm -rf"), "is not the name of a kernel"),
        (put("weights", 0, "sha256", value="0" * 64), "the checksum of weights.bin at 0 does not match"),
        (put("weights", 0, "offset", value=1 << 40), "does not lie within the weights"),
        (put("weights", 0, "offset", value=-64), "offset is not a whole number"),
        (put("weights", 0, "offset", value=1), "does not lie within the weights"),
        (put("weights", 0, "bytes", value=1 << 61), "does not lie within the weights"),
        (put("weights", 0, "shape", value=[1 << 50, 1 << 50]), "is larger than its bytes"),
        (put("weights", 0, "strides", value=[1]), "is larger than its bytes"),
        (put("weight_bytes", value=1), "the weights are"),
        (put("weights", 0, "held", value="str"), "is not one of"),
        (put("inputs", 0, "dtype", value="object"), "is not one of"),
        (put("inputs", 0, "name", value="x" * 5000), "is not a text"),
        (put("inputs", 0, "name", value="\ud800"), "is not a text"),
        (put("inputs", 0, "shape", value=[8]), "does not match the model's inputs"),
        (put("plans", 0, "io", 0, value=["input", 1]), "is not a whole number from 0 to below 1"),
        (put("plans", 0, "io", 0, value=["output", 0]), "is not one of input, made, weight"),
        (put("plans", 0, "io", value=[]), "tables whose lengths differ"),
        (put("plans", 0, "constants", 0, value=99), "is not a whole number from 0"),
        (put("plans", 0, "launch", value=[]), "tables whose lengths differ"),
        (put("plans", 0, "launch", 0, value="tm_other"), "is not the name of a kernel of the archive"),
        (put("plans", 0, "steps", 0, "kernel", value="tm_other"), "is not the name of a kernel of the archive"),
        (put("plans", 0, "steps", 0, "buffers", 0, value=99), "is not a whole number from 0"),
        (put("plans", 0, "steps", 0, "buffers", 0, value=True), "is not a whole number"),
        (put("plans", 0, "steps", 0, "error", value=1), "is not true or false"),
        (put("plans", 0, "sizes", value={"os": [0, 0]}), "is not an object of sizes"),
        (put("plans", 0, "sizes", "n0", value=[0, 7]), "is not a whole number from 0 to below 2"),
        (put("plans", 0, "positive", 0, value="__import__('os')"), "is not a size"),
        (put("plans", 0, "positive", 0, value=["__import__", "n0"]), "is not an operation"),
        (put("plans", 0, "positive", 0, value=["shl", 1, "n0"]), "is not an operation"),
        (put("plans", 0, "positive", 0, value=["add", "n0"]), "is not an operation"),
        (put("plans", 0, "positive", 0, value=1 << 63), "is not a size"),
        (put("plans", 0, "positive", 0, value=nested(100)), "nested too deep"),
        (put("plans", 0, "outputs", value=[]), "makes 0 outputs"),
        (put("plans", 0, "outputs", 0, "strides", value=[1]), "is not as long as the shape"),
        (put("plans", 0, "places", value=[]), "does not place a temporary buffer"),
        (put("plans", 0, "places", 0, value=[0, 0, 0]), "is not the place of a temporary buffer"),
        (put("plans", 0, "places", 0, 1, value=9), "places a buffer in an unknown region"),
        (put("plans", 0, "regions", 0, "units", value=63), "is not a multiple of 64"),
        (put("plans", 0, "regions", 0, "units", value=-64), "is not a whole number"),
        (put("plans", 0, "made", 0, "held", value="f128"), "is not one of"),
        (put("plans", 0, "io", 0, value=["weight", 0]), "io is not of inputs"),
        (put("plans", 1, "work", 0, value=[1]), "is not a list of 2"),
        (put("plans", 1, "work", 0, value=["1", 1]), "is not a whole number"),
    ],
)  # fmt: skip
def test_manifests_that_are_refused(archive: Path, tmp_path: Path, change: Change, message: str) -> None:
    said = refusal(changed(archive, tmp_path / "model.taskmap", change))
    assert message in said
    assert "taskmap compile" in said


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "an invalid manifest"),
        (b"{", "an invalid manifest"),
        (b"[]", "is not an object"),
        (b"\xff\xfe", "an invalid manifest"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"format": 1, "format": 2}', "a field twice"),
        (b'{"format": NaN}', "is not a whole number"),
        (b'{"format": ' + b"9" * 5000 + b"}", "an invalid manifest"),
    ],
)
def test_manifests_that_are_none(archive: Path, tmp_path: Path, text: bytes, message: str) -> None:
    path = rewritten(ArchiveFile(archive), tmp_path / "model.taskmap", text)
    assert message in refusal(path)


@pytest.mark.usefixtures("nothing_runs")
def test_the_manifest_has_a_checksum_of_its_own(archive: Path, tmp_path: Path) -> None:
    """A manifest that differs from the one in the comment."""
    path = tmp_path / "model.taskmap"
    path.write_bytes(archive.read_bytes().replace(b'"batch"', b'"natch"'))
    assert "the manifest's checksum does not match" in refusal(path)


def test_kernels_for_newer_cpus(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        isa = "generic"
        model = "a CPU of long ago"

        def supports(self, isa: str) -> bool:
            return isa == "generic"

    monkeypatch.setattr("taskmap.archive.machine.detect_host", Old)
    if json.loads(ArchiveFile(archive).manifest)["target"]["isa"] != "generic":
        assert "and this one (a CPU of long ago) has generic" in refusal(archive)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("plans", 1, "regions", 0, "units", value=0), "does not fit into its place"),
        (put("plans", 1, "places", 0, 2, value=1 << 30), "does not fit into its place"),
        (put("plans", 1, "made", 0, "shape", value=[1, 1]), "does not fit into its place"),
        (put("plans", 1, "made", 0, "strides", value=[1 << 45, 1]), "is too large"),
        (put("plans", 1, "outputs", 0, "shape", value=[3000, 5]), "outside its tensor"),
        (put("plans", 1, "outputs", 0, "offset", value=1 << 20), "outside its tensor"),
        (put("plans", 1, "shapes", 0, value=[4, 8]), "does not fit into its place"),
        (put("plans", 1, "positive", value=[["mod", 1, 0]]), "its sizes cannot be computed"),
        (put("plans", 1, "steps", value=[]), "tables whose lengths differ"),
    ],
)
def test_plans_that_contradict_themselves(archive: Path, tmp_path: Path, change: Change, message: str) -> None:
    assert message in refusal(changed(archive, tmp_path / "model.taskmap", change))


def test_a_sequence_that_is_not_that_of_the_code(archive: Path, tmp_path: Path) -> None:
    """The steps in another order, with everything else unchanged."""

    def swap(document: Any) -> None:
        document["plans"][1]["steps"].reverse()

    with pytest.raises(ArchiveError, match="contradicts itself"):
        taskmap.load(changed(archive, tmp_path / "model.taskmap", swap))(X)


def test_names_are_shown_without_what_a_terminal_obeys(archive: Path, tmp_path: Path) -> None:
    path = changed(archive, tmp_path / "model.taskmap", put("inputs", 0, "name", value="\x1b[31m'\n%s{}"))
    with pytest.raises(InputError) as caught:
        taskmap.load(path)(y=1)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


def test_manifests_with_anything_anywhere(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place of the manifest is replaced by something else: an error or a model, and never anything else."""
    monkeypatch.setattr("taskmap.archive.load._addresses", lambda *_: {})
    file = ArchiveFile(archive)
    draw = random.Random(1)
    junk: list[Any] = [None, True, -1, 0, 1 << 70, 0.5, "", "n0", "\x00", [], {}, [[]], {"a": 1}, ["mul", "n0", "n0"]]
    refused = 0
    for _ in range(300):
        document = json.loads(file.manifest)
        place = document
        while True:
            key = draw.choice(list(place)) if isinstance(place, dict) else draw.randrange(len(place))
            if not isinstance(place[key], (dict, list)) or not place[key] or draw.random() < 0.2:
                break
            place = place[key]
        place[key] = draw.choice(junk)
        path = rewritten(file, tmp_path / "model.taskmap", json.dumps(document).encode())
        try:
            taskmap.load(path)
        except ArchiveError:
            refused += 1
    assert refused > 200
