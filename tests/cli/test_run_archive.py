"""`taskmap compile` and `taskmap run model.taskmap` from the shell."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from taskmap.archive import gpus as archive_gpus
from taskmap.cli import main
from taskmap.ir.errors import NoDeviceError
from tests.onnx.models import mlp

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with model.onnx."""
    folder = tmp_path_factory.mktemp("archives")
    onnx.save(mlp()[0], folder / "model.onnx")
    return folder


@pytest.fixture
def archive(folder: Path, kernel_store: None) -> Path:
    """Its archive, which is compiled once."""
    path = folder / "model.taskmap"
    if not path.exists():
        assert main(["compile", str(folder / "model.onnx"), "--threads", "2", "--shape", "batch=2,2"]) == 0
    return path


def run(capsys: Capture, *arguments: object) -> Any:
    """The JSON document."""
    capsys.readouterr()
    assert main([*(str(a) for a in arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_compile_says_what_it_wrote(folder: Path, capsys: Capture) -> None:
    assert main(["compile", str(folder / "model.onnx"), "-o", str(folder / "other.taskmap")]) == 0
    out, err = capsys.readouterr()
    assert "plan for [batch, 8]: 3 launches" in out
    assert "sha256 " in out
    said = [line for line in err.splitlines() if not line[-1].isdigit()]  # without those on what takes long
    assert said == ["taskmap: compiling for all sizes", "taskmap: writing"]
    found = run(capsys, "compile", folder / "model.onnx", "-o", folder / "other.taskmap", "--isa", "generic")
    assert found["target"]["isa"] == "generic"
    assert found["bytes"] == (folder / "other.taskmap").stat().st_size
    digest = found["sha256"]
    assert main(["run", str(folder / "other.taskmap"), "--sha256", digest]) == 0
    assert main(["run", str(folder / "other.taskmap"), "--sha256", "0" * 64]) == 2


def test_run_as_a_model_is_run(archive: Path, tmp_path: Path, capsys: Capture) -> None:
    saved = tmp_path / "out.npz"
    x = np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8)
    np.save(tmp_path / "x.npy", x)
    more = ["--compare", "reference", "--onnx", archive.with_suffix(".onnx"), "--repeat", 3, "--save", saved]
    found = run(capsys, "run", archive, "--input", f"x={tmp_path / 'x.npy'}", *more)
    assert found["inputs"]["x"]["shape"] == [5, 8]
    assert found["seconds"]["runs"] == 3
    assert [c["equal"] for c in found["compared"]] == [True]
    with np.load(saved) as outputs:
        np.testing.assert_allclose(outputs["y"].sum(axis=1), np.ones(5), rtol=1e-5)


def test_profile_and_trace(archive: Path, tmp_path: Path, capsys: Capture) -> None:
    trace = tmp_path / "trace.json"
    assert main(["run", str(archive), "--shape", "batch=2", "--profile", "--trace", str(trace), "--repeat", "2"]) == 0
    out = capsys.readouterr().out
    assert "cpu.matmul" in out
    assert "GFLOP/s" in out
    events = json.loads(trace.read_text())["traceEvents"]
    assert [e["dur"] > 0 for e in events] == [True] * 3
    found = run(capsys, "run", archive, "--profile", "--threads", 1)
    steps = found["profile"]["steps"]
    assert sum(s["share"] for s in steps) == pytest.approx(1)
    assert [s["bytes"] for s in steps] == [None] * 3  # of all sizes; those of one size are known:
    steps = run(capsys, "run", archive, "--profile", "--shape", "batch=2")["profile"]["steps"]
    assert all(s["bytes"] > 0 and s["operations"] > 0 for s in steps)
    assert all(0 < s["roofline"] < 10 for s in steps)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--compare", "reference"], "nothing to compare with"),
        (["--trace", "t.json"], "a trace needs a profile"),
        (["--tune", "5"], "an archive cannot be tuned"),
        (["--target", "cuda"], "does not run on the target cuda\n  it is for cpu."),
        (["--gpu", "sm_90a"], "Leave --gpu out"),
        (["--isa", "generic"], "Leave --isa out"),
        (["--shape", "barch=8"], "the model has no dimension 'barch'"),
        (["--input", "z=z.npy"], "belongs to no input"),
    ],
)
def test_what_an_archive_does_not_do(archive: Path, capsys: Capture, more: list[str], message: str) -> None:
    assert main(["run", str(archive), *more]) == 2
    assert message in capsys.readouterr().err


def test_options_of_archives_alone(folder: Path, capsys: Capture) -> None:
    assert main(["run", str(folder / "model.onnx"), "--sha256", "0"]) == 2
    assert "are for archives" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["-o", "model.onnx"], "would overwrite the model"),
        (["--shape", "batch=0"], "the dimension 'batch' has the size 0"),
        (["--shape", "3x7"], "--shape 3x7 is not a shape of the input 'x'\n  it takes [batch, 8]."),
        (["--target", "cuda", "--tune", "5"], "cannot be tuned while it is written"),
        (["--gpu", "sm_90a"], "--gpu is for the targets cuda and cuda-sim"),
        (["--target", "sm_80", "--gpu", "sm_90a"], "names a GPU, and so does"),
        (["--shape", "barch=8"], "the model has no dimension 'barch'"),
        (["-o", "no/such/folder/a.taskmap"], "cannot be written"),
    ],
)
def test_what_compile_refuses(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, more: list[str], message: str
) -> None:
    monkeypatch.chdir(folder)
    assert main(["compile", "model.onnx", *more]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "more",
    [["--shape", "eight"], ["--shape", "batch=1,"], ["--threads", "0"], ["--target", "sm_20"]],
)
def test_bad_options(folder: Path, capsys: Capture, more: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["compile", str(folder / "model.onnx"), *more])
    assert "usage: taskmap compile" in capsys.readouterr().err


def test_help_says_whom_to_trust(capsys: Capture) -> None:
    for command in ("compile", "run"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        assert "only those that you trust" in " ".join(capsys.readouterr().out.split())


def test_archives_for_gpus(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are written without a GPU and refused without one; the simulator's run, and have no share of a roofline."""

    def absent() -> Any:
        raise NoDeviceError("there is no NVIDIA GPU", why="the driver sees none.")

    monkeypatch.setattr(archive_gpus, "open_driver", absent)
    path = folder / "gpu.taskmap"
    assert main(["compile", str(folder / "model.onnx"), "-o", str(path), "--target", "H200"]) == 0
    assert "for GPUs that run code for sm_90a" in capsys.readouterr().out
    assert main(["run", str(path)]) == 2
    err = capsys.readouterr().err
    assert (
        "it needs an NVIDIA GPU that runs code for 'sm_90a'. Here there is no NVIDIA GPU: the driver sees none" in err
    )
    assert "Run it there, or make one for this machine" in err
    found = run(capsys, "compile", folder / "model.onnx", "-o", path, "--target", "cuda-sim", "--gpu", "sm_90a")
    assert (found["target"]["kind"], found["target"]["gpu"]) == ("cuda-sim", "sm_90a")
    against = ["--compare", "reference", "--onnx", folder / "model.onnx"]
    found = run(capsys, "run", path, "--target", "cuda-sim", "--profile", *against)
    assert [c["equal"] for c in found["compared"]] == [True]
    assert [s["roofline"] for s in found["profile"]["steps"]] == [None] * 3
