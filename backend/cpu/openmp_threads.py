"""The number of OpenMP threads, for kernels that are called from Python."""

from __future__ import annotations

import ctypes

_PROCESS = ctypes.CDLL(None)


class openmp_threads:  # noqa: N801  a context manager that reads as a function
    """OpenMP uses ``count`` threads inside; None, or a process without OpenMP, leaves the number unchanged."""

    def __init__(self, count: int | None) -> None:
        self.count = count if count is not None and hasattr(_PROCESS, "omp_set_num_threads") else None
        self.before = 0

    def __enter__(self) -> None:
        if self.count is not None:
            self.before = _PROCESS.omp_get_max_threads()
            _PROCESS.omp_set_num_threads(self.count)

    def __exit__(self, *exc: object) -> None:
        if self.count is not None:
            _PROCESS.omp_set_num_threads(self.before)
