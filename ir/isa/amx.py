"""Tile products of AMX: a tile register holds 16 rows of 64 bytes, and one instruction multiplies two of them.

    tdpbf16ps                      c[i, j] += sum of a[i, k] * b[k, j], k < 32     bf16 × bf16 → f32
    tdpbssd tdpbsud tdpbusd tdpbuud   the same, k < 64                             i8 or u8 × i8 or u8 → i32

A tile of a holds a row of 32 or 64 elements in each row. A tile of b holds a group of neighbours along k (two of bf16,
four bytes) of 16 columns in each row, as ``dots`` has them: the layout called VNNI. Integer sums wrap. tdpbf16ps adds
the products of even k and those of odd k separately, each by fused multiply-adds from zero on, then the two sums to
each other and the result to c; denormal operands and results are zeros (``taskmap.ir.interp.dot_products``).

A thread uses tiles between ``configure`` and ``release``, which frees the processor from saving them at each switch of
threads. The system grants tiles to a process on request (``taskmap.backend.cpu.tile_permission``); ``amx_bf16`` and
``amx_int8`` are features of a host only if it did.

``tile_set(product)`` gives the instructions that a microkernel needs around a product. Entries with the prefix sim_ are
those of the feature amx_sim, a software model (backend/cpu/tile_model.c) that runs on every CPU.

Source: "Intel Architecture Instruction Set Extensions Programming Reference", chapter "Intel AMX".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from taskmap.ir.algebra.mapping import TaskMapping, repeat
from taskmap.ir.isa.entry import Instruction, Parameter, Place, at_least, having
from taskmap.ir.isa.specs import MatMulSpec, PrefetchSpec, TileMoveSpec, TileStateSpec, TileZeroSpec
from taskmap.ir.types import DType, bf16, f32, i8, i32, i64, u8

__all__ = ["AMX", "PREFETCH", "ROWS", "ROW_BYTES", "TILES", "TileInstructions", "tile_set"]

ROWS = 16
"""Rows of a tile register."""
ROW_BYTES = 64
"""Bytes of a row of a tile register."""
TILES = 8
"""The number of tile registers."""

_SIMULATED = "sim_"
_STRIDE = Parameter("stride", Place.VALUE, dtypes=(i64,))


def _tile(name: str, dtype: DType, owner: TaskMapping, effect: str = "r") -> Parameter:
    return Parameter(name, Place.REGISTERS, effect, (dtype,), owner.num_slots, owner=owner)


def _whole(dtype: DType) -> TaskMapping:
    """The elements of a tile by rows."""
    return repeat(ROWS, ROW_BYTES // dtype.bytes)


def _product(name: str, a: DType, b: DType, c: DType, feature: str, form: str) -> Instruction:
    size = c.bytes // a.bytes
    k = ROW_BYTES // a.bytes
    owner_b = repeat(k // size, 1) * repeat(1, ROWS) * repeat(size, 1)
    return Instruction(
        name=f"{form}{name}",
        spec=MatMulSpec(ROWS, ROW_BYTES // c.bytes, k, a, b, c),
        targets=having(feature),
        owner_c=_whole(c),
        owner_a=_whole(a),
        owner_b=owner_b,
        text=f"tm_{form}{name}({{c}}, {{a}}, {{b}})",
        family=name,
        parameters=(_tile("c", c, _whole(c), "rw"), _tile("a", a, _whole(a)), _tile("b", b, owner_b)),
    )


def _move(dtype: DType, feature: str, form: str, *, store: bool = False) -> Instruction:
    verb = "store" if store else "load"
    return Instruction(
        name=f"{form}tile_{verb}_{dtype}",
        spec=TileMoveSpec(ROWS, ROW_BYTES // dtype.bytes, dtype, store),
        targets=having(feature),
        owner_c=_whole(dtype),
        text=f"tm_{form}tile_{verb}({{tile}}, {{memory}}, {{stride}})",
        family=f"tile_{verb}",
        parameters=(
            _tile("tile", dtype, _whole(dtype), "r" if store else "w"),
            Parameter("memory", Place.MEMORY, "w" if store else "r", (dtype,), bytes=0),
            _STRIDE,
        ),
    )


def _zero(dtype: DType, feature: str, form: str) -> Instruction:
    return Instruction(
        name=f"{form}tile_zero_{dtype}",
        spec=TileZeroSpec(ROWS, ROW_BYTES // dtype.bytes, dtype),
        targets=having(feature),
        owner_c=_whole(dtype),
        text=f"tm_{form}tile_zero({{tile}})",
        family="tile_zero",
        parameters=(_tile("tile", dtype, _whole(dtype), "w"),),
    )


def _state(action: str, feature: str, form: str) -> Instruction:
    return Instruction(
        name=f"{form}tile_{action}",
        spec=TileStateSpec(action),
        targets=having(feature),
        text=f"tm_{form}tile_{action}()",
        family=f"tile_{action}",
    )


_BYTE_TYPES = {"s": i8, "u": u8}
_OPERANDS = (bf16, i8, u8, f32, i32)
"""The element types that tiles are loaded with."""
_SUMS = (f32, i32)


def _entries(form: str, tiles: str, floats: str, integers: str) -> tuple[Instruction, ...]:
    return (
        _product("tdpbf16ps", bf16, bf16, f32, floats, form),
        *(_product(f"tdpb{x}{y}d", a, b, i32, integers, form) for x, a in _BYTE_TYPES.items()
          for y, b in _BYTE_TYPES.items()),
        *(_move(t, tiles, form) for t in _OPERANDS),
        *(_move(t, tiles, form, store=True) for t in _SUMS),
        *(_zero(t, tiles, form) for t in _SUMS),
        _state("configure", tiles, form),
        _state("release", tiles, form),
    )  # fmt: skip


AMX: tuple[Instruction, ...] = (
    *_entries("", "amx_tile", "amx_bf16", "amx_int8"),
    *_entries(_SIMULATED, "amx_sim", "amx_sim", "amx_sim"),
)
"""The instructions of AMX, then those of its software model."""


PREFETCH = Instruction(
    name="prefetch_line",
    spec=PrefetchSpec("l2"),
    targets=at_least("generic"),
    text="tm_prefetch_line({memory})",
    family="prefetch_line",
    parameters=(Parameter("memory", Place.MEMORY, bytes=0),),
)
"""A hint that a line of memory will be read: products of tiles read faster than a processor fetches on its own."""


@dataclass(frozen=True, slots=True)
class TileInstructions:
    """The instructions with which a microkernel multiplies tiles: ``product``, the loads of its operands and of its
    sums, and the rest."""

    product: Instruction
    load_a: Instruction
    load_b: Instruction
    load_c: Instruction
    store_c: Instruction
    zero_c: Instruction
    configure: Instruction
    release: Instruction

    @property
    def spec(self) -> MatMulSpec:
        """The product's spec."""
        assert isinstance(self.product.spec, MatMulSpec)
        return self.product.spec

    @property
    def group(self) -> int:
        """Neighbours along the sum that a tile of b holds together."""
        return self.spec.c.bytes // self.spec.a.bytes


@lru_cache(maxsize=64)
def tile_set(product: Instruction) -> TileInstructions | None:
    """The instructions around ``product``; None if it is not a product of tiles."""
    if product not in AMX or not isinstance(product.spec, MatMulSpec):
        return None
    spec = product.spec
    form = _SIMULATED if product.name.startswith(_SIMULATED) else ""

    def named(name: str) -> Instruction:
        return next(i for i in AMX if i.name == f"{form}tile_{name}")

    return TileInstructions(
        product,
        named(f"load_{spec.a}"),
        named(f"load_{spec.b}"),
        named(f"load_{spec.c}"),
        named(f"store_{spec.c}"),
        named(f"zero_{spec.c}"),
        named("configure"),
        named("release"),
    )
