"""Shape:stride notation, as CuTe prints layouts: ((4,8),(2,2)):((32,1),(16,8)).

Each mode takes one number, splits it into digits of the given extents, fastest first, and adds digit * stride. A layout
has one mode per dimension. A task mapping has two, worker and slot (a thread-value layout), and the result is the
address of the task. The notation: NVIDIA CUTLASS documentation, "CuTe layouts". It can express neither xor nor partly
filled blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.modes import Mode


@dataclass(frozen=True, slots=True)
class ShapeStride:
    """A layout in shape:stride notation. modes[i] lists (extent, stride), slowest first; printed, fastest first."""

    modes: tuple[Mode, ...]

    def __call__(self, *numbers: int) -> Any:
        """The address for one number per mode."""
        total: Any = 0
        for mode, number in zip(self.modes, numbers, strict=True):
            digits = radix.split(number, [extent for extent, _ in mode])
            total = radix.plus(total, radix.combine(zip(digits, (stride for _, stride in mode), strict=True)))
        return total

    def __str__(self) -> str:
        return f"{self._side(0)}:{self._side(1)}"

    def _side(self, which: int) -> str:
        def nested(mode: Mode) -> str:
            entries = [str(digit[which]) for digit in reversed(mode)]
            if not entries:
                return "10"[which]  # a mode without digits prints as 1:0
            return entries[0] if len(entries) == 1 else f"({','.join(entries)})"

        return f"({','.join(map(nested, self.modes))})"

    __repr__ = __str__
