"""Every kind of instruction as a small kernel: operands from arrays, one instruction, results to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.backend.sim import run as sim
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.interp.instructions import distribute
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.isa.wgmma_descriptor import Descriptor
from taskmap.ir.types import DType
from tests.backend.sim.kernels import kernel

Array = NDArray[Any]

C_TYPES = {
    "f64": "double", "f32": "float", "tf32": "float", "f16": "tm_f16", "bf16": "tm_bf16", "e4m3": "tm_e4m3",
    "e5m2": "tm_e5m2", "i64": "long long", "i32": "int", "i16": "short", "i8": "signed char", "u8": "unsigned char",
    "bool": "bool",
}  # fmt: skip
_STORED = {
    "f64": np.float64, "f32": np.float32, "tf32": np.float32, "f16": np.float16, "bf16": np.uint16, "e4m3": np.uint8,
    "e5m2": np.uint8, "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u8": np.uint8,
    "bool": np.bool_,
}  # fmt: skip
_FP8 = {"e4m3": (3, 7), "e5m2": (2, 15)}
"""Bits of mantissa, and the exponent's bias."""


def stored(values: Array, dtype: DType) -> Array:
    """Floating-point values as the bits of `dtype` that a kernel reads."""
    if dtype.name == "bf16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype.name in _FP8:
        table = _fp8_values(dtype.name)
        codes = [int(np.flatnonzero(table == v)[0]) for v in values.ravel()]
        return np.array(codes, np.uint8).reshape(values.shape)
    return np.ascontiguousarray(values.astype(_STORED[dtype.name]))


def loaded(raw: Array, dtype: DType) -> Array:
    """The values of such bits."""
    if dtype.name == "bf16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw


