"""The number of OpenMP threads, for kernels that are called from Python."""

from __future__ import annotations

import ctypes


class openmp_threads:  # noqa: N801  a context manager that reads as a function
    """OpenMP uses ``count`` threads inside; None leaves the number unchanged."""

    def __init__(self, count: int | None) -> None:
        self.count = count
        self.before = 0

    def __enter__(self) -> None:
        if self.count is not None:
            openmp = ctypes.CDLL(None)
            self.before = openmp.omp_get_max_threads()
            openmp.omp_set_num_threads(self.count)

    def __exit__(self, *exc: object) -> None:
        if self.count is not None:
            ctypes.CDLL(None).omp_set_num_threads(self.before)
