"""`taskmap env`: what this machine offers, what is missing, and how to get it."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

import taskmap
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.cuda.driver import open_driver
from taskmap.backend.library import ensure_openmp
from taskmap.backend.store import default_path
from taskmap.cli.output import command, paint, print_json, size
from taskmap.ir.errors import TaskmapError
from taskmap.tuning.database import Database
from taskmap.tuning.here import database_path, device

_PACKAGES = {
    "torch": "pip install torch",
    "numpy": "pip install numpy",
    "onnx": "pip install onnx",
    "tqdm": "pip install tqdm",
    "cuda-python": "pip install taskmap",
    "nvidia-cuda-nvrtc": "pip install taskmap[cuda], to compile for NVIDIA GPUs",
    "onnxruntime": "pip install onnxruntime, to compare with it",
    "distributed": "pip install taskmap[dask], to tune on a Dask cluster",
}
_NEEDED = ("torch", "numpy", "onnx", "C compiler")


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that is there, or is missing: then ``hint`` says how to get it."""

    name: str
    value: str | None
    hint: str = ""


def main(arguments: Sequence[str]) -> int:
    """Print it; 1 when something is missing that compiling for the CPU needs."""
    a = command(
        "env", "What this machine offers, what is missing, and how to get it.", "taskmap env --json"
    ).parse_args(arguments)
    facts = [*_machine(), _compiler(), _openmp(), _gpu(), *_packages(), *_stores()]
    if a.json:
        print_json({f.name: f.value for f in facts} | {"missing": {f.name: f.hint for f in facts if f.value is None}})
    else:
        width = max(len(f.name) for f in facts)
        for f in facts:
            print(f"{f.name:{width}}  {f.value if f.value is not None else paint('missing', 'yellow') + f': {f.hint}'}")
    return int(any(f.value is None and f.name in _NEEDED for f in facts))


def _machine() -> list[Fact]:
    host = detect_host()
    caches = f"L1d {size(host.l1d)}, L2 {size(host.l2)}, L3 {size(host.l3)}"
    return [
        Fact("taskmap", taskmap.__version__),
        Fact("python", f"{platform.python_version()} on {platform.system()} {platform.release()} {host.machine}"),
        Fact("CPU", f"{device()}, {host.isa}"),
        Fact("CPU caches", caches),
    ]


def _compiler() -> Fact:
    try:
        tools = find_toolchain()
    except TaskmapError as error:
        return Fact("C compiler", None, " ".join(filter(None, (error.why, error.hint))))
    return Fact("C compiler", f"{tools.identity} ({tools.command[0]})")


def _openmp() -> Fact:
    if ensure_openmp():
        return Fact("OpenMP", "found")
    return Fact("OpenMP", None, "apt install libgomp1; torch brings its own")


def _gpu() -> Fact:
    try:
        gpu = open_driver().device(0)
    except TaskmapError as error:
        return Fact("GPU", None, f"{error.what}; the target cuda-sim runs kernels of GPUs without one")
    major, minor = gpu.capability
    return Fact("GPU", f"{gpu.name}, compute capability {major}.{minor}")


def _packages() -> list[Fact]:
    return [Fact(name, _version(name), hint) for name, hint in _PACKAGES.items()]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _stores() -> list[Fact]:
    root = default_path()
    writable = os.access(root if root.exists() else root.parent, os.W_OK)
    database = Database(database_path())
    try:
        records = f"{database.count()} records in {database.path}"
    except TaskmapError as error:
        records = f"cannot be read: {error.why}"
    finally:
        database.close()
    return [Fact("cache", f"{root}{'' if writable else ' (cannot be written)'}"), Fact("tuning", records)]
