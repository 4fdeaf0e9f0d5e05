"""Register tiles as inline assembly: the sums of a product, in one statement that a C compiler passes on unread.

    acc = 0;   for k:  acc += a[rows] @ b[columns];   out = acc        (or out += acc, or with sums that begin as out)

A tile is a few hundred vector instructions whose registers and order are known. gcc would take longer for them than
for the rest of a kernel, and it keeps a sum on the stack where this is not necessary. A tile here consists of vectors
of sums on a CPU with fused multiply-adds, or with dot products of neighbours; its operands are read from memory as
they are, at distances that are known. Any other tile is written in C.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from taskmap.ir import nodes as ir
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.types import DType, f32

_WIDTHS = {16: "zmm", 8: "ymm", 4: "xmm"}
_FLIP = "0x80808080"
"""The highest bits of four bytes."""
_DOTS = ("vdpbf16ps", "vpdpbusd")


@dataclass(frozen=True, slots=True)
class TileProduct:
    """The instruction of a tile: each lane of a sum gains the products of ``group`` neighbours of a and of b.

    swaps: either operand may be the one in memory; otherwise only that of b.
    """

    mnemonic: str
    sums: DType
    group: int
    swaps: bool

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of a or b."""
        return self.sums.bytes // self.group


def product_of(instruction: Instruction, lanes: int) -> TileProduct | None:
    """The product that an instruction computes, on sums of ``lanes`` elements; None if a tile has no such product."""
    spec = instruction.spec
    if instruction.name == f"fma_f32x{lanes}":
        return TileProduct("vfmadd231ps", f32, 1, swaps=True)
    if not isinstance(spec, MatMulSpec) or instruction.family not in _DOTS or spec.n != lanes or spec.m != 1:
        return None
    encoded = "%{vex%} " if instruction.name.startswith("vex_") else ""
    return TileProduct(encoded + instruction.family, spec.c, spec.k, swaps=instruction.family == "vdpbf16ps")


@dataclass(frozen=True, slots=True)
class Address:
    """An address: at first that of element ``base`` of ``buffer``. moves: the elements that it moves on at the end of
    each iteration, for each loop."""

    buffer: ir.Buffer
    base: ir.Expr
    moves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """A product in registers. Distances are in elements from the first row, column, or sum.

    by: its instruction. loops: the extents, outermost first; only the first may be an expression. rows, columns: the
    distances of the elements of a, and of the vectors of b, that a step reads. sums: those of the vectors of ``out``,
    row by row. start, add: the sums begin as ``out``; they are added to it. end: the statement after the tile. flipped:
    the highest bits of the elements of a are flipped. ahead, lines: the first line that a step prefetches, and the
    distances of all.
    """

    by: TileProduct
    loops: tuple[ir.Expr | int, ...]
    lanes: int
    a: Address
    b: Address
    out: Address
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    sums: tuple[int, ...]
    start: bool
    add: bool
    end: int
    flipped: bool = False
    ahead: Address | None = None
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Registers:
    """The registers of a tile. broadcasts, loads: the elements of a, and the vectors of b, are operands in memory.
    flip: that of the highest bits of four bytes, which otherwise lie in memory."""

    kind: str
    sums: tuple[int, ...]
    vectors: tuple[int, ...]
    left: int
    broadcasts: bool = False
    loads: bool = False
    flip: int | None = None

    @staticmethod
    def of(tile: RegisterTile, vector_bytes: int) -> _Registers | None:
        wide = vector_bytes == 64
        number = 32 if wide else 16
        rows, columns = len(tile.rows), len(tile.columns)
        loads, broadcasts = rows == 1, wide and columns == 1 and rows > 1 and tile.by.swaps
        vectors = 0 if loads else columns
        needed = rows * columns + vectors + (not broadcasts) + (tile.flipped and wide)
        if needed > number:
            return None
        sums = tuple(range(number - 1, number - 1 - rows * columns, -1))
        flip = vectors + 1 if tile.flipped and wide else None
        return _Registers(_WIDTHS[tile.lanes], sums, tuple(range(vectors)), vectors, broadcasts, loads, flip)

    def name(self, number: int) -> str:
        return f"%%{self.kind}{number}"

    @property
    def used(self) -> list[int]:
        flip = [] if self.flip is None else [self.flip]
        return sorted([*self.sums, *self.vectors, *([] if self.broadcasts else [self.left]), *flip])


def fits(tile: RegisterTile, vector_bytes: int) -> bool:
    """True if there are registers enough for a tile."""
    return _Registers.of(tile, vector_bytes) is not None


