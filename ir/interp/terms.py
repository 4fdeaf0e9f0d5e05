"""The value of a selector's term in numpy: the reference for its rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.interp.definitions import NUMPY_TYPES, convert
from taskmap.ir.interp.instructions import cast_spec, collect, distribute, execute, multiply
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.select.terms import Term
from taskmap.ir.types import i64

__all__ = ["Memory", "value_of"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Memory:
    """The symbols of addresses, and the elements of each buffer; addresses beyond them wrap around."""

    symbols: Mapping[str, int]
    buffers: Mapping[str, Array]


def value_of(term: Term, memory: Memory) -> Array:
    """The lanes of ``term``, an array of its element type (bf16 as float32)."""
    if term.op == "each":
        step, count = term.data
        runs = [Memory({**memory.symbols, step: at}, memory.buffers) for at in range(count)]
        return np.concatenate([value_of(term.args[0], run) for run in runs])
    if term.op in _LEAVES:
        return _LEAVES[term.op](term, memory)
    args = [value_of(a, memory) for a in term.args]
    with np.errstate(all="ignore"):
        return _MEANINGS[term.op](term, memory, *args)


def _const(t: Term, m: Memory) -> Array:
    return np.array([t.data[0]], NUMPY_TYPES[t.data[1].name])


_LEAVES: dict[str, Callable[[Term, Memory], Array]] = {
    "const": _const,
    "var": lambda t, m: np.array([m.symbols[t.data[0]]], np.int64),
    "tile": lambda t, m: m.buffers[t.data[0].name],
    "index": lambda t, m: np.array(t.data[0].values(dict(m.symbols)), np.int64),
}


def _ramp(t: Term, m: Memory, base: Array, stride: Array) -> Array:
    return np.concatenate([base + k * stride for k in range(t.data[0])])


def _load(t: Term, m: Memory, at: Array) -> Array:
    buffer = m.buffers[t.data[0]]
    return convert(buffer[at % len(buffer)], t.data[1])


def _total(t: Term, m: Memory, x: Array) -> Array:
    out = np.zeros(t.data[0], x.dtype)
    for column in x.reshape(t.data[0], -1).T:
        out = convert(out + column, t.type[0])
    return out


def _dot(t: Term, m: Memory, c: Array, a: Array, b: Array) -> Array:
    dtype = t.type[0]
    products = convert(convert(a, dtype) * convert(b, dtype), dtype).reshape(len(c), -1)
    for column in products.T:
        c = convert(c + column, dtype)
    return c


def _apply(t: Term, m: Memory, *registers: Array) -> Array:
    out: Array = execute(t.data[0], *(r[None] for r in registers))[0]
    return out


def _matmul(t: Term, m: Memory, c: Array, a: Array, b: Array) -> Array:
    return multiply(c, a, b, t.type[0])


def _tiled(t: Term, m: Memory, c: Array, a: Array, b: Array) -> Array:
    """Tile by tile, each distributed over the workers as the instruction's owners say."""
    entry = t.data[0]
    spec = cast_spec(entry, MatMulSpec)
    out: Array = c.copy()
    for i, j, k in np.ndindex(len(a) // spec.m, b.shape[1] // spec.n, len(b) // spec.k):
        rows, columns, depth = (slice(x * n, (x + 1) * n) for x, n in ((i, spec.m), (j, spec.n), (k, spec.k)))
        tiles = (out[rows, columns], a[rows, depth], b[depth, columns])
        owners = (entry.owner_c, entry.owner_a, entry.owner_b)
        held = [distribute(x, owner) for x, owner in zip(tiles, owners, strict=True)]
        out[rows, columns] = collect(execute(entry, *held), entry.owner_c)
    return out


def _part(t: Term, m: Memory, x: Array) -> Array:
    start, width, step, _ = t.data
    at = start + width * (m.symbols[step] if step else 0)
    return np.asarray(x[at : at + width])


def _pair(op: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    return lambda t, m, a, b: convert(np.asarray(op(a, b)), t.type[0]) if t.type[0] != i64 else np.asarray(op(a, b))


_MEANINGS: dict[str, Callable[..., Array]] = {
    "ramp": _ramp,
    "broadcast": lambda t, m, x: np.tile(x, t.data[0]),
    "add": _pair(np.add),
    "sub": _pair(np.subtract),
    "mul": _pair(np.multiply),
    "div": _pair(np.floor_divide),
    "mod": _pair(np.mod),
    "load": _load,
    "cast": lambda t, m, x: convert(x, t.data[0]),
    "copy": lambda t, m, x: convert(x, t.data[0]),
    "moved": lambda t, m, x: convert(x, t.data[0].spec.dtype),
    "total": _total,
    "dot": _dot,
    "apply": _apply,
    "pick": lambda t, m, x: x[list(t.data[0])],
    "part": _part,
    "matmul": _matmul,
    "tiled": _tiled,
    "concat": lambda t, m, *parts: np.concatenate(parts),
}
