"""`taskmap env`: what this machine provides, what is missing, and how to get it."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import taskmap
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.toolchain import Toolchain, find_toolchain
from taskmap.backend.cuda.driver import open_driver
from taskmap.backend.library import ensure_openmp
from taskmap.backend.sim.toolchain import find_compiler
from taskmap.backend.store.limit import size_limit
from taskmap.backend.store.objects import default_path
from taskmap.cli.options import cache_dir_option, folder_of
from taskmap.cli.output import command, paint, plain, print_json, size
from taskmap.ir.errors import TaskmapError
from taskmap.trust.compiler import verdict_on
from taskmap.tuning.database import Database
from taskmap.tuning.here import database_path, device

_PACKAGES = {
    "torch": "pip install torch",
    "numpy": "pip install numpy",
    "onnx": "pip install onnx",
    "tqdm": "pip install tqdm",
    "cuda-python": "pip install taskmap, for targets on NVIDIA GPUs",
    "nvidia-cuda-nvrtc": "pip install taskmap[cuda], to compile for NVIDIA GPUs",
    "onnxruntime": "pip install onnxruntime, to compare with it",
    "distributed": "pip install taskmap[dask], to tune on a Dask cluster",
}
_TRIED = "compiler trial"
_NEEDED = ("torch", "numpy", "onnx", "C compiler", _TRIED)
"""The requirements of compiling for the CPU."""
_VARIABLES = (
    *("TASKMAP_CACHE_DIR", "TASKMAP_CACHE_SIZE", "TASKMAP_TUNING", "TASKMAP_CC", "TASKMAP_CXX", "TASKMAP_FEATURES"),
    *("CC", "CXX", "OMP_NUM_THREADS", "NO_COLOR"),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A component that is present or missing; if missing, ``hint`` says what it is for and how to get it."""

    name: str
    value: str | None
    hint: str = ""

    @property
    def needed(self) -> bool:
        """True if nothing can be compiled without it."""
        return self.name in _NEEDED


def main(arguments: Sequence[str]) -> int:
    """Print the facts; 1 if something is missing that compiling for the CPU needs."""
    a = parser().parse_args(arguments)
    parts = {
        "machine": [*_machine(), _gpu()],
        "compilers": [*_compiler(), _openmp(), _cxx()],
        "packages": _packages(),
        "caches": _stores(folder_of(a)),
        "environment": [Fact(name, os.environ[name]) for name in _VARIABLES if os.environ.get(name)],
    }
    facts = [fact for part in parts.values() for fact in part]
    missing = [f.name for f in facts if f.value is None and f.needed]
    if a.json:
        print_json({f.name: f.value for f in facts} | {"missing": {f.name: f.hint for f in facts if f.value is None}})
    else:
        width = max(len(f.name) for f in facts)
        for title, part in parts.items():
            if part:
                print(paint(title, "bold"))
                print("\n".join(f"  {f.name:{width}}  {_said(f)}" for f in part))
        print(
            f"{paint('missing', 'red')} for compiling: {', '.join(missing)}"
            if missing
            else f"{paint('complete', 'green')}: taskmap can compile for the CPU"
        )
    return int(bool(missing))


def parser() -> argparse.ArgumentParser:
    """The options of `taskmap env`."""
    p = command(
        "env",
        "Show what this machine provides, what is missing, and how to get it.",
        "taskmap env --json",
        "something is missing that compiling for the CPU needs",
    )
    cache_dir_option(p)
    return p


def _said(fact: Fact) -> str:
    if fact.value is not None:
        return plain(fact.value)
    return f"{paint('missing', 'red') if fact.needed else paint('not here', 'yellow')}: {plain(fact.hint)}"


def _machine() -> list[Fact]:
    host = detect_host()
    caches = f"L1d {size(host.l1d)}, L2 {size(host.l2)}, L3 {size(host.l3)}"
    return [
        Fact("taskmap", taskmap.__version__),
        Fact("python", f"{platform.python_version()} on {platform.system()} {platform.release()} {host.machine}"),
        Fact("CPU", f"{device()}, {host.isa}"),
        Fact("CPU features", ", ".join(host.features) or "none"),
        Fact("memory", size(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))),
        Fact("CPU caches", caches),
    ]


def _compiler() -> list[Fact]:
    try:
        tools = find_toolchain()
    except TaskmapError as error:
        return [Fact("C compiler", None, " ".join(filter(None, (error.what + ".", error.why, error.hint))))]
    return [Fact("C compiler", f"{tools.identity} ({tools.command[0]})"), _trial(tools)]


def _trial(tools: Toolchain) -> Fact:
    verdict = verdict_on(tools)
    if verdict is None:
        return Fact(_TRIED, None, "it compiles nothing; set TASKMAP_CC to another gcc or clang")
    if verdict.safer is None:
        return Fact(_TRIED, None, f"{verdict}; set TASKMAP_CC to another gcc or clang")
    return Fact(_TRIED, str(verdict))


def _openmp() -> Fact:
    if ensure_openmp():
        return Fact("OpenMP", "found")
    return Fact("OpenMP", None, "kernels run on one thread; apt install libgomp1 (torch brings its own)")


def _cxx() -> Fact:
    try:
        compiler = find_compiler()
    except TaskmapError as error:
        return Fact("C++ compiler", None, f"for the target cuda-sim. {error.hint or error.what}")
    return Fact("C++ compiler", f"{compiler.identity} ({compiler.command[0]})")


def _gpu() -> Fact:
    try:
        gpu = open_driver().device(0)
    except TaskmapError as error:
        return Fact("GPU", None, f"{error.what}; the target cuda-sim runs the kernels of a GPU without one")
    major, minor = gpu.capability
    return Fact("GPU", f"{gpu.name}, compute capability {major}.{minor}")


def _packages() -> list[Fact]:
    return [Fact(name, _version(name), hint) for name, hint in _PACKAGES.items()]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _stores(folder: str | None) -> list[Fact]:
    root = default_path() if folder is None else Path(os.path.abspath(folder))
    writable = os.access(root if root.exists() else root.parent, os.W_OK)
    database = Database(database_path(folder))
    try:
        records = f"{database.count()} records in {database.path}"
    except TaskmapError as error:
        records = f"cannot be read: {error.why}"
    finally:
        database.close()
    return [
        Fact("cache", f"{root}{'' if writable else ' (cannot be written: kernels are kept for one process only)'}"),
        Fact("cache limit", _limit()),
        Fact("tuning", records),
    ]


def _limit() -> str:
    try:
        most = size_limit()
    except TaskmapError as error:
        return error.what
    return "unlimited" if most is None else f"{size(most)} of compiled kernels"