def _fp8_values(name: str) -> Array:
    mantissa_bits, bias = _FP8[name]
    code = np.arange(128)
    exponent, mantissa = code >> mantissa_bits, (code & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
    value = np.where(exponent > 0, (1 + mantissa) * 2.0 ** (exponent - bias), mantissa * 2.0 ** (1 - bias))
    return np.concatenate([value, -value])


def whole_numbers(dtype: DType, shape: Sequence[int]) -> Array:
    """Small integers, whose sums are exact in every type; for bytes, all values."""
    rng = np.random.default_rng()
    low, high = {"i8": (-128, 128), "u8": (0, 256), "bool": (0, 2)}.get(dtype.name, (-4, 5))
    kind = np.int64 if dtype.is_int or dtype.is_bool else np.float64 if dtype.name == "f64" else np.float32
    return rng.integers(low, high, tuple(shape)).astype(kind)


def registers(name: str, dtype: DType, slots: int, source: str) -> str:
    """Declares registers and fills them from an array (workers, slots)."""
    kind = C_TYPES[dtype.name]
    fill = f"for (int i = 0; i < {slots}; i++) {name}[i] = {source}[t * {slots} + i];"
    return f"  alignas(8) {kind} {name}[{slots}];\n  {fill}\n"


def run_product(entry: Instruction, store: KernelStore, constants: str = "") -> tuple[Array, Array, Array, Array]:
    """A MatMul whose operands are all in registers: (c, a, b) before as registers of values, and c after."""
    spec = entry.spec
    assert isinstance(spec, MatMulSpec)
    owners = (entry.owner_c, entry.owner_a, entry.owner_b)
    shapes = ((spec.m, spec.n), (spec.m, spec.k), (spec.k, spec.n))
    held = []
    for owner, dtype, shape in zip(owners, (spec.c, spec.a, spec.b), shapes, strict=True):
        assert owner is not None
        held.append(distribute(whole_numbers(dtype, shape), owner))
    c, a, b = held
    raw = [stored(x, dtype) for x, dtype in zip(held, (spec.c, spec.a, spec.b), strict=True)]
    slots = [x.shape[1] for x in held]
    body = "  const int t = threadIdx.x;\n"
    body += (
        registers("rc", spec.c, slots[0], "c")
        + registers("ra", spec.a, slots[1], "a")
        + registers("rb", spec.b, slots[2], "b")
    )
    body += f"  {entry.text}{constants}(rc, ra, rb);\n"
    body += f"  for (int i = 0; i < {slots[0]}; i++) c[t * {slots[0]} + i] = rc[i];"
    parameters = (
        f"tm_global<{C_TYPES[spec.c.name]}> c, tm_global<const {C_TYPES[spec.a.name]}> a,"
        f" tm_global<const {C_TYPES[spec.b.name]}> b"
    )
    source = kernel(body, parameters, threads=entry.workers)
    sim.run(source, raw, store=store)
    return c, a, b, loaded(raw[0], spec.c)


def operand_image(
    matrix: Array, dtype: DType, swizzle: int, turned: bool, start: int
) -> tuple[dict[int, int], Descriptor]:
    """The layout in shared memory of the bytes of a wgmma operand (rows, k), from `start` on, and its descriptor."""
    size = dtype.bytes
    groups = matrix.shape[1] // 8
    if swizzle:
        atom = 8 * swizzle
        offsets = (atom * groups, atom) if turned else (16, atom)
    else:
        offsets = (128, 128 * groups) if turned else (128, 256)
    descriptor = Descriptor(start, offsets[0], offsets[1], swizzle)
    raw = stored(matrix, dtype)
    image: dict[int, int] = {}
    for (row, k), value in np.ndenumerate(raw):
        at = descriptor.address(row, k, size, transposed=turned)
        for i, byte in enumerate(np.asarray(value).tobytes()):
            image[at + i] = byte
    return image, descriptor


def run_wgmma(
    entry: Instruction,
    store: KernelStore,
    swizzle: int,
    turned: Sequence[bool],
    *,
    accumulate: bool = True,
    seen: list[str] | None = None,
) -> tuple[Array, Array, Array, Array]:
    """A wgmma: c as registers, a as registers or matrix, b as matrix, and the registers of c after it. ``seen`` gets
    the text of the kernel.
    """
    spec = entry.spec
    assert isinstance(spec, MatMulSpec)
    assert entry.owner_c is not None
    c = distribute(whole_numbers(spec.c, (spec.m, spec.n)), entry.owner_c)
    a, b = whole_numbers(spec.a, (spec.m, spec.k)), whole_numbers(spec.b, (spec.k, spec.n))
    image: dict[int, int] = {}
    left = "ra"
    if entry.owner_a is None:
        image, descriptor = operand_image(a, spec.a, swizzle, turned[0], 0)
        left = f"tm_wgmma_descriptor<{swizzle}>(s, {descriptor.leading}, {descriptor.stride})"
    start = -(-(max(image, default=0) + 1) // 1024) * 1024
    more, descriptor = operand_image(b.T, spec.b, swizzle, turned[-1], start)
    image |= more
    right = f"tm_wgmma_descriptor<{swizzle}>(s + {start}, {descriptor.leading}, {descriptor.stride})"
    size = -(-(max(image) + 1) // 1024) * 1024
    memory = np.zeros(size, np.uint8)
    memory[list(image)] = list(image.values())
    constants = f"<{', '.join(str(int(t)) for t in turned)}>" if spec.a.bits == 16 else ""
    slots = c.shape[1]
    held = distribute(a, entry.owner_a) if entry.owner_a else None
    body = "  const int t = threadIdx.x;\n  tm_shared<unsigned char> s = tm_shared_at<unsigned char>(0);\n"
    body += f"  for (int i = t; i < {size}; i += 128) s[i] = m[i];\n"
    body += registers("rc", spec.c, slots, "c")
    if held is not None:
        body += registers("ra", spec.a, held.shape[1], "a")
    body += "  tm_fence_proxy_async();\n  tm_barrier();\n  tm_wgmma_fence();\n"
    body += f"  {entry.text}{constants}(rc, {left}, {right}, {int(accumulate)});\n"
    body += f"  tm_wgmma_commit();\n  tm_wgmma_wait<0>();\n  tm_wgmma_hold<{slots}>(rc);\n"
    body += f"  for (int i = 0; i < {slots}; i++) c[t * {slots} + i] = rc[i];"
    parameters = (
        f"tm_global<{C_TYPES[spec.c.name]}> c, tm_global<const {C_TYPES[spec.a.name]}> a,"
        " tm_global<const unsigned char> m"
    )
    raw = stored(c, spec.c)
    source = kernel(body, parameters, threads=128, shared=size)
    if seen is not None:
        seen.append(source.text)
    sim.run(source, [raw, stored(a if held is None else held, spec.a), memory], store=store)
    return c, a if held is None else held, b, loaded(raw, spec.c)


def run_matrices(entry: Instruction, store: KernelStore, *, of: DType) -> tuple[Array, Array]:
    """ldmatrix or stmatrix: the data moved, and the data received; rows of memory or registers."""
    spec = entry.spec
    owner, rows = entry.owner_c, 8 * entry.spec.count  # type: ignore[union-attr]
    assert isinstance(owner, TaskMapping)
    columns = spec.columns  # type: ignore[union-attr]
    memory = stored(whole_numbers(of, (rows, columns)), of)
    held = stored(distribute(whole_numbers(of, (rows, columns)), owner), of)
    slots, kind = held.shape[1], C_TYPES[of.name]
    body = f"  const int t = threadIdx.x;\n  tm_shared<{kind}> s = tm_shared_at<{kind}>(0);\n"
    body += f"  for (int i = t; i < {rows * columns}; i += 32) s[i] = m[i];\n" + registers("r", of, slots, "h")
    body += "  tm_barrier();\n"
    place = f"s + t % {rows} * {columns}"
    body += f"  {entry.text}({f'{place}, r' if spec.store else f'r, {place}'});\n"  # type: ignore[union-attr]
    body += "  tm_barrier();\n"
    body += f"  for (int i = t; i < {rows * columns}; i += 32) m[i] = s[i];\n"
    body += f"  for (int i = 0; i < {slots}; i++) h[t * {slots} + i] = r[i];"
    before = (memory.copy(), held.copy())
    source = kernel(body, f"tm_global<{kind}> m, tm_global<{kind}> h", threads=32, shared=rows * 16)
    sim.run(source, [memory, held], store=store)
    return (before[1], memory) if spec.store else (before[0], held)  # type: ignore[union-attr]
