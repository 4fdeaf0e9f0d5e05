"""Compiling samples and running them, with poisoned outputs, in a process that may crash."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.backend.children import Children, OutOfTimeError
from taskmap.backend.cpu.compile import TranslationUnit
from taskmap.backend.cpu.team import team_source
from taskmap.backend.cpu.toolchain import Toolchain
from taskmap.backend.library import openmp_runtimes
from taskmap.backend.store.key import KernelKind
from taskmap.backend.store.scratch import Scratch
from taskmap.ir.interp.definitions import NUMPY_TYPES, round_bf16
from taskmap.ir.types import DType, bf16
from taskmap.trust import child
from taskmap.trust.corpus import Sample
from taskmap.trust.verdict import Fault, UntriedError

_GUARD = 64
_POISON = 0x7F
_SECONDS = 60.0
_TOLERANCE = {"f64": 1e-11, "f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}


def faults(samples: Sequence[Sample], toolchain: Toolchain, *, integers: bool) -> list[Fault]:
    """The samples that ``toolchain`` compiles wrongly, with its flags for kernels with ``integers`` or without.

    Raises UntriedError when they cannot be compiled or loaded.
    """
    if not samples:
        return []
    with Scratch() as folder:
        library = _compiled(samples, toolchain, integers, folder)
        buffers = {s.source.symbol: _write(s, folder) for s in samples}
        kernels = [
            {
                "symbol": s.source.symbol,
                "buffers": buffers[s.source.symbol],
                "sizes": [s.dims[v] for v in s.kernel.dims],
            }
            for s in samples
        ]
        job = {"library": str(library), "guard": _GUARD, "kernels": kernels, "openmp": openmp_runtimes()}
        (folder / "job.json").write_text(json.dumps(job))
        done, ending = _run(folder)
        found = []
        for s in samples:
            name = s.source.symbol
            if name not in done:
                found.append(Fault(s.kernel.name, ending))
                break  # later samples did not run
            found += [Fault(s.kernel.name, what) for what in _differences(s, buffers[name])]
        return found


def _compiled(samples: Sequence[Sample], toolchain: Toolchain, integers: bool, folder: Path) -> Path:
    sources = {s.source.symbol: s.source for s in samples}
    tiles = tuple(s for s in sources.values() if s.kind.spelled_out)
    others = (team_source(), *(s for s in sources.values() if not s.kind.spelled_out))  # for bound loops
    units = {"others.o": others, **({"tiles.o": tiles} if tiles else {})}
    kinds = {name: KernelKind(integers, spelled_out=name == "tiles.o") for name in units}
    commands = [
        (toolchain.compile_command(name, kinds[name]), TranslationUnit(unit).text) for name, unit in units.items()
    ]
    linked = replace(toolchain, hosted=True).link_command(list(units), "unit.so")  # the team calls the C library
    for command, text in (*commands, (linked, "")):
        try:
            status, complaints = Children().run(
                command,
                stdin=text.encode(),
                environment=toolchain.environment(str(folder)),
                folder=str(folder),
                timeout=toolchain.timeout,
            )
        except (OSError, OutOfTimeError) as error:
            raise UntriedError(f"it cannot be run, or does not end: {error}") from error
        if status:
            said = "\n".join(line for line in complaints.splitlines() if "error:" in line) or complaints.strip()
            raise UntriedError(said[:500] or f"exit status {status}")
    if not (folder / "unit.so").is_file():
        raise UntriedError("it wrote no shared object")
    return folder / "unit.so"


def _run(folder: Path) -> tuple[frozenset[str], str]:
    """The symbols of the kernels that returned, and how the process ended. UntriedError when it did not start."""
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-S", child.__file__, str(folder / "job.json")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        done, status, said = answer.stdout, answer.returncode, answer.stderr
    except subprocess.TimeoutExpired as error:
        return frozenset((error.stdout or b"").decode().split()), "it does not end"
    except OSError as error:
        raise UntriedError(f"no process can be started: {error}") from error
    if status > 0:
        raise UntriedError(said.decode(errors="replace").strip()[-500:])
    return frozenset(done.decode().split()), f"it dies of signal {-status}"


def _write(sample: Sample, folder: Path) -> list[str]:
    """Write a file for each buffer of the kernel: guards on both sides, outputs poisoned."""
    inputs = iter(sample.arrays)
    outputs = dict(zip(sample.kernel.outputs, sample.expected, strict=True))
    names = []
    for number, b in enumerate(sample.kernel.buffers):
        content = np.full_like(_stored(outputs[b], b.dtype), 0).tobytes() if b in outputs else b""
        data = bytes([_POISON]) * len(content) if b in outputs else _stored(next(inputs), b.dtype).tobytes()
        path = folder / f"{sample.source.symbol}.{number}"
        path.write_bytes(bytes([_POISON]) * _GUARD + data + bytes([_POISON]) * _GUARD)
        names.append(str(path))
    return names


def _differences(sample: Sample, names: Sequence[str]) -> list[str]:
    """The differences between the outputs in the files ``names`` and their expected values."""
    expected = dict(zip(sample.kernel.outputs, sample.expected, strict=True))
    found = []
    for b, name in zip(sample.kernel.buffers, names, strict=True):
        content = Path(name).read_bytes()
        if {*content[:_GUARD], *content[-_GUARD:]} != {_POISON}:
            found.append(f"it writes outside {b.name}")
        if b not in expected:
            continue
        want = expected[b]
        got = _read(content[_GUARD:-_GUARD], b.dtype).reshape(want.shape)
        wrong = int(np.count_nonzero(~_equal(got, want, b.dtype)))
        if wrong:
            found.append(f"{wrong} of {want.size} elements of {b.name} are wrong")
    return found


def _equal(got: NDArray[Any], want: NDArray[Any], dtype: DType) -> NDArray[np.bool_]:
    if not dtype.is_float:
        return np.asarray(got == want)
    limit = _TOLERANCE[dtype.name]
    wide = (got.astype(np.float64), want.astype(np.float64))
    return np.isclose(*wide, rtol=limit, atol=limit, equal_nan=True)


def _stored(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """An array as it is stored in memory."""
    if dtype == bf16:
        return np.asarray(round_bf16(array).view(np.uint32) >> 16, np.uint16)
    return np.ascontiguousarray(array, np.uint8 if dtype.is_bool else NUMPY_TYPES[dtype.name])


def _read(content: bytes, dtype: DType) -> NDArray[Any]:
    if dtype == bf16:
        return (np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(content, np.uint8 if dtype.is_bool else NUMPY_TYPES[dtype.name])
