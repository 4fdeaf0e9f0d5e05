"""Whether an archive's kernels run here, and the threads that they run on."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from taskmap.archive_manifest import Machine
from taskmap.backend.cpu.host import detect_host, parse_isa
from taskmap.backend.kernel_source import RUNTIME_ABI
from taskmap.backend.library import ensure_openmp
from taskmap.ir.errors import InvalidOptionError
from taskmap.ir.target import Target


def machine_of(target: Target) -> Machine:
    """This machine, as kernels for ``target`` need it."""
    return Machine(
        target.kind, target.isa, target.vector_bytes, sys.platform, platform.machine(), sys.byteorder, RUNTIME_ABI,
        target.cores,
    )  # fmt: skip


def difference(machine: Machine) -> str | None:
    """Why kernels for ``machine`` do not run here, or None when they do."""
    if machine.kind != "cpu":
        return f"it is for the target {machine.kind!r}; archives are run on CPUs."
    host = detect_host()
    here = (sys.platform, platform.machine(), sys.byteorder)
    there = (machine.os, machine.machine, machine.byteorder)
    if here != there:
        return f"it is for {_words(there)}, and this is {_words(here)}."
    if machine.abi != RUNTIME_ABI:
        return f"its kernels are called by convention {machine.abi}, and this version of taskmap has {RUNTIME_ABI}."
    try:
        isa = parse_isa(machine.isa)
    except InvalidOptionError:
        return f"it is for the instruction set {machine.isa!r}, which this version of taskmap does not know."
    if not host.supports(isa):
        return f"it is for CPUs with {isa}, and this one ({host.model}) has {host.isa}."
    return None


def _words(machine: tuple[str, str, str]) -> str:
    system, name, order = machine
    return f"{system!a} on {name!a}, {order!a} endian"


def default_threads(planned: int) -> int | None:
    """How many threads to run on when nobody says: as planned, but no more than there are CPUs. None leaves it to the
    OpenMP runtime, which has been told by the environment."""
    if os.environ.get("OMP_NUM_THREADS"):
        return None
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(planned, cpus)


def have_openmp() -> bool:
    """Whether there is an OpenMP runtime for kernels: the system's, or the one that PyTorch brings."""
    if ensure_openmp():
        return True
    try:
        import_module("torch")
    except ImportError:
        return False
    return ensure_openmp()


@contextmanager
def running_on(threads: int | None) -> Iterator[None]:
    """Kernels called in the block use so many threads."""
    process = ctypes.CDLL(None)
    if threads is None or not hasattr(process, "omp_set_num_threads"):
        yield
        return
    before = process.omp_get_max_threads()
    process.omp_set_num_threads(threads)
    try:
        yield
    finally:
        process.omp_set_num_threads(before)
