"""A GPU for machines without one: its memory is the host's, its kernels run in the simulator, its clock is a list."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim.run import run
from tests.backend.fake_driver import FakeApi, Launched

OPERANDS = 3


@dataclass
class FakeGpu(FakeApi):
    """The driver of one. ``milliseconds``: of one launch, by kernel. ``broken``: kernels that do nothing."""

    capability: tuple[int, int] = (8, 0)
    sources: dict[str, CudaSource] = field(default_factory=dict)
    milliseconds: dict[str, float] = field(default_factory=lambda: defaultdict(lambda: 1.0))
    broken: set[str] = field(default_factory=set)
    simulated: int = 0
    _memory: dict[int, Any] = field(default_factory=dict)
    _clock: float = 0.0
    _times: dict[int, float] = field(default_factory=dict)
    _known: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counts = defaultdict(lambda: OPERANDS)
        self.on_launch = self._compute

    def _compute(self, launched: Launched) -> None:
        self._clock += self.milliseconds[launched.symbol]
        source = self.sources[launched.symbol]
        if launched.symbol in self.broken or self._known.get("last") == launched.symbol:
            return  # what was computed is there already
        arrays = [np.ctypeslib.as_array(self._memory[address]) for address in launched.values]
        run(source, arrays, checks=False, counters=False)
        self.simulated += 1
        self._known["last"] = launched.symbol

    def cuMemAlloc(self, size: int) -> tuple[Any, ...]:  # noqa: N802  the driver's names
        block = (ctypes.c_uint8 * size)()
        self._memory[ctypes.addressof(block)] = block
        return self._answer("cuMemAlloc", ctypes.addressof(block))

    def cuMemcpyHtoD(self, to: int, start: int, size: int) -> tuple[Any, ...]:  # noqa: N802
        self._known.clear()
        ctypes.memmove(to, start, size)
        return self._answer("cuMemcpyHtoD")

    def cuMemcpyDtoH(self, to: int, start: int, size: int) -> tuple[Any, ...]:  # noqa: N802
        ctypes.memmove(to, start, size)
        return self._answer("cuMemcpyDtoH")

    def cuEventRecord(self, event: int, stream: Any) -> tuple[Any, ...]:  # noqa: N802
        self._times[event] = self._clock
        return self._answer("cuEventRecord")

    def cuEventElapsedTime(self, first: int, second: int) -> tuple[Any, ...]:  # noqa: N802
        return self._answer("cuEventElapsedTime", self._times[second] - self._times[first])