def assembly(tile: RegisterTile, vector_bytes: int, a: str, b: str, out: str, count: str, ahead: str = "") -> list[str]:
    """The lines of a C block that computes a tile. a, b, out, ahead: pointers to the first elements; count: the first
    extent, which is used unless it is known."""
    registers = _Registers.of(tile, vector_bytes)
    assert registers is not None
    counts = [f"n{d}" for d in range(len(tile.loops))]
    known = [isinstance(n, int) for n in tile.loops]
    declared = [f"{name}{'' if k else f' = {count}'}" for name, k in zip(counts, known, strict=True)]
    operands = ['[a]"+&r"(a)', '[b]"+&r"(b)', *(['[p]"+&r"(p)'] if ahead else [])]
    operands += [f'[{name}]"{"=" if k else "+"}&r"({name})' for name, k in zip(counts, known, strict=True)]
    clobbered = ", ".join(f'"xmm{n}"' for n in registers.used)
    read: dict[str, list[str]] = {}
    for name, address, text in (("a", tile.a, a), ("b", tile.b, b), ("p", tile.ahead, ahead)):
        if address is not None:
            read.setdefault(str(address.buffer.dtype), []).append(f"*{name} = {text}")
    inputs = ", ".join(['[out]"r"(out)', *(['[flip]"m"(flip)'] if tile.flipped else [])])
    return [
        "{",
        *(f"  const {dtype} {', '.join(names)};" for dtype, names in read.items()),
        f"  {tile.out.buffer.dtype} *out = {out};",
        f"  i64 {', '.join(declared)};",
        *([f"  static const u32x{tile.lanes} flip = {{{', '.join([_FLIP] * tile.lanes)}}};"] if tile.flipped else []),
        "  __asm__ volatile(",
        *(f'    "{line}\\n"' for line in _Writer(tile, registers).lines()),
        f'    : {", ".join(operands)} : {inputs} : "cc", "memory", {clobbered});',
        "}",
    ]


@dataclass(frozen=True, slots=True)
class _Writer:
    tile: RegisterTile
    registers: _Registers

    @property
    def next_bytes(self) -> int:
        """Bytes of an element of the buffer that is prefetched."""
        assert self.tile.ahead is not None
        return self.tile.ahead.buffer.dtype.bytes

    def lines(self) -> Iterator[str]:
        tile, r = self.tile, self.registers
        if r.flip is not None:
            yield f"vbroadcastss %[flip], {r.name(r.flip)}"
        for number, distance in zip(r.sums, tile.sums, strict=True):
            yield self.begin(number, distance)
        if not isinstance(tile.loops[0], int):
            yield "testq %[n0], %[n0]"
            yield "jle .Ltile%=_end"
        yield from self.loop(0)
        yield ".Ltile%=_end:"
        yield from self.end()

    def begin(self, number: int, distance: int) -> str:
        name, first = self.registers.name(number), self.registers.name(self.registers.sums[0])
        if self.tile.start:
            return f"vmovups {4 * distance}(%[out]), {name}"
        if name != first:
            return f"vmovaps {first}, {name}"
        return (
            f"vxorps %%xmm{number}, %%xmm{number}, %%xmm{number}" if number < 16 else f"vpxord {name}, {name}, {name}"
        )

    def loop(self, depth: int) -> Iterator[str]:
        tile, extent = self.tile, self.tile.loops[depth]
        inner = depth + 1
        if isinstance(extent, int):
            yield f"movl ${extent}, %k[n{depth}]"
        if inner == len(tile.loops):
            yield ".p2align 6"
        yield f".Ltile%=_{depth}:"
        moves = {
            name: f"addq ${address.buffer.dtype.bytes * address.moves[depth]}, %[{name}]"
            for name, address in (("a", tile.a), ("b", tile.b), ("p", tile.ahead))
            if address is not None and address.moves[depth]
        }
        if inner == len(tile.loops):
            yield from (f"prefetcht1 {self.next_bytes * distance}(%[p])" for distance in tile.lines)
            yield from self.vectors()
            if "b" in moves and not self.registers.loads:
                yield moves.pop("b")  # early: the next step's loads wait for it
            yield from self.products()
        else:
            yield from self.loop(inner)
        yield from moves.values()
        yield f"decq %[n{depth}]"
        yield f"jne .Ltile%=_{depth}"

    def vectors(self) -> Iterator[str]:
        for number, distance in zip(self.registers.vectors, self.tile.columns, strict=False):
            yield f"vmovups {self.tile.by.element_bytes * distance}(%[b]), {self.registers.name(number)}"

    def products(self) -> Iterator[str]:
        tile, r = self.tile, self.registers
        size, by = tile.by.element_bytes, tile.by.mnemonic
        rights = [f"{size * d}(%[b])" for d in tile.columns] if r.loads else [r.name(n) for n in r.vectors]
        sums = iter(r.sums)
        for distance in tile.rows:
            element = f"{size * distance}(%[a])"
            if r.broadcasts:
                yield f"{by} {element}%{{1to{tile.lanes}%}}, {rights[0]}, {r.name(next(sums))}"
                continue
            yield from self.left(element)
            for right in rights:
                yield f"{by} {right}, {r.name(r.left)}, {r.name(next(sums))}"

    def left(self, element: str) -> Iterator[str]:
        """An element of a, or a group, in every lane."""
        r = self.registers
        left = r.name(r.left)
        if r.flip is not None:
            yield f"vpxord {element}%{{1to{self.tile.lanes}%}}, {r.name(r.flip)}, {left}"
            return
        yield f"vbroadcastss {element}, {left}"
        if self.tile.flipped:
            yield f"vpxor %[flip], {left}, {left}"

    def end(self) -> Iterator[str]:
        tile, r = self.tile, self.registers
        add = "vaddps" if tile.by.sums == f32 else "vpaddd"
        for number, distance in zip(r.sums, tile.sums, strict=True):
            if tile.add:
                yield f"{add} {4 * distance}(%[out]), {r.name(number)}, {r.name(number)}"
        for number, distance in zip(r.sums, tile.sums, strict=True):
            yield f"vmovups {r.name(number)}, {4 * distance}(%[out])"
