"""NVRTC, the CUDA C++ compiler as a library: it needs neither a driver nor a GPU.

A compilation releases the interpreter's lock, so threads compile side by side (two kernels on two cores took 1.05 times
as long as one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from taskmap.ir.errors import CompilerFailedError, CompilerNotFoundError

INSTALL = "Install it: pip install 'cuda-bindings==13.0.*' 'nvidia-cuda-nvrtc==13.0.*'. It needs no GPU."


@dataclass(frozen=True, slots=True)
class Assembled:
    """The output of a compiler for one source: a CUBIN (or PTX), and its log."""

    image: bytes
    log: str


class RefusedSourceError(Exception):
    """The compiler rejected a source; the text is its log."""


@lru_cache(maxsize=1)
def nvrtc_module() -> ModuleType:
    """The bindings of NVRTC, the library loaded. Raises CompilerNotFoundError."""
    try:
        from cuda.bindings import nvrtc  # noqa: PLC0415  # pyright: ignore[reportAttributeAccessIssue]  no stubs
    except ImportError as error:
        raise CompilerNotFoundError("no CUDA compiler found", why=f"{error}.", hint=INSTALL) from error
    try:
        nvrtc.nvrtcVersion()
    except Exception as error:  # the bindings raise RuntimeError or an error of their own loader
        raise CompilerNotFoundError(
            "no CUDA compiler found", why=f"the library NVRTC is not there: {_first_line(error)}", hint=INSTALL
        ) from error
    module: ModuleType = nvrtc
    return module


def nvrtc_version() -> tuple[int, int]:
    """Major and minor version. Raises CompilerNotFoundError."""
    _, major, minor = nvrtc_module().nvrtcVersion()
    return int(major), int(minor)


def nvrtc_architectures() -> tuple[int, ...]:
    """The compute capabilities that NVRTC compiles for, as 75, 80, ... Raises CompilerNotFoundError."""
    nvrtc = nvrtc_module()
    return tuple(int(arch) for arch in _call(nvrtc, "nvrtcGetSupportedArchs")[0])


def assemble(text: str, name: str, flags: Sequence[str], *, ptx: bool = False) -> Assembled:
    """Compiles CUDA C++ to a CUBIN, or to PTX.

    ``name`` stands for the file in messages. ``flags`` name the architecture, sm_... for a CUBIN. Raises
    RefusedSourceError with the log if the source is rejected, CompilerNotFoundError without NVRTC, and
    CompilerFailedError if NVRTC fails otherwise.
    """
    nvrtc = nvrtc_module()
    program = _call(nvrtc, "nvrtcCreateProgram", text.encode(), name.encode(), 0, [], [])[0]
    try:
        options = [flag.encode() for flag in flags]
        status = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
        log = _bytes(nvrtc, "nvrtcGetProgramLog", program).decode(errors="replace").rstrip("\0\n ")
        if status == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            raise RefusedSourceError(log)
        _check(nvrtc, "nvrtcCompileProgram", status, log)
        return Assembled(_bytes(nvrtc, "nvrtcGetPTX" if ptx else "nvrtcGetCUBIN", program), log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _bytes(nvrtc: ModuleType, function: str, program: Any) -> bytes:
    size = _call(nvrtc, f"{function}Size", program)[0]
    made = bytearray(size)
    _call(nvrtc, function, program, made)
    return bytes(made)


def _call(nvrtc: ModuleType, function: str, *arguments: Any) -> tuple[Any, ...]:
    status, *results = getattr(nvrtc, function)(*arguments)
    _check(nvrtc, function, status)
    return tuple(results)


def _check(nvrtc: ModuleType, function: str, status: Any, log: str = "") -> None:
    if int(status) != 0:
        message = nvrtc.nvrtcGetErrorString(status)[1].decode()
        raise CompilerFailedError("NVRTC failed", where=function, why=f"{message}\n{log}".strip())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
