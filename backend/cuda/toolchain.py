"""The compiler of CUDA C++: its choice, its identity, and everything that determines its output for a source."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import Literal

from taskmap.backend.cuda.nvrtc import Assembled, RefusedSourceError, assemble, nvrtc_architectures, nvrtc_version
from taskmap.ir.errors import CompilerFailedError, CompilerNotFoundError, UnsupportedError

Compiler = Literal["nvrtc", "nvcc"]

_FLAGS = (
    "--std=c++17",
    "--ptxas-options=-v",  # the report of registers and spills
    "--diag-suppress=177",  # not every kernel uses every value that it names
)
_OLDEST = 75


@dataclass(frozen=True, slots=True)
class CudaToolchain:
    """A compiler of CUDA C++ set up for one architecture.

    identity: name and version. architecture: sm_80, sm_90a, ... fast_math: approximate functions and flushed
    denormals. contract: a * b + c may be one fused operation. command: the program, for nvcc.
    """

    compiler: Compiler
    identity: str
    architecture: str
    fast_math: bool = False
    contract: bool = True
    command: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """Every argument that can change the result, in order, without paths."""
        return (
            *self._architecture_flags,
            *_FLAGS,
            f"--fmad={'true' if self.contract else 'false'}",
            *(("--use_fast_math",) if self.fast_math else ()),
        )

    @property
    def _architecture_flags(self) -> tuple[str, ...]:
        if self.compiler == "nvrtc":
            return (f"--gpu-architecture={self.architecture}",)
        # nvcc's short form requests PTX of the plain architecture too, which lacks the instructions of sm_90a.
        return (f"--generate-code=arch={self._virtual},code={self.architecture}",)

    @property
    def _virtual(self) -> str:
        return self.architecture.replace("sm_", "compute_")

    def assemble(self, text: str, name: str) -> Assembled:
        """The CUBIN of a source; ``name`` stands for it in messages. Raises RefusedSourceError, CompilerFailedError."""
        if self.compiler == "nvrtc":
            return assemble(text, name, self.flags)
        return _run_nvcc(self.command, ("--cubin", *self.flags), text)

    def ptx(self, text: str, name: str) -> str:
        """The PTX of a source, which a driver of at least this compiler's version can still assemble itself."""
        flags = tuple(flag.replace(self.architecture, self._virtual) for flag in self.flags if "ptxas" not in flag)
        if self.compiler == "nvrtc":
            return assemble(text, name, flags, ptx=True).image.decode().rstrip("\0")
        flags = tuple(flag for flag in self.flags if "ptxas" not in flag)
        return _run_nvcc(self.command, ("--ptx", *flags), text).image.decode()


def find_cuda_toolchain(
    architecture: str, *, compiler: Compiler | None = None, fast_math: bool = False, contract: bool = True
) -> CudaToolchain:
    """The CUDA compiler for ``architecture``: NVRTC, or nvcc if ``compiler`` or $TASKMAP_CUDA_COMPILER selects it.

    Raises CompilerNotFoundError with instructions to install one, and UnsupportedError for an architecture that it, or
    taskmap, does not support.
    """
    number = architecture_number(architecture)
    chosen = compiler or os.environ.get("TASKMAP_CUDA_COMPILER") or "nvrtc"
    if chosen == "nvrtc":
        known = nvrtc_architectures()
        if number not in known:
            raise _unsupported(architecture, f"NVRTC {_dotted(nvrtc_version())} compiles for {_list(known)}.")
        return CudaToolchain("nvrtc", f"NVRTC {_dotted(nvrtc_version())}", architecture, fast_math, contract)
    if chosen != "nvcc":
        raise CompilerNotFoundError(
            f"there is no CUDA compiler {chosen!r}",
            where="environment variable TASKMAP_CUDA_COMPILER",
            hint="It is 'nvrtc' or 'nvcc'.",
        )
    command = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if command is None:
        raise CompilerNotFoundError("nvcc was not found", hint="Put it into PATH, or leave the choice to NVRTC.")
    return CudaToolchain("nvcc", _nvcc_identity(command), architecture, fast_math, contract, command)


def architecture_number(architecture: str) -> int:
    """80 for sm_80, 90 for sm_90a. Raises UnsupportedError for an unknown architecture, or one before sm_75."""
    match = re.fullmatch(r"sm_(\d{2,3})[af]?", architecture)
    if match is None:
        raise _unsupported(architecture, "an architecture is written sm_80, sm_90a, ...")
    if int(match.group(1)) < _OLDEST:
        raise _unsupported(architecture, "GPUs before compute capability 7.5 are not supported.")
    return int(match.group(1))


def _unsupported(architecture: str, why: str) -> UnsupportedError:
    return UnsupportedError(f"cannot compile for {architecture}", why=why)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _list(known: tuple[int, ...]) -> str:
    return ", ".join(f"sm_{number}" for number in known)


@lru_cache(maxsize=8)
def _nvcc_identity(command: str) -> str:
    try:
        answer = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerFailedError("nvcc does not report its version", where=command, why=str(error)) from error
    match = re.search(r"release .*", answer)
    return f"nvcc {match.group().strip() if match else answer.strip()}"


def _run_nvcc(command: str, flags: tuple[str, ...], text: str) -> Assembled:
    with TemporaryDirectory(prefix="taskmap-nvcc-") as folder:
        arguments = [command, *flags, "-x", "cu", "-", "-o", "image"]
        try:
            done = subprocess.run(
                arguments, input=text, capture_output=True, text=True, cwd=folder, timeout=600, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompilerFailedError("nvcc failed", where=command, why=str(error)) from error
        log = (done.stdout + done.stderr).strip()
        if done.returncode != 0:
            raise RefusedSourceError(log)
        with open(os.path.join(folder, "image"), "rb") as file:
            return Assembled(file.read(), log)
