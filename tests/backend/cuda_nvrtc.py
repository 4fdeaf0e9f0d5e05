"""Compiling CUDA C++ on machines that may lack the compiler."""

from __future__ import annotations

import pytest

from taskmap.backend.cuda import nvrtc
from taskmap.backend.cuda.source import CudaSource
from taskmap.errors import CompilerNotFoundError


def compiles(source: CudaSource, isa: str) -> str:
    """The compiler's remarks on a kernel; CompilerFailedError for errors. Skips the test without NVRTC."""
    try:
        nvrtc.nvrtc_module()
    except CompilerNotFoundError as error:
        pytest.skip(f"NVRTC is not installed: {error.what}")
    return nvrtc.assemble(source.unit(), source.symbol, ("--std=c++17", f"--gpu-architecture={isa}")).log
