"""Convolutions as products: rows and terms that lie equally spaced in an image have one address, and no divisions."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from taskmap.backend.cpu.codegen import generate
from taskmap.graph.nodes import Graph
from taskmap.graph.passes.weight_packing import PackWeights
from taskmap.graph.quantised.convolution import PaddedWindow, convolution_product
from taskmap.ir.analysis.contraction import Contraction
from taskmap.ir.analysis.windows import row_run
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import cpu_target
from taskmap.ir.task import Task
from taskmap.ir.types import bf16
from taskmap.schedules import packed_together, packed_width, schedule
from taskmap.schedules.common.matmul_form import anchor_of
from taskmap.schedules.cpu.matmul.config import MatmulConfig
from taskmap.schedules.cpu.matmul.microkernel import Tile, choose_tile
from taskmap.schedules.cpu.matmul.template import schedule_matmul
from taskmap.schedules.cpu.matmul.term_loops import term_loops
from tests.schedules.bf16_products import bf16_array
from tests.schedules.graph_tasks import channels_last, fused, tensor
from tests.schedules.interpreting import interpreted

PAIRS = cpu_target("avx512", 2, features=["avx512_bf16"])


def window_task(channels: int, image: tuple[int, int], kernel: int, filters: int, slide: PaddedWindow) -> Task:
    """A convolution of an image that holds its frame, on packed weights."""
    x, w = tensor(1, channels, *image, dtype=bf16), tensor(filters, channels, kernel, kernel, dtype=bf16)
    made = convolution_product(x, None, w, slide)
    matrix = tensor(*made.inputs[1].shape, dtype=bf16)
    made = replace(made, inputs=(x, matrix))
    pack = PackWeights(partial(packed_width, target=PAIRS), together=partial(packed_together, target=PAIRS))
    (done,) = pack.run(Graph([x, matrix], [made], constant_inputs=frozenset([1]))).outputs  # type: ignore[list-item]
    assert done is not None
    if done.inputs[1] is not matrix:
        done = replace(done, inputs=(x, tensor(*done.inputs[1].shape, dtype=bf16)))
    last = {node: channels_last(*node.shape) for node in (x, done)}
    return fused([done], done, last)


def slid(stride: tuple[int, int] = (1, 1), dilation: tuple[int, int] = (1, 1)) -> PaddedWindow:
    return PaddedWindow(stride, dilation, ((0, 0), (0, 0)))


def contraction(task: Task) -> Contraction:
    found = anchor_of(task)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(("image", "kernel", "slide", "run"), [
    ((9, 16), 3, slid(), 14),
    ((9, 16), 3, slid((1, 2)), 7),
    ((9, 14), 1, slid(), None),
    ((9, 14), 1, slid((2, 1)), 14),
    ((9, 14), 1, slid((2, 2)), 7),
    ((3, 16), 3, slid(), None),
])  # fmt: skip
def test_rows_are_equally_spaced_within_a_line(
    image: tuple[int, int], kernel: int, slide: PaddedWindow, run: int | None
) -> None:
    """Within a line of the output, in the whole image if nothing lies between its lines; one line has no next."""
    assert row_run(contraction(window_task(32, image, kernel, 64, slide))) == run


@pytest.mark.parametrize(("channels", "kernel", "slide", "loops"), [
    (32, 3, slid(), (3, 48)),
    (64, 1, slid(), (32,)),
    (4, 7, slid((2, 2)), (7, 14)),
    (32, 3, slid(dilation=(2, 1)), (3, 48)),
    (32, 3, slid(dilation=(1, 2)), (3, 3, 16)),
])  # fmt: skip
def test_terms_are_equally_spaced_in_a_row_of_taps(
    channels: int, kernel: int, slide: PaddedWindow, loops: tuple[int, ...]
) -> None:
    """Unless taps lie apart; the loops count pairs of terms."""
    c = contraction(window_task(channels, (20, 22), kernel, 64, slide))
    depth = int(c.k[0][1])  # type: ignore[arg-type]
    assert term_loops(c, depth, 2) == loops


def divisions_in_loops(kernel: Kernel) -> int:
    """Divisions in the text of loops over sums, that is between a loop's head and the sums that it adds."""
    text = generate(lower(kernel, target=PAIRS), PAIRS.vector_bytes).text
    assert '"vdpbf16ps ' in text
    return len(re.findall(r"\bk_\d+ / ", text)) + len(re.findall(r"tm_vdpbf16ps", text))


@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
@pytest.mark.parametrize(("columns", "filters"), [(56, 64), (14, 256), (7, 512), (17, 64)])
def test_no_tile_of_a_window_divides(columns: int, filters: int, stride: tuple[int, int]) -> None:
    """All tiles are assembly, which has no divisions, whatever the blocks of rows, also the last ones."""
    image = (2 + 8 * stride[0], 3 + (columns - 1) * stride[1])
    kernel = schedule(window_task(32, image, 3, filters, slid(stride)), PAIRS)
    assert divisions_in_loops(kernel) == 0


def test_tiles_end_where_lines_do() -> None:
    for run, rows in ((56, 3136), (28, 784), (14, 196), (7, 49), (17, 289), (13, 169)):
        tile = choose_tile(rows, 128, PAIRS, 16, True, 0, run)
        assert run % tile.rows == 0 or tile.rows % run == 0
        assert tile.rows * tile.vectors >= 10


def test_lines_of_an_awkward_length_keep_their_tile() -> None:
    """Lines of 31: tiles of one row would be slower than divisions."""
    assert choose_tile(31 * 31, 128, PAIRS, 16, True, 0, 31).rows > 1


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_a_sum_cut_into_parts(parts: int) -> None:
    """At rows of taps while there are as many, else anywhere: the same sums."""
    task = window_task(16, (6, 9), 3, 32, slid())
    kernel = schedule_matmul(task, PAIRS, MatmulConfig(Tile(7, 2), 14, parts))
    assert kernel is not None
    rng = np.random.default_rng()
    arrays = [bf16_array(tuple(int(n) for n in b.shape), rng) for b in task.inputs]  # type: ignore[arg-type]
    plain = schedule(task, cpu_target("generic", 1))
    (got,), (want,) = (interpreted(k, k, arrays, {}) for k in (kernel, plain))
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=2.0**-6, atol=2.0**-4)
