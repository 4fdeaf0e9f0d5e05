"""Tunable operators: found in tasks, written as text, read back, and ordered by the cost model."""

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
from taskmap.ir.types import bf16, f16, f32, f64
from taskmap.schedules import problem, read_problem, schedule, space, space_of
from taskmap.schedules.cpu.matmul.config import MatmulConfig, read_config
from taskmap.schedules.cpu.matmul.cost import cycles
from taskmap.schedules.cpu.matmul.microkernel import Tile
from taskmap.schedules.cpu.matmul.problem import MatmulProblem

TARGETS = [cpu_target(isa, 2) for isa in ("avx512", "avx2", "generic")]
AVX512 = TARGETS[0]
sizes = st.integers(1, 300)
plain = st.builds(
    MatmulProblem,
    sizes,
    sizes,
    sizes,
    st.integers(2, 300),
    st.sampled_from([(f32, f32, f32), (f64, f64, f64), (f16, f16, f16), (bf16, bf16, f32)]),
    st.sampled_from("km"),
    st.sampled_from("nk"),
)
packed = st.builds(
    MatmulProblem,
    st.just(1),
    sizes,
    sizes,
    st.integers(2, 300),
    st.just((f32, f32, f32)),
    st.just("k"),
    st.just("packed48"),
)


@settings(deadline=None, max_examples=60)
@given(plain | packed)
def test_a_problem_is_what_its_text_says(p: MatmulProblem) -> None:
    assert read_problem(p.template, p.shapes, p.dtypes, p.layout) == p


@settings(deadline=None, max_examples=40)
@given(plain.filter(lambda p: min(p.m, p.n) > 1) | packed.filter(lambda p: min(p.m, p.n) > 1))
def test_a_problem_is_found_in_its_own_task(p: MatmulProblem) -> None:
    assert problem(p.task(), AVX512) == p


@settings(deadline=None, max_examples=40)
@given(plain, st.sampled_from(TARGETS))
def test_a_space_is_ordered_by_its_costs(p: MatmulProblem, target: CpuTarget) -> None:
    found = space_of(p, target)
    assert list(found.cycles) == sorted(found.cycles)
    assert found.default in found.configs
    assert set(found.configs) == set(p.configs(target))
    assert all(p.read(str(c), target) == c for c in found.configs)
    assert found.named(str(found.default)) == found.default
    assert found.named("no config") is None


def test_costs_grow_with_the_work() -> None:
    small, large = (MatmulProblem(1, 128, 768, k, (f32, f32, f32)) for k in (256, 1024))
    for config in small.configs(AVX512)[:20]:
        if config in large.configs(AVX512):
            assert cycles(config, small.sizes, AVX512) < cycles(config, large.sizes, AVX512)  # type: ignore[arg-type]


def test_a_tile_that_waits_for_its_own_sums_costs_more() -> None:
    p = MatmulProblem(1, 96, 768, 256, (f32, f32, f32))
    assert cycles(MatmulConfig(Tile(8, 3), 48), p.sizes, AVX512) < cycles(MatmulConfig(Tile(2, 1), 48), p.sizes, AVX512)


def test_what_is_left_idle_costs() -> None:
    p = MatmulProblem(1, 64, 48, 256, (f32, f32, f32))
    assert cycles(MatmulConfig(Tile(8, 3), 32), p.sizes, AVX512) < cycles(MatmulConfig(Tile(8, 3), 64), p.sizes, AVX512)


@pytest.mark.parametrize(
    "text",
    [
        ("cpu.matmul", "1x2x3", "f32,f32,f32", "a=k b=n"),
        ("cpu.matmul", "0x2x3x4", "f32,f32,f32", "a=k b=n"),
        ("cpu.matmul", "1x2x3x4", "f32,f32", "a=k b=n"),
        ("cpu.matmul", "1x2x3x4", "f32,f32,i32", "a=k b=n"),
        ("cpu.matmul", "1x2x3x4", "f32,f32,f99", "a=k b=n"),
        ("cpu.matmul", "1x2x3x4", "f32,f32,f32", "a=z b=n"),
        ("cpu.matmul", "2x2x3x4", "f32,f32,f32", "a=k b=packed32"),
        ("cpu.matmul", "1x2x3x4\n", "f32,f32,f32", "a=k b=n"),
        ("cpu.fft", "1x2x3x4", "f32,f32,f32", "a=k b=n"),
    ],
)
def test_text_that_says_no_problem_is_refused(text: tuple[str, str, str, str]) -> None:
    with pytest.raises(ScheduleError, match="does not describe an operator of"):
        read_problem(*text)


def test_a_problem_beyond_any_memory_is_refused() -> None:
    with pytest.raises(ScheduleError, match="too large"):
        read_problem("cpu.matmul", "1x999999999x999999999x4", "f32,f32,f32", "a=k b=n")


def test_a_symbolic_product_and_a_task_without_one_have_no_space() -> None:
    n = Var("n")
    a, b, c = Buffer("a", f32, (n, 8)), Buffer("b", f32, (8, 16)), Buffer("c", f32, (n, 16))
    i, j, s = Var("i"), Var("j"), Var("s")
    body = Reduce("sum", ((s, index(8)),), a[i, s] * b[s, j], f32)
    assert space(Task("mm", (a, b), (Stage(c, (i, j), body),), (c,), (n,)), AVX512) is None
    assert space(Task("copy", (a,), (Stage(c, (i, j), a[i, j % 8]),), (c,), (n,)), AVX512) is None


def test_a_schedule_takes_a_configuration() -> None:
    p = MatmulProblem(1, 20, 40, 12, (f32, f32, f32))
    config = read_config("tile=6x2v, rows=12, k_blocks=2")
    assert config is not None
    kernel = schedule(p.task(), AVX512, config)
    assert kernel.note == "cpu.matmul(tile=6x32, rows=12, k_blocks=2)"
    draw = np.random.default_rng(0)
    a, b = (draw.normal(size=shape).astype(np.float32) for shape in ((1, 20, 12), (1, 12, 40)))
    got = interpret(kernel, {kernel.buffers[0]: a, kernel.buffers[1]: b}, {})[kernel.outputs[0]]
    np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "text", ["", "tile=6x2v", "tile=6x2v, rows=12, k_blocks=2 ", "tile=99999x2v, rows=12, k_blocks=2"]
)
def test_text_that_says_no_configuration_is_none(text: str) -> None:
    assert read_config(text) is None
    assert MatmulProblem(1, 20, 40, 12, (f32, f32, f32)).read(text, AVX512) is None


def viewed(view: bool) -> Task:
    """x[1, 6, 8] as [6, 8], or the relu of it, times b[8, 16]."""
    x, b, out = Buffer("x", f32, (1, 6, 8)), Buffer("b", f32, (8, 16)), Buffer("out", f32, (6, 16))
    flat = Buffer("flat", f32, (6, 8))
    i, j, s, p, q = (Var(name) for name in "ijspq")
    read = x[index(0), p, q]
    first = Stage(flat, (p, q), read if view else read * read, "view")
    body = Reduce("sum", ((s, index(8)),), flat[i, s] * b[s, j], f32)
    return Task("mm", (x, b), (first, Stage(out, (i, j), body, "mm")), (out,), (), 1)


@pytest.mark.parametrize(("view", "layout"), [(True, "a=k b=n"), (False, "a=computed b=n")])
def test_a_view_is_read_through_and_a_computed_factor_is_not(view: bool, layout: str) -> None:
    found = problem(viewed(view), AVX512)
    assert found is not None
    assert found.layout == layout
