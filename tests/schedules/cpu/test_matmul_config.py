"""The space of the CPU's matrix products: sized by the hardware, and correct wherever a configuration is valid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir.construct import index
from taskmap.ir.errors import ScheduleError
from taskmap.ir.interp.run import interpret
from taskmap.ir.nodes import Buffer, Reduce, Var
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import f32
from taskmap.schedules.cpu.matmul.config import MatmulConfig, Sizes, default, registers, space, validity
from taskmap.schedules.cpu.matmul.microkernel import Tile
from taskmap.schedules.cpu.matmul.template import schedule_matmul

TARGETS = [cpu_target(isa, 2) for isa in ("avx512", "avx2", "generic")]


def product(m: int, n: int, k: int) -> Task:
    a, b, c = Buffer("a", f32, (m, k)), Buffer("b", f32, (k, n)), Buffer("c", f32, (m, n))
    i, j, s = Var("i"), Var("j"), Var("s")
    body = Reduce("sum", ((s, index(k)),), a[i, s] * b[s, j], f32)
    return Task("mm", (a, b), (Stage(c, (i, j), body, "mm"),), (c,), ())


sizes = st.builds(
    Sizes,
    m=st.integers(1, 4096) | st.just(Var("m")),
    n=st.integers(1, 4096),
    k=st.integers(1, 8192) | st.none(),
    batch=st.integers(1, 64) | st.none(),
    bytes=st.sampled_from([4, 8]),
    one_sum=st.booleans(),
)


@settings(deadline=None, max_examples=80)
@given(sizes, st.sampled_from(TARGETS))
def test_a_space_is_small_and_valid_and_begins_with_the_default(s: Sizes, target: CpuTarget) -> None:
    found = space(s, target)
    assert 1 <= len(found) <= 200
    assert len(set(found)) == len(found)
    assert found[0] == default(s, target)
    assert all(validity(c, s, target) is None for c in found)


def test_a_prime_size_has_the_space_of_its_neighbour() -> None:
    def tiles(size: int) -> set[tuple[Tile, int]]:
        return {(c.tile, c.k_blocks) for c in space(Sizes(size, size, size, 1, 4), TARGETS[0])}

    assert tiles(2039) == tiles(2048)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 20), st.sampled_from(TARGETS), st.data())
def test_every_configuration_computes_the_product(
    m: int, n: int, k: int, target: CpuTarget, data: st.DataObject
) -> None:
    task = product(m, n, k)
    config = data.draw(st.sampled_from(space(Sizes(m, n, k, 1, 4), target)))
    kernel = schedule_matmul(task, target, config)
    assert kernel is not None
    draw = np.random.default_rng(m * n + k)
    a, b = (draw.normal(size=shape).astype(np.float32) for shape in ((m, k), (k, n)))
    got = interpret(kernel, {kernel.buffers[0]: a, kernel.buffers[1]: b}, {})[kernel.outputs[0]]
    np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-5)


def test_tiles_of_the_table_fit_the_registers() -> None:
    for target in TARGETS:
        for c in space(Sizes(1024, 1024, 1024, 1, 4), target):
            assert registers(c.tile, target) <= target.vector_registers


WHOLE = Sizes(64, 64, 64, 1, 4)
AVX512 = TARGETS[0]


@pytest.mark.parametrize(
    ("config", "given_sizes", "reason"),
    [
        (MatmulConfig(Tile(9, 4), 9), WHOLE, "takes 41 registers, but there are 32"),
        (MatmulConfig(Tile(6, 4), 20), WHOLE, "blocks of 20 rows are not whole tiles of 6"),
        (MatmulConfig(Tile(0, 4), 8), WHOLE, "every size is at least 1"),
        (MatmulConfig(Tile(6, 4), 6, 65), WHOLE, "a sum of 64 terms cannot be split into 65 k-blocks"),
        (MatmulConfig(Tile(6, 4), 6, 2), Sizes(Var("m"), 64, 64, 1, 4), "the number of rows is known"),
        (MatmulConfig(Tile(6, 4), 6, 2), Sizes(64, 64, 64, 1, 4, one_sum=False), "runs along one axis"),
        (MatmulConfig(Tile(6, 4), 6), Sizes(64, 64, 64, 1, 4, packed=32), "panels of 32 columns, but the tile has 64"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(config: MatmulConfig, given_sizes: Sizes, reason: str) -> None:
    assert reason in (validity(config, given_sizes, AVX512) or "")


def test_a_schedule_refuses_a_configuration_that_does_not_fit() -> None:
    with pytest.raises(ScheduleError, match=r"'mm' cannot be computed with tile=9x4v, rows=9, k_blocks=1"):
        schedule_matmul(product(64, 64, 64), AVX512, MatmulConfig(Tile(9, 4), 9))
