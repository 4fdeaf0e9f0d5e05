"""Checks that an archive's kernels run on this machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from taskmap import __version__
from taskmap.archive.manifest import KINDS, Machine
from taskmap.backend.compilers import usable_cpus
from taskmap.backend.cpu.host import detect_host, parse_isa
from taskmap.backend.store.key import RUNTIME_ABI
from taskmap.ir.errors import InvalidOptionError, TaskmapError
from taskmap.ir.features import FEATURES, isa_text, missing_features, read_isa_text
from taskmap.ir.target import Target
from taskmap.ir.util.lazy import lazily

# An archive for the CPU need not wait for imports that only GPUs need.
if TYPE_CHECKING:
    from taskmap.archive.gpus import find_gpu as _find_gpu
else:
    _find_gpu = lazily("taskmap.archive.gpus", "find_gpu")


def machine_of(target: Target, kind: str, threads: int, features: Sequence[str] = ()) -> Machine:
    """The requirements of kernels for ``target``: this machine, or for ``kind`` "cuda" a GPU. For "cuda-sim", too,
    ``target`` is a GPU, whose kernels this machine runs. features: those that CPU kernels need beyond the target's
    instruction set."""
    isa = str(detect_host().isa) if kind == "cuda-sim" else isa_text(target.isa, features)
    return Machine(
        kind, isa, target.vector_bytes, sys.platform, platform.machine(), sys.byteorder, RUNTIME_ABI, threads,
        "" if kind == "cpu" else target.isa,
    )  # fmt: skip


def difference(machine: Machine, version: str) -> str | None:
    """The reason why kernels for ``machine``, archived by taskmap ``version``, cannot run here; None if they can."""
    if machine.kind not in KINDS:
        return f"it is for the target {machine.kind!a}, which this version of taskmap does not know."
    if machine.abi != RUNTIME_ABI:
        return f"its kernels are called by convention {machine.abi}, and this version of taskmap has {RUNTIME_ABI}."
    if machine.kind == "cuda":
        return _gpu_difference(machine)
    if machine.kind == "cuda-sim" and version != __version__:
        return f"its kernels are for the simulator of taskmap {version!a}, and this is taskmap {__version__}."
    host = detect_host()
    wanted, features = read_isa_text(machine.isa)
    here = (sys.platform, platform.machine(), sys.byteorder)
    there = (machine.os, machine.machine, machine.byteorder)
    if here != there:
        return f"it is for {_words(there)}, and this is {_words(here)}."
    try:
        isa = parse_isa(wanted)
    except InvalidOptionError:
        return f"it is for the instruction set {machine.isa!r}, which this version of taskmap does not know."
    if not host.supports(isa):
        return f"it is for CPUs with {isa}, and this one ({host.model}) has {host.isa}."
    if unknown := [name for name in features if name not in FEATURES]:
        return f"it needs the CPU feature {unknown[0]!r}, which this version of taskmap does not know."
    if features and (lacking := missing_features(features, host.features)):
        return f"it is for CPUs with {', '.join(lacking)}, and this one ({host.model}) does not have it."
    return None


def _gpu_difference(machine: Machine) -> str | None:
    """As ``difference``, for a GPU: its machine code does not depend on the processor and system that launch it."""
    if machine.byteorder != sys.byteorder:
        return f"its weights are {machine.byteorder!a} endian, and this machine is {sys.byteorder}."
    try:
        _find_gpu(machine.gpu)
    except TaskmapError as error:
        why = f"{error.what}{'' if error.why is None else f': {error.why}'}"
        return f"it needs an NVIDIA GPU that runs code for {machine.gpu!a}. Here {why.rstrip('.')}."
    return None


def _words(machine: tuple[str, str, str]) -> str:
    system, name, order = machine
    return f"{system!a} on {name!a}, {order!a} endian"


def default_threads(planned: int) -> int | None:
    """The number of threads if the caller gives none: as planned, but at most the number of CPUs. None leaves it to the
    OpenMP runtime, if the environment configures that."""
    if os.environ.get("OMP_NUM_THREADS"):
        return None
    return min(planned, usable_cpus())
