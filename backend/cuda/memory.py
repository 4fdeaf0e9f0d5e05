"""GPU memory from the driver alone, for processes without PyTorch; blocks are reused."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from threading import Lock

from taskmap.backend.cuda.driver import Driver
from taskmap.backend.cuda.launch import Memory
from taskmap.ir.errors import DeviceMemoryError

STREAM = 0
"""The stream of all copies and launches: the device's default stream, which runs them in order."""

_SPARE = 1 << 20


class DeviceBlock:
    """``bytes`` bytes at ``address``; returned to its memory when nothing refers to it."""

    def __init__(self, memory: DeviceMemory, address: int, size: int) -> None:
        self.memory, self.address, self.bytes = memory, address, size

    def __del__(self) -> None:
        self.memory.give(self.address, self.bytes)


@dataclass(slots=True, eq=False)
class DeviceMemory:
    """The memory of device number ``device``. A free block may be reused at once, though kernels still use it: its new
    owner works on the same stream, and so after them. The device's context must be current."""

    driver: Driver
    device: int
    _free: list[tuple[int, int]] = field(init=False, default_factory=list)
    _given: deque[tuple[int, int]] = field(init=False, default_factory=deque)
    _lock: Lock = field(init=False, default_factory=Lock)

    def allocate(self, size: int) -> Memory:
        """A block of at least ``size`` bytes, and its owner. Raises DeviceMemoryError."""
        wanted = max(size, 1)
        with self._lock:
            self._collect()
            fitting = [block for block in self._free if wanted <= block[1] <= 2 * wanted + _SPARE]
            if fitting:
                best = min(fitting, key=lambda block: block[1])
                self._free.remove(best)
                return best[0], DeviceBlock(self, *best)
        address = self._new(wanted)
        return address, DeviceBlock(self, address, wanted)

    def give(self, address: int, size: int) -> None:
        """Marks a block as free."""
        # Without the lock: the garbage collector may free blocks at any moment, also in a thread that holds it.
        self._given.append((address, size))

    def release(self) -> None:
        """Returns the free blocks to the driver, which waits for kernels that use them."""
        with self._lock:
            self._collect()
            blocks, self._free = self._free, []
        for address, _ in blocks:
            self.driver.call("cuMemFree", address)

    def write(self, address: int, source: int, size: int) -> None:
        """Copies host memory to the GPU; the host memory may be changed when this returns."""
        if size:
            self.driver.call("cuMemcpyHtoD", address, source, size)

    def read(self, target: int, address: int, size: int) -> None:
        """Copies GPU memory to the host, once all earlier launches have ended."""
        if size:
            self.driver.call("cuMemcpyDtoH", target, address, size)

    def _collect(self) -> None:
        while self._given:
            self._free.append(self._given.popleft())

    def _new(self, size: int) -> int:
        with contextlib.suppress(DeviceMemoryError):
            return int(self.driver.call("cuMemAlloc", size))
        self.release()
        return int(self.driver.call("cuMemAlloc", size, where=f"{size} bytes"))
