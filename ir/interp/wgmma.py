"""wgmma in the interpreter: operands in shared memory are found through descriptors, as the hardware does it.

A descriptor's value here is its number in its block's list of memories and descriptors. Each buffer counts as aligned
to 1024 bytes, as code generation aligns it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.errors import VerifyError
from taskmap.ir.interp.memory import CheckedAccess, Memory
from taskmap.ir.isa.wgmma_descriptor import Descriptor

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Described:
    """A descriptor, and the memory that its addresses refer to, in bytes from the memory's start."""

    memory: Memory
    descriptor: Descriptor

    def matrix(self, rows: int, k: int, access: CheckedAccess, *, transposed: bool) -> Array:
        """The operand, (rows, k); for b, its columns are the rows. Raises VerifyError for elements outside the memory
        or not written; a race with a concurrent writer is reported for the whole group."""
        size = self.memory.buffer.dtype.bytes
        places = [
            self.descriptor.address(row, column, size, transposed=transposed) // size
            for row in range(rows)
            for column in range(k)
        ]
        at = np.array(places, np.int64)
        storage = self.memory.storage
        if at.max() >= storage.data.size:
            raise VerifyError(f"a wgmma operand extends beyond {self.memory.buffer!r}")
        if storage.written is not None and not storage.written[at].all():
            raise VerifyError(f"a wgmma operand includes parts of {self.memory.buffer!r} that have not been written")
        if access.epoch:
            self.memory.track_read(at, replace(access, worker=-2))
        return storage.data[at].reshape(rows, k)
