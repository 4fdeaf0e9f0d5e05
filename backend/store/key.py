"""The source of one kernel, and the key under which its binary is stored."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from taskmap.ir.features import isa_text

RUNTIME_ABI = 2
"""Version of the calling convention that kernels assume; incremented when a stored kernel can no longer be called."""

_INTEGERS = re.compile(r"\b(?:[iu](?:8|16|32)|b8)(?:x\d+)?\b|\bi64x(?!1\b)|\bi64 \*|\(\(i64\)\(")
"""Integers other than addresses and counts, which are scalars of type i64, in generated C."""
_TILE = 6
_OTHER_FUNCTION = re.compile(
    r"\btm_(?!fma_|load_f|store_f|load_masked_f|store_masked_f|splat_|min_i64x1|max_i64x1|max_f|min_f|atleast_|atmost_"
    r"|select_|parallel_1\b|iota_)[a-z]+_(?=[a-z]+\d+(?:x\d+)?\b)"
)
"""A function of the prelude that a register tile does not need."""
_INTEGER_HINTS = ("i8", "i16", "i32", "u8", "u16", "u32", "b8", "i64x", "i64 *", "((i64)(")
"""Each match of ``_INTEGERS`` begins with one of these. To look for them takes a hundredth of the pattern's time."""
_FLOAT_OF_A_SIZE = ("tm_cast_i64x1_to_f64x1(", "((double)")
"""The first steps of a size that is computed in floating point."""
_INSTRUCTIONS = {
    "vdpbf16ps": "avx512_bf16",
    "lanes_vdpbf16ps": "avx512_bf16",
    "vpdpbusd": "avx512_vnni",
    "vpdpwssd": "avx512_vnni",
    "vex_vpdpbusd": "avx_vnni",
    "vex_vpdpwssd": "avx_vnni",
    "vcvtneps2bf16": "avx512_bf16",
    "vpermi2b": "avx512vbmi",
}
"""The CPU feature that a function of the prelude needs beyond its instruction set, by the function's name."""
_TILES = {
    "tile_configure": "amx_tile",
    "tdpbf16ps": "amx_bf16",
    "tdpbssd": "amx_int8",
    "tdpbsud": "amx_int8",
    "tdpbusd": "amx_int8",
    "tdpbuud": "amx_int8",
    "sim_tile_configure": "amx_sim",
}
"""The same for macros of tiles."""
_INSTRUCTION = re.compile(rf"\btm_({'|'.join(_INSTRUCTIONS)})_[a-z]+\d+x\d+|\btm_({'|'.join(_TILES)})\(")
_ASSEMBLED = re.compile(r'"(%\{vex%\} )?(vdpbf16ps|vpdpbusd) ')
"""An instruction of a register tile in assembly that needs such a feature."""
_FUNCTION = re.compile(r"tm_\w+")
_SYMBOL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
LAUNCH = "taskmap_run_"
"""The beginning of the symbols of launch sequences."""
_ONCE = "_once"
"""The end of the symbols of kernels that run once."""


@dataclass(frozen=True, slots=True)
class KernelKind:
    """The properties of a kernel that decide how it is compiled.

    integers: false only if every element that the text reads, computes and writes is a float. spelled_out: the text
    consists of register tiles, that is, of many products, each written out in vectors, and no function that a compiler
    would have to inline and schedule well, such as exp; or of the calls of a launch sequence. float_sizes: sizes are
    computed in floating point; they must equal Python's result for the same size. features: the CPU features that its
    instructions need beyond those of an instruction set, sorted by name. once: it runs once, so a faster kernel would
    not be worth the time to compile it.
    """

    integers: bool = False
    spelled_out: bool = False
    float_sizes: bool = False
    features: tuple[str, ...] = ()
    once: bool = False


@dataclass(frozen=True, slots=True)
class KernelSource:
    """C source of one kernel.

    symbol: the only external name that `text` defines; everything else in it must be static, and named so that many
    kernels fit into one translation unit. prelude: the text at the head of a unit (types, inline helpers). As one text,
    only kernels of the same prelude share it; as a tuple of definitions, each after those that it needs, the unit's
    prelude is the union of its kernels' definitions, so a name must have the same definition everywhere. needs_error:
    the function takes an `int *error` last.
    """

    symbol: str
    text: str
    prelude: str | tuple[str, ...] = ""
    needs_error: bool = False

    def __post_init__(self) -> None:
        if not _SYMBOL.fullmatch(self.symbol):
            raise ValueError(f"not a C identifier: {self.symbol!r}")

    def is_same_kernel(self, other: KernelSource) -> bool:
        """True if the two are equal."""
        return self == other

    @property
    def kind(self) -> KernelKind:
        """Its kind; the text is examined once."""
        return _kind(self.symbol, self.text)

    def running_once(self) -> KernelSource:
        """The same kernel under another symbol, for work that is done once: it is compiled in a third of the time."""
        symbol = self.symbol + _ONCE
        return replace(self, symbol=symbol, text=self.text.replace(self.symbol, symbol))


@lru_cache(maxsize=1024)  # requested several times while a kernel is compiled
def _kind(symbol: str, text: str) -> KernelKind:
    return KernelKind(
        integers=any(_INTEGERS.match(text, at) for hint in _INTEGER_HINTS for at in _places(hint, text)),
        spelled_out=symbol.startswith(LAUNCH) or _is_spelled_out(text),
        float_sizes=any(step in text for step in _FLOAT_OF_A_SIZE),
        features=_features(text),
        once=symbol.endswith(_ONCE),
    )


def _places(part: str, text: str) -> Iterator[int]:
    """The positions in ``text`` at which ``part`` begins."""
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _is_spelled_out(text: str) -> bool:
    # Each name once: a tile repeats a few thousand times.
    products = text.count("tm_fma_f32x") + text.count("vfmadd231ps")
    return products >= _TILE and not any(map(_OTHER_FUNCTION.match, set(_FUNCTION.findall(text))))


def _features(text: str) -> tuple[str, ...]:
    if not any(name in text for name in (*_INSTRUCTIONS, *_TILES)):
        return ()
    called = {_INSTRUCTIONS[vector] if vector else _TILES[tile] for vector, tile in _INSTRUCTION.findall(text)}
    assembled = {_INSTRUCTIONS["vex_" + name if vex else name] for vex, name in _ASSEMBLED.findall(text)}
    return tuple(sorted(called | assembled))


def key_parts(
    source: KernelSource, *, compiler: str, flags: tuple[str, ...], isa: str, abi: int = RUNTIME_ABI
) -> dict[str, str]:
    """Everything that can change the binary of a kernel, or whether it may be called, by name."""
    return {
        "symbol": source.symbol,
        "text": _digest(source.text),
        "prelude": _digest(json.dumps(source.prelude)),
        "compiler": compiler,
        "flags": json.dumps(flags),
        "isa": isa_text(isa, source.kind.features),
        "abi": str(abi),
    }


def kernel_key(parts: Mapping[str, str]) -> str:
    """The store's key for these parts: 64 hexadecimal digits."""
    return _digest(json.dumps(parts, sort_keys=True))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
