"""Products with packed weights prefetch the next panel, each line of it, while they multiply with one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmap.backend.cpu.codegen import generate
from taskmap.ir.construct import constant_value, index
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Kernel
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.types import DType, bf16, f32
from taskmap.ir.winograd import FORMS
from taskmap.schedules import schedule
from taskmap.schedules.cpu.convolution.problem import ConvolutionProblem
from taskmap.schedules.cpu.matmul.ahead import NextPanel
from taskmap.schedules.cpu.matmul.config import MatmulConfig
from taskmap.schedules.cpu.matmul.microkernel import Tile
from taskmap.schedules.cpu.matmul.problem import MatmulProblem
from tests.schedules.cpu.winograd.test_winograd import filtered
from tests.schedules.graph_tasks import fused, tensor
from tests.schedules.prefetches import has_prefetches, prefetched

ALONE = cpu_target("avx512", 1, l2=2 << 20)
EACH = 16
"""Elements of a line."""


def product(sizes: tuple[int, int, int], tile: tuple[int, int], parts: int = 1) -> Kernel:
    m, n, k = sizes
    kind = MatmulProblem(1, m, n, k, (f32, f32, f32), b=f"packed{tile[1] * EACH}")
    return schedule(kind.task(), ALONE, MatmulConfig(Tile(*tile), -(-m // tile[0]) * tile[0], parts))


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 12))
def test_the_tiles_of_a_block_share_out_the_next_panel(terms: int, vectors: int, calls: int) -> None:
    width = vectors * EACH
    stored = Buffer("w", f32, (4, terms, width))
    panel = NextPanel(stored, index(1), index(terms * width), width, calls)
    found = set[int]()
    for number in range(calls):
        lines = panel.lines(index(number), [terms])
        assert lines is not None
        for k in range(terms):
            each = [(r.start[0] * terms + r.start[1]) * width + r.start[2] for r in lines([index(k)])]
            assert len(each) <= -(-vectors // calls) or calls == 1
            found |= {int(str(constant_value(e))) for e in each}
    wanted = range(2 * terms * width, 3 * terms * width, EACH)
    assert found >= set(wanted)
    assert max(found) < wanted.stop + -(-vectors // calls) * terms * EACH  # the last share may not be full


@pytest.mark.parametrize(
    ("sizes", "tile", "parts"),
    [((49, 96, 40), (9, 3), 1), ((25, 192, 96), (6, 4), 3), ((16, 128, 64), (6, 4), 1), ((6, 128, 64), (6, 4), 1)],
)
def test_a_product_prefetches_each_line_of_its_weights(
    sizes: tuple[int, int, int], tile: tuple[int, int], parts: int
) -> None:
    _, n, k = sizes
    panel = k * tile[1] * EACH
    first, panels = panel // parts, n // (tile[1] * EACH)
    found = set(prefetched(product(sizes, tile, parts).body, {}))
    assert found >= set(range(first, panels * panel + first, EACH))
    assert max(found) < panels * panel + 2 * first


def test_a_convolution_prefetches_each_line_of_its_weights() -> None:
    x, w, one = (1, 8, 7, 7), (144, 8, 3, 3), (1, 1)
    kind = ConvolutionProblem(x, w, one, one, one, 1, (f32, f32, f32), weights="packed48")
    kernel = schedule(kind.task(), ALONE)
    assert "x48, block=7x7" in kernel.note
    panel = 9 * 8 * 48
    assert set(prefetched(kernel.body, {})) == set(range(panel, 4 * panel, EACH))


def test_a_convolution_prefetches_no_panel_for_which_another_leaves_the_cache() -> None:
    x, w, one = (1, 512, 7, 7), (512, 512, 3, 3), (1, 1)

    def kernel(target: CpuTarget) -> Kernel:
        width = 3 * target.lanes(4)
        kind = ConvolutionProblem(x, w, one, one, one, 1, (f32, f32, f32), weights=f"packed{width}")
        return schedule(kind.task(), target)

    # Panels of 864 KiB with AVX-512, of 432 KiB with AVX2.
    assert has_prefetches(kernel(cpu_target("avx512", 1, l2=2 << 20)))
    assert not has_prefetches(kernel(cpu_target("avx512", 1, l2=1 << 20)))
    assert has_prefetches(kernel(cpu_target("avx2", 1, l2=1 << 20)))
    assert not has_prefetches(kernel(cpu_target("avx2", 1, l2=512 << 10)))


@pytest.mark.parametrize("outputs", FORMS)
def test_minimal_filtering_prefetches_each_line_of_its_weights(outputs: int) -> None:
    form, channels = FORMS[outputs], 32
    y = filtered(tensor(1, channels, 8, 8), 128, form, 64)
    kernel = schedule(fused([y], y), ALONE)
    assert kernel.note.startswith("cpu.winograd"), kernel.note
    position = channels * 64
    found = set(prefetched(kernel.body, {}))
    assert found == set(range(position, (2 * form.inputs**2 + 1) * position, EACH))


def test_a_step_prefetches_in_its_assembly() -> None:
    text = generate(lower(product((49, 96, 40), (9, 3)), target=ALONE), ALONE.vector_bytes).text
    whole, last = text.split("__asm__ volatile(")[1:3]
    assert whole.count("prefetcht1 ") == last.count("prefetcht1 ") == 1
    assert "addq $64, %[p]" in whole


def test_operands_that_are_not_packed_weights_of_f32_are_not_prefetched() -> None:
    def kernel(kind: MatmulProblem) -> Kernel:
        return schedule(kind.task(), ALONE)

    types: dict[str, tuple[DType, DType, DType]] = {"f32": (f32, f32, f32), "bf16": (bf16, bf16, bf16)}
    assert has_prefetches(kernel(MatmulProblem(1, 49, 96, 40, types["f32"], b="packed48")))
    assert not has_prefetches(kernel(MatmulProblem(1, 49, 96, 40, types["f32"])))
    assert not has_prefetches(kernel(MatmulProblem(1, 49, 96, 40, types["bf16"], b="packed48")))
    assert not has_prefetches(kernel(MatmulProblem(1, 49, 96, 40, types["f32"], b="packed48", free=("k",))))
    assert not has_prefetches(kernel(MatmulProblem(1, 1, 96, 40, types["f32"], b="packed96")))
