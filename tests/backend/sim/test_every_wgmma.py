"""All widths of wgmma: one rule writes the entries, test_instructions.py runs some of them, and this file runs all."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from taskmap.backend.sim.run import run
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.interp.instructions import distribute
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MatMulSpec
from tests.backend.sim.instruction_checks import ON_GPU, is_wgmma
from tests.backend.sim.instruction_runs import C_TYPES, loaded, operand_image, registers, stored, whole_numbers
from tests.backend.sim.kernels import kernel


def families() -> dict[str, list[Instruction]]:
    """The entries by everything but n: "wgmma_ra k16 f16 f32"."""
    found: dict[str, list[Instruction]] = {}
    for entry in ON_GPU:
        spec = entry.spec
        if isinstance(spec, MatMulSpec) and is_wgmma(entry):
            assert spec.m == 64
            left = "matrix" if entry.owner_a is None else "registers"
            found.setdefault(f"{left} k{spec.k} {spec.a} {spec.b} {spec.c}", []).append(entry)
    return found


FAMILIES = families()


def widths(entries: list[Instruction]) -> list[int]:
    """The n of each."""
    return [entry.spec.n for entry in entries]  # type: ignore[union-attr]  # products, all of them


def test_families_are_whole() -> None:
    """n is every multiple of 8 up to 256; of bytes, those that PTX has."""
    every = set(range(8, 257, 8))
    bytes_ = {8, *range(16, 33, 8), *range(48, 257, 16)}
    for name, entries in FAMILIES.items():
        assert set(widths(entries)) == (bytes_ if name.endswith("i32") else every), name


@lru_cache(maxsize=64)
def places(owner: TaskMapping) -> NDArray[np.int64]:
    """(worker, slot) -> element of the tile, counted row by row."""
    return distribute(np.arange(np.prod(owner.task_shape)).reshape(owner.task_shape), owner)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_width(store: KernelStore, family: str) -> None:
    """A block for each n. Smaller n take the first rows of the widest right operand."""
    entries = FAMILIES[family]
    widest = entries[-1].spec
    assert isinstance(widest, MatMulSpec)
    a, b = whole_numbers(widest.a, (64, widest.k)), whole_numbers(widest.b, (widest.k, widest.n))
    image: dict[int, int] = {}
    declared, left = "", "ra"
    held = stored(a, widest.a)
    if (owner := entries[0].owner_a) is not None:
        held = stored(a.reshape(-1)[places(owner)], widest.a)
        declared = registers("ra", widest.a, held.shape[1], "a")
    else:
        image, descriptor = operand_image(a, widest.a, 0, False, 0)
        left = f"tm_wgmma_descriptor<0>(s, {descriptor.leading}, {descriptor.stride})"
    start = -(-(max(image, default=0) + 1) // 1024) * 1024
    more, descriptor = operand_image(b.T, widest.b, 0, False, start)
    image |= more
    right = f"tm_wgmma_descriptor<0>(s + {start}, {descriptor.leading}, {descriptor.stride})"
    memory = np.zeros(max(image) + 1, np.uint8)
    memory[list(image)] = list(image.values())
    tiles = [whole_numbers(widest.c, (64, n)) for n in widths(entries)]
    before = [c.reshape(-1)[places(e.owner_c)] for c, e in zip(tiles, entries, strict=True)]
    body = "  const int t = threadIdx.x;\n  tm_shared<unsigned char> s = tm_shared_at<unsigned char>(0);\n" + declared
    body += f"  for (int i = t; i < {memory.size}; i += 128) s[i] = m[i];\n  tm_fence_proxy_async();\n  tm_barrier();\n"
    at = 0
    for number, (entry, c) in enumerate(zip(entries, before, strict=True)):
        constants = ("<0>" if entry.owner_a is not None else "<0, 0>") if widest.a.bits == 16 else ""
        slots = c.shape[1]
        body += f"  if (blockIdx.x == {number}) {{\n    {C_TYPES[widest.c.name]} rc[{slots}];\n"
        body += f"    for (int i = 0; i < {slots}; i++) rc[i] = c[{at} + t * {slots} + i];\n    tm_wgmma_fence();\n"
        body += (
            f"    {entry.text}{constants}(rc, {left}, {right}, 1);\n    tm_wgmma_commit();\n    tm_wgmma_wait<0>();\n"
        )
        body += f"    for (int i = 0; i < {slots}; i++) c[{at} + t * {slots} + i] = rc[i];\n  }}\n"
        at += c.size
    kinds = (widest.c, widest.a)
    parameters = "tm_global<{}> c, tm_global<const {}> a, tm_global<const unsigned char> m".format(
        *(C_TYPES[kind.name] for kind in kinds)
    )
    source = kernel(body, parameters, threads=128, grid=(len(entries),), shared=memory.size)
    after = stored(np.concatenate([c.reshape(-1) for c in before]), widest.c)
    run(source, [after, held, memory], checks=False, store=store)
    at = 0
    for entry, n, c, held in zip(entries, widths(entries), tiles, before, strict=True):
        found = loaded(after[at : at + held.size], widest.c).reshape(held.shape)
        assert entry.owner_c is not None
        want = (c + a @ b[:, :n]).reshape(-1)[places(entry.owner_c)]
        np.testing.assert_array_equal(found, want.astype(found.dtype), err_msg=entry.name)
        at += held.size
