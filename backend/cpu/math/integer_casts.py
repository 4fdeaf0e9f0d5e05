"""Integers of another width in one instruction of AVX2 or AVX-512, for which gcc 12 takes up to nine.

Inline assembly, because gcc 12 turns comparisons of bytes widened by its built-in into wrong ones. clang needs none.
"""

from __future__ import annotations

from taskmap.backend.cpu.math.types import Vector

_LETTERS = {8: "b", 16: "w", 32: "d", 64: "q"}
_SMALLEST = 8
"""Bytes of a vector that gcc keeps in a register of its own."""


def in_one_instruction(s: Vector, t: Vector, vector_bytes: int) -> str | None:
    """The body of a cast between integers whose wider vector fills a register; None if there is no such instruction.
    AVX-512 has those that keep the low bits of each integer, too."""
    if s.is_mask or t.is_mask or s.is_float or t.is_float or s.lanes == 1 or s.bits == t.bits:
        return None
    if {s.dtype[0], t.dtype[0]} - {"i", "u"} or vector_bytes < 32 or min(s.bytes, t.bytes) < _SMALLEST:
        return None
    if max(s.bytes, t.bytes) not in (16, 32, vector_bytes):
        return None
    if s.bits < t.bits:
        return _body(t, "vm", f"vpmov{'sx' if s.dtype[0] == 'i' else 'zx'}{_LETTERS[s.bits]}{_LETTERS[t.bits]}")
    return _body(t, "v", f"vpmov{_LETTERS[s.bits]}{_LETTERS[t.bits]}") if vector_bytes == 64 else None


def _body(t: Vector, source: str, instruction: str) -> str:
    return f'{t.name} y;\n  __asm__("{instruction} %1, %0" : "=v"(y) : "{source}"(x));\n  return y;'
