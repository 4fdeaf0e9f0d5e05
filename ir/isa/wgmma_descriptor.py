"""The addresses of a wgmma operand's elements in shared memory, and the descriptor that encodes them.

An operand is stored as chunks of 16 bytes, neighbours along its contiguous dimension: k, or, if it is transposed, the
rows of a (columns of b). Eight lines of chunks make a swizzled atom; two offsets, in bytes, lead to the next atoms:

    k contiguous    eight rows, `swizzle` (or 16) bytes apart; the next eight rows are `stride` bytes on. A product
                    takes 32 bytes of k: two chunks side by side, or, without swizzle, `leading` bytes apart.
    m contiguous    eight k, `swizzle` (or 16) bytes apart. With a swizzle, `leading` leads to the next m beyond it and
                    `stride` to the next eight k; without, `stride` to the next m and `leading` to the next eight k.

The swizzle mixes bits 4 to 6 of an address with bits 7 to 9, so that an operand may begin at any chunk of an atom.
After: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout" and "Matrix Descriptor Format".
"""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.algebra.swizzle import Swizzle
from taskmap.ir.errors import InputError

CHUNK = 16
LINES = 8
SHARED_BYTES = 1 << 18
"""The limit of an address or an offset: 14 bits, in chunks."""

_MODES = {0: 0, 128: 1, 64: 2, 32: 3}
_BITS = {32: 1, 64: 2, 128: 3}


def swizzled(address: int, swizzle: int) -> int:
    """The swizzled address: TMA and wgmma find there the data that would be at ``address`` without a swizzle.

    swizzle: its span in bytes, 0, 32, 64 or 128. Raises InputError for another one.
    """
    if swizzle == 0:
        return address
    if swizzle not in _BITS:
        raise InputError(f"there is no swizzle of {swizzle} bytes", why="it is 0, 32, 64 or 128.")
    return int(Swizzle(_BITS[swizzle], 4, 3)(address))


@dataclass(frozen=True, slots=True)
class Descriptor:
    """start: the address of the operand in shared memory; leading and stride: offsets. All in bytes, multiples of 16.

    Raises InputError for other values.
    """

    start: int
    leading: int
    stride: int
    swizzle: int = 128

    def __post_init__(self) -> None:
        if self.swizzle not in _MODES:
            raise InputError(f"there is no swizzle of {self.swizzle} bytes", why="it is 0, 32, 64 or 128.")
        for name in ("start", "leading", "stride"):
            value = getattr(self, name)
            if value % CHUNK or not 0 <= value < SHARED_BYTES:
                raise InputError(
                    f"a wgmma descriptor cannot have {name} = {value}",
                    why=f"it is a multiple of {CHUNK} below {SHARED_BYTES}, in bytes.",
                )

    def encode(self) -> int:
        """The 64 bits that the instruction takes as its operand."""
        fields = ((self.start // CHUNK, 0), (self.leading // CHUNK, 16), (self.stride // CHUNK, 32))
        return sum(value << place for value, place in fields) | _MODES[self.swizzle] << 62

    def address(self, row: int, k: int, bytes: int, *, transposed: bool = False) -> int:
        """The address of element (row, k) of an operand; of b, ``row`` is the column. bytes: of an element.

        transposed: rows, not k, are contiguous.
        """
        along, across = (row, k) if transposed else (k, row)
        chunk, within = divmod(along * bytes, CHUNK)
        group, line = divmod(across, LINES)
        if not self.swizzle:
            # Without a swizzle a line is one chunk wide.
            far, near = (self.leading, self.stride) if transposed else (self.stride, self.leading)
            place = line * CHUNK + chunk * near + group * far
        else:
            beyond, inside = divmod(chunk, self.swizzle // CHUNK) if transposed else (0, chunk)
            place = line * self.swizzle + inside * CHUNK + beyond * self.leading + group * self.stride
        return swizzled(self.start + place + within, self.swizzle)


def decode(bits: int) -> Descriptor:
    """The descriptor that the 64 bits encode."""
    swizzle = next(size for size, mode in _MODES.items() if mode == bits >> 62 & 3)
    start, leading, stride = ((bits >> place & 0x3FFF) * CHUNK for place in (0, 16, 32))
    return Descriptor(start, leading, stride, swizzle)
