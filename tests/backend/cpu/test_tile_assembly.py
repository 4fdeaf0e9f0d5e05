"""Register tiles in assembly compute what they compute in C, bit by bit; other forms are written in C."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from taskmap.backend.cpu import codegen
from taskmap.backend.cpu.codegen import generate
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import cpu_target
from taskmap.ir.task import Task
from taskmap.ir.types import f32, f64
from taskmap.schedules import schedule
from taskmap.schedules.cpu.matmul.config import MatmulConfig
from taskmap.schedules.cpu.matmul.microkernel import Tile
from taskmap.schedules.cpu.matmul.problem import MatmulProblem
from tests.schedules.running import Array, call_kernel, compiled, expected, isas, target

VECTOR = [isa for isa in isas() if isa != "generic"]

CASES: dict[str, list[tuple[tuple[int, int], tuple[int, int, int], int]]] = {  # tile; rows, columns, terms; k-blocks
    "avx512": [
        ((8, 3), (50, 150, 64), 1),
        ((9, 3), (19, 136, 2000), 1),  # the sum is added in parts, of a length that varies
        ((6, 4), (25, 200, 100), 3),  # sums continue
        ((12, 2), (30, 72, 33), 1),
        ((14, 2), (29, 40, 17), 1),
        ((24, 1), (50, 40, 64), 1),  # elements are broadcast from memory
        ((1, 8), (1, 400, 300), 1),  # rows of b are operands in memory
    ],
    "avx2": [
        ((6, 2), (50, 150, 64), 1),
        ((4, 3), (19, 130, 2000), 1),
        ((6, 2), (19, 130, 100), 3),
        ((12, 1), (13, 64, 100), 1),
        ((1, 8), (1, 400, 300), 1),
    ],
}


@contextmanager
def in_c() -> Iterator[None]:
    """Tiles are written in C here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codegen, "register_tile", lambda *_: None)
        yield


def inputs(task: Task) -> list[Array]:
    rng = np.random.default_rng()
    return [rng.standard_normal([size_of(d, {}) for d in b.shape]).astype(np.float32) for b in task.inputs]


def problem(isa: str, tile: tuple[int, int], sizes: tuple[int, int, int]) -> MatmulProblem:
    m, n, k = sizes
    return MatmulProblem(1, m, n, k, (f32, f32, f32), b=f"packed{tile[1] * target(isa).lanes(4)}")


@pytest.mark.parametrize("isa", VECTOR)
def test_assembly_gives_the_bits_of_c(isa: str) -> None:
    tasks: list[Task] = []
    kernels: list[tuple[Kernel, str]] = []
    for tile, sizes, parts in CASES[isa]:
        tasks.append(problem(isa, tile, sizes).task())
        config = MatmulConfig(Tile(*tile), 3 * tile[0], parts)
        kernels.append((schedule(tasks[-1], target(isa), config), isa))
    assembled = compiled(kernels)
    with in_c():
        plain = compiled(kernels)
    for task, (kernel, _), (source, address), (other, its) in zip(tasks, kernels, assembled, plain, strict=True):
        assert "vfmadd231ps" in source.text, kernel.note
        assert "vfmadd231ps" not in other.text
        assert source.kind.spelled_out
        arrays = inputs(task)
        (got,), (same,) = call_kernel(kernel, source, address, arrays, {}), call_kernel(kernel, other, its, arrays, {})
        np.testing.assert_array_equal(got, same)
        (want,) = expected(task, [a.astype(np.float64) for a in arrays])
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def text(isa: str, tile: tuple[int, int], kind: MatmulProblem) -> str:
    on = cpu_target(isa, 1)
    kernel = schedule(kind.task(), on, MatmulConfig(Tile(*tile), tile[0]))
    return generate(lower(kernel, target=on), on.vector_bytes).text


def test_every_sum_has_a_register_of_its_own() -> None:
    source = text("avx512", (8, 3), problem("avx512", (8, 3), (8, 48, 64)))
    (block,) = re.findall(r"__asm__ volatile\((.*?)\);", source, re.DOTALL)
    sums = re.findall(r"vfmadd231ps %%zmm\d+, %%zmm\d+, %%(zmm\d+)", block)
    assert len(sums) == len(set(sums)) == 24
    named = set(re.findall(r"%%[xyz]mm(\d+)", block))
    assert named == set(re.findall(r'"xmm(\d+)"', block))


def test_other_forms_are_written_in_c() -> None:
    whole = problem("avx512", (8, 3), (8, 48, 64))
    assert "__asm__" in text("avx512", (8, 3), whole)
    others = {
        "no fused multiply-add": text("generic", (6, 2), MatmulProblem(1, 12, 32, 64, (f32, f32, f32))),
        "another type": text("avx512", (8, 3), MatmulProblem(1, 8, 48, 64, (f64, f64, f64))),
        "few sums": text("avx512", (2, 2), problem("avx512", (2, 2), (8, 32, 64))),
    }
    assert [why for why, source in others.items() if "__asm__" in source] == []
