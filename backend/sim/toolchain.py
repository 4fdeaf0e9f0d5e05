"""The C++ compiler of the simulator, and the shared objects that it builds."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from taskmap.backend.children import Children, OutOfTimeError
from taskmap.backend.cpu.host import Isa, detect_host
from taskmap.backend.store.key import KernelSource, kernel_key, key_parts
from taskmap.backend.store.objects import KernelStore, StoredKernel
from taskmap.backend.store.scratch import Scratch
from taskmap.ir.errors import CompilerFailedError, CompilerNotFoundError

_ISA_FLAGS: dict[Isa, tuple[str, ...]] = {
    "generic": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"),
}
_FLAGS = (
    "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing", "-fno-math-errno",
    "-fno-semantic-interposition", "-Wl,-z,noexecstack",
)  # fmt: skip
_ENGINE_FLAGS = ("-O2", "-ftls-model=initial-exec", "-pthread", "-Wall", "-Wextra")
_KERNEL_FLAGS = ("-fno-exceptions", "-fno-rtti", "-w")
# A checked access is identified by its return address, so calls stay calls, and each keeps its own place.
_CHECKED_FLAGS = ("-O1", "-g1", "-fno-optimize-sibling-calls", "-fno-crossjumping")
# Not vectorised: taskmap.trust tests the C compiler's vector code, but not this compiler's.
_FAST_FLAGS = ("-O2", "-fno-tree-vectorize")
_TIMEOUT = 300.0
_SHOWN_LINES = 12


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: the command, and its identity, whatever its path."""

    command: tuple[str, ...]
    identity: str
    isa: Isa

    def flags(self, *, engine: bool = False, checked: bool = True) -> tuple[str, ...]:
        """Every argument that can change the result."""
        own = _ENGINE_FLAGS if engine else (*_KERNEL_FLAGS, *(_CHECKED_FLAGS if checked else _FAST_FLAGS))
        return (*_FLAGS, *_ISA_FLAGS[self.isa], *own)


def find_compiler() -> Compiler:
    """The first C++ compiler of $TASKMAP_CXX, $CXX, c++, g++, clang++. Raises CompilerNotFoundError."""
    for candidate in (os.environ.get("TASKMAP_CXX", ""), os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        words = shlex.split(candidate)
        path = shutil.which(words[0]) if words else None
        if path is not None:
            return Compiler((path, *words[1:]), _identity((path, *words[1:])), detect_host().isa)
    raise CompilerNotFoundError(
        "no C++ compiler found for the simulator",
        why="none of c++, g++ and clang++ is in PATH.",
        hint="Install one (Debian, Ubuntu: apt install g++), or set TASKMAP_CXX to one.",
    )


@lru_cache(maxsize=8)
def _identity(command: tuple[str, ...]) -> str:
    answer = subprocess.run(
        [*command, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
    )
    lines = answer.stdout.splitlines()
    if answer.returncode or not lines:
        raise CompilerFailedError("the C++ compiler does not report its version", where=shlex.join(command))
    return lines[0].strip()


def stored_kernel(
    symbol: str, unit: str, compiler: Compiler, *, engine: bool = False, checked: bool = True
) -> StoredKernel:
    """The key in the store of ``unit``, C++ that includes none of our files, once compiled."""
    flags = compiler.flags(engine=engine, checked=checked)
    parts = key_parts(KernelSource(symbol, unit), compiler=compiler.identity, flags=flags, isa=f"sim-{compiler.isa}")
    return StoredKernel(kernel_key(parts), symbol, parts)


def compile_unit(
    kernels: Sequence[StoredKernel],
    unit: str,
    compiler: Compiler,
    store: KernelStore,
    *,
    engine: bool = False,
    checked: bool = True,
) -> Path:
    """The shared object built from ``unit``, which contains all of ``kernels``; it is put into the store.

    Raises CompilerFailedError with the compiler's output.
    """
    flags = compiler.flags(engine=engine, checked=checked)
    with Scratch() as folder:
        output = folder / "unit.so"
        command = [*compiler.command, *flags, "-x", "c++", "-", "-o", str(output)]
        environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
        try:
            status, complaints = Children().run(
                command, stdin=unit.encode(), environment=environment, folder=str(folder), timeout=_TIMEOUT
            )
        except OutOfTimeError:
            status, complaints = 1, f"it ran longer than {_TIMEOUT:g} s"
        if status:
            raise CompilerFailedError(
                f"the C++ compiler refused the simulator's form of {', '.join(k.symbol for k in kernels)}",
                where=shlex.join(command),
                why="\n".join(complaints.splitlines()[:_SHOWN_LINES]),
                hint=f"The source is {store.keep_failed(unit)}.",
            )
        path = store.add_object(output.read_bytes())
    store.add_kernels(kernels, path)
    return path
