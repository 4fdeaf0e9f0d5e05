"""Layouts: the address of each logical element.

A layout maps coordinates below `shape` to an address, counted in elements from the start of the buffer:

    row_major(64, 8)                        the last dimension is contiguous
    column_major(64, 8)                     the first dimension is
    padded(64, 8, pad=1)                    row-major with rows 9 apart, against bank conflicts
    strided((64, 8), (1, 100))              any strides
    blocked("NCHW16c", 1, 64, 56, 56)       channels in blocks of 16, the block contiguous
    row_major(64, 64).swizzled(3, 3, 3)     address bits mixed by xor, against bank conflicts without padding
    f * g                                   each element of f becomes a block laid out by g (as for task mappings)

Each index is a mixed-radix number, slowest digit first, and each digit has a stride: one digit for an ordinary
dimension, two for a blocked one. Extents and strides may be symbolic (objects with ``+ * // %``) except inside blocks.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.grid_picture import Cell, Drawing, picture
from taskmap.ir.algebra.modes import Mode, flat, mode_address, normal_mode, same
from taskmap.ir.algebra.radix import Number
from taskmap.ir.algebra.shape_stride import ShapeStride
from taskmap.ir.algebra.swizzle import Swizzle
from taskmap.ir.errors import IndexOutOfRangeError, LayoutError
from taskmap.ir.util.wording import by

__all__ = ["Layout", "blocked", "column_major", "padded", "row_major", "strided"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Layout:
    """A layout. Made by row_major, column_major, strided, padded and blocked; immutable, equal by meaning.

    modes: for each dimension the digits of its index, each with its address stride, in normal form.
    size: the span: every address lies in [0, size). Includes padding.
    text: the expression it was written as.
    """

    shape: tuple[Number, ...]
    modes: tuple[Mode, ...]
    size: Number
    swizzle: Swizzle | None
    text: str

    def __call__(self, *coords: Number, xor: Callable[[Number, Number], Number] = operator.xor) -> Number:
        """The address of an element. Coordinates may be symbolic; xor is called only by a swizzled layout.

        IndexOutOfRangeError for an int outside its dimension, or for the wrong number of coordinates.
        """
        self._check(coords)
        address: Number = 0
        for index, mode in zip(coords, self.modes, strict=True):
            address = radix.plus(address, mode_address(index, mode))
        return self.swizzle(address, xor) if self.swizzle else address

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def strides(self) -> tuple[Number, ...]:
        """The stride of each dimension, 0 for an extent of 1. Raises LayoutError for a blocked or swizzled layout."""
        if self.swizzle or any(len(mode) > 1 for mode in self.modes):
            raise LayoutError(
                f"{self} has no strides",
                why="it is blocked or swizzled: equal steps of an index are not equal steps of the address.",
            )
        return tuple(mode[0][1] if mode else 0 for mode in self.modes)

    def permute(self, *order: int) -> Layout:
        """The same addresses with reordered dimensions: dimension i of the result is dimension order[i] of self."""
        if sorted(order) != list(range(self.rank)):
            raise LayoutError(
                f"cannot permute {self} by {order}", why=f"each of its {self.rank} dimensions is named once."
            )
        return Layout(
            tuple(self.shape[dim] for dim in order),
            tuple(self.modes[dim] for dim in order),
            self.size,
            self.swizzle,
            f"{_operand(self)}.permute({', '.join(map(str, order))})",
        )

    def swizzled(self, bits: int, base: int, shift: int) -> Layout:
        """The layout with swizzled addresses; `size` is rounded up to whole blocks. LayoutError if swizzled already.

        For rows of 128 bytes of f16 read 16 bytes at a time: swizzled(3, 3, 3). 8 rows then use all 32 banks.
        """
        text = f"{_operand(self)}.swizzled({bits}, {base}, {shift})"
        if self.swizzle:
            raise LayoutError(f"cannot swizzle {self}", why="it is swizzled already.")
        if min(bits, base) < 0 or shift < max(bits, 1):
            raise LayoutError(
                f"{text} is not a layout",
                why="bits and base are at least 0, and shift at least bits: else two elements could share an address.",
            )
        swizzle = Swizzle(bits, base, shift)
        if bits == 0 or (isinstance(self.size, int) and self.size <= 1 << base + shift):
            # No address has any of the bits that would be mixed in.
            return Layout(self.shape, self.modes, self.size, None, text)
        size = radix.times(radix.ceil_div(self.size, swizzle.block), swizzle.block)
        return Layout(self.shape, self.modes, size, swizzle, text)

    def __mul__(self, inner: Layout) -> Layout:
        """Blocks: index i becomes (i div d, i mod d) for inner's extent d, the address outer * inner.size + inner.

        row_major(1, 4, 56, 56) * row_major(1, 16, 1, 1) is blocked("NCHW16c", 1, 64, 56, 56). Raises LayoutError if
        inner is symbolic or partly filled, or if a swizzle would mix addresses across blocks.
        """
        if not isinstance(inner, Layout):
            return NotImplemented
        self._check_composable(inner)
        shape = tuple(radix.times(a, b) for a, b in zip(self.shape, inner.shape, strict=True))
        modes = tuple(
            (*((extent, radix.times(stride, inner.size)) for extent, stride in outer_mode), *inner_mode)
            for outer_mode, inner_mode in zip(self.modes, inner.modes, strict=True)
        )
        swizzle = inner.swizzle
        if self.swizzle:
            swizzle = Swizzle(self.swizzle.bits, self.swizzle.base + inner.size.bit_length() - 1, self.swizzle.shift)
        size = radix.times(self.size, inner.size)
        return _layout(shape, modes, size, f"{self.text} * {inner.text}", swizzle)

    @property
    def is_injective(self) -> bool:
        """True if no two elements share an address. LayoutError for a symbolic layout."""
        self._require_ints("tell whether elements share addresses in")
        digits = sorted((stride, extent) for mode in self.modes for extent, stride in mode)
        reach = 0  # the largest address that the digits so far can produce; a larger stride keeps all addresses apart
        for stride, extent in digits:
            if stride == 0:
                return False
            if stride <= reach:
                return self._is_injective_by_listing()
            reach += stride * (extent - 1)
        return True

    @property
    def is_bijective(self) -> bool:
        """True if every address in [0, size) belongs to exactly one element. LayoutError for a symbolic layout."""
        return self.is_injective and bool(radix.product(self.shape) == self.size)

    def shape_stride(self) -> ShapeStride:
        """The layout in shape:stride notation. LayoutError for swizzles and partly filled blocks."""
        return _in_strides(self)

    def draw(self, *, limit: int = 32) -> Drawing:
        """A picture: the address of each element. LayoutError for a symbolic layout."""
        self._require_ints("draw")
        return picture(f"{self}        {self.size} addresses", self.shape, lambda at: Cell(str(self(*at))), limit)

    def __eq__(self, other: object) -> bool:
        """True if both give each element the same address and have the same size, however they were written."""
        if not isinstance(other, Layout):
            return NotImplemented
        if not (same(self.shape, other.shape) and same((self.size,), (other.size,))):
            return False
        if self.swizzle == other.swizzle:  # a bijection: addresses are equal after it exactly when they are before it
            return all(same(flat(a), flat(b)) for a, b in zip(self.modes, other.modes, strict=True))
        if not (self._has_ints and other._has_ints):
            return False  # symbolic layouts are compared structurally
        self._check_size("compare")
        return all(self(*at) == other(*at) for at in itertools.product(*map(range, self.shape)))

    def __hash__(self) -> int:
        return hash(tuple(extent if isinstance(extent, int) else None for extent in (*self.shape, self.size)))

    def __repr__(self) -> str:
        return self.text

    @property
    def _has_ints(self) -> bool:
        return all(isinstance(n, int) for n in (*self.shape, *itertools.chain.from_iterable(map(flat, self.modes))))

    def _require_ints(self, verb: str) -> None:
        if not self._has_ints:
            raise LayoutError(f"cannot {verb} {self}", why="its extents or strides are symbolic.")

    def _check_size(self, verb: str) -> None:
        if radix.product(self.shape) > radix.LARGEST:
            raise LayoutError(
                f"cannot {verb} {self}",
                why=f"it would be done element by element, and it has more than {radix.LARGEST} elements.",
            )

    def _is_injective_by_listing(self) -> bool:
        """Interleaved strides: enumerate the addresses. A swizzle is a bijection and does not matter here."""
        self._check_size("tell whether elements share addresses in")
        seen: set[int] = set()
        for at in itertools.product(*map(range, self.shape)):
            address = self(*at)
            if address in seen:
                return False
            seen.add(address)
        return True

    def _check(self, coords: tuple[Number, ...]) -> None:
        inside = len(coords) == self.rank and all(
            not (isinstance(index, int) and isinstance(extent, int)) or 0 <= index < extent
            for index, extent in zip(coords, self.shape, strict=True)
        )
        if not inside:
            raise IndexOutOfRangeError(f"{self} has no element {coords}", why=f"its shape is {by(self.shape)}.")

    def _check_composable(self, inner: Layout) -> None:
        what = f"cannot compose {self} with {inner}"
        if self.rank != inner.rank:
            raise LayoutError(what, why=f"they have {self.rank} and {inner.rank} dimensions.")
        if not (inner._has_ints and isinstance(inner.size, int)):
            raise LayoutError(what, why="the inner layout is symbolic, so the index of a block is not known.")
        for extent, mode in zip(inner.shape, inner.modes, strict=True):
            if radix.product(digit for digit, _ in mode) != extent:
                raise LayoutError(
                    what, why=f"a block of the inner layout is partly filled: {mode} for {extent} indices."
                )
        if inner.swizzle and (self.swizzle or inner.size % inner.swizzle.period):
            raise LayoutError(what, why="the inner layout is swizzled, and its blocks would be mixed with each other.")
        if self.swizzle and inner.size & (inner.size - 1):
            raise LayoutError(
                what, why=f"the outer layout is swizzled, and the inner size {inner.size} is not a power of two."
            )


def row_major(*shape: Number) -> Layout:
    """Contiguous, with the last dimension fastest."""
    return _compact(shape, range(len(shape)), f"row_major{_arguments(shape)}")


def column_major(*shape: Number) -> Layout:
    """Contiguous, with the first dimension fastest."""
    return _compact(shape, range(len(shape))[::-1], f"column_major{_arguments(shape)}")


def padded(*shape: Number, pad: int) -> Layout:
    """Row-major with `pad` unused elements after each row: strides as if the last extent were larger by pad."""
    if not shape or pad < 0:
        raise LayoutError(
            f"padded{_arguments(shape)} by {pad} is not a layout", why="it pads rows by 0 or more elements."
        )
    rows = (*shape[:-1], radix.plus(shape[-1], pad))
    strides = radix.weights(rows)
    return _layout(
        shape, _modes(shape, strides), radix.product(rows), f"padded({', '.join(map(str, shape))}, pad={pad})"
    )


def strided(shape: Sequence[Number], strides: Sequence[Number]) -> Layout:
    """Address sum(index * stride). Strides may be 0 (elements share an address) but not negative."""
    shape, strides = tuple(shape), tuple(strides)
    text = f"strided({shape}, {strides})"
    if len(shape) != len(strides) or any(isinstance(stride, int) and stride < 0 for stride in strides):
        raise LayoutError(
            f"{text} is not a layout", why="it needs one stride for each dimension, and strides are not negative."
        )
    size: Number = 1
    for extent, stride in zip(shape, strides, strict=True):
        size = radix.plus(size, radix.times(radix.plus(extent, -1), stride))
    empty = any(radix.is_int(extent, 0) for extent in shape)
    return _layout(shape, _modes(shape, strides), 0 if empty else size, text)


def blocked(tag: str, *shape: Number, logical: str | None = None) -> Layout:
    """The layout described by a tag such as "NCHW16c", as in oneDNN.

    tag: memory order, slowest first. An uppercase letter is a dimension; a number with its lowercase letter is a block
    of it, so index c lies in block c // 16 at c % 16. Blocks are padded to full size. logical: the dimension order of
    the coordinates and of shape, by default that of the uppercase letters: blocked("NHWC", 1, 3, 8, 8, logical="NCHW").
    """
    outer = "".join(re.findall(r"[A-Z]", tag))
    names = outer if logical is None else logical
    what = f"the layout tag {tag!r} does not describe {by(shape)} elements"
    if not re.fullmatch(r"([A-Z]|[1-9][0-9]*[a-z])+", tag):
        raise LayoutError(what, why="a tag is made of dimensions (N) and blocks (16c).")
    if len(set(outer)) != len(outer) or sorted(names) != sorted(outer) or len(names) != len(shape):
        raise LayoutError(
            what, why=f"{names!r} names dimensions {by(names)} for {len(shape)} extents; each is named once."
        )
    blocks = [(letter.upper(), int(count)) for count, letter in re.findall(r"([0-9]+)([a-z])", tag)]
    if not {name for name, _ in blocks} <= set(names):
        raise LayoutError(what, why="it blocks a dimension that it does not have.")

    def outer_extent(name: str) -> Number:
        return radix.ceil_div(shape[names.index(name)], int(radix.product(n for block, n in blocks if block == name)))

    # Memory order, slowest first: for each letter of the tag its dimension, its extent, and a flag for blocks.
    places = [
        (letter.upper(), int(count) if count else outer_extent(letter), bool(count))
        for count, letter in re.findall(r"([0-9]*)([A-Za-z])", tag)
    ]
    strides = radix.weights([extent for _, extent, _ in places])
    by_digit = sorted(zip(places, strides, strict=True), key=lambda place: place[0][2])  # a block is a faster digit
    modes = tuple(tuple((extent, stride) for (at, extent, _), stride in by_digit if at == name) for name in names)
    suffix = "" if logical is None else f", logical={logical!r}"
    text = f"blocked({', '.join([repr(tag), *map(str, shape)])}{suffix})"
    return _layout(shape, modes, radix.product(extent for _, extent, _ in places), text)


def _compact(shape: tuple[Number, ...], order: Sequence[int], text: str) -> Layout:
    """Contiguous, with the dimensions in this order from slowest to fastest."""
    weights = radix.weights([shape[dim] for dim in order])
    strides = [weights[order.index(dim)] for dim in range(len(shape))]
    return _layout(shape, _modes(shape, strides), radix.product(shape), text)


def _modes(shape: Sequence[Number], strides: Sequence[Number]) -> tuple[Mode, ...]:
    return tuple(((extent, stride),) for extent, stride in zip(shape, strides, strict=True))


def _layout(
    shape: tuple[Number, ...], modes: tuple[Mode, ...], size: Number, text: str, swizzle: Swizzle | None = None
) -> Layout:
    """A layout in normal form, after a check of its extents. An empty layout has no addresses, so no modes either."""
    for extent in shape:
        if (isinstance(extent, int) and extent < 0) or isinstance(extent, float):
            raise LayoutError(
                f"{text} is not a layout", why=f"an extent is an int of at least 0, or symbolic, not {extent}."
            )
    if any(radix.is_int(extent, 0) for extent in shape):
        return Layout(shape, ((),) * len(shape), size, None, text)
    return Layout(shape, tuple(map(normal_mode, shape, modes)), size, swizzle, text)


def _operand(layout: Layout) -> str:
    return f"({layout.text})" if " * " in layout.text else layout.text


def _arguments(shape: Sequence[Number]) -> str:
    return f"({', '.join(map(str, shape))})"


def _in_strides(layout: Layout) -> ShapeStride:
    """The layout in shape:stride notation. LayoutError for a swizzle, and for a partly filled block."""
    refuse_swizzle(layout)
    for dim, (extent, mode) in enumerate(zip(layout.shape, layout.modes, strict=True)):
        covered = radix.product(digit for digit, _ in mode)
        if len(mode) > 1 and isinstance(extent, int) and covered != extent:
            raise LayoutError(
                f"{layout} has no shape:stride notation",
                why=f"dimension {dim} has {extent} elements in blocks that hold {covered}.",
            )
    return ShapeStride(layout.modes)


def refuse_swizzle(layout: Layout) -> None:
    """Raises LayoutError for a swizzled layout, which shape:stride notation cannot express."""
    if layout.swizzle:
        raise LayoutError(
            f"{layout} has no shape:stride notation",
            why="a swizzle combines address bits by xor, and strides only add.",
            hint="Convert the layout before it is swizzled.",
        )
