"""Tunable attention: as text, in tasks; its configurations, valid or refused with reasons."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir.errors import ScheduleError
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.types import bf16, f16, f32
from taskmap.schedules import read_problem, schedule, space_of
from taskmap.schedules.common.attention_match import find_attention
from taskmap.schedules.cpu.attention.config import AttentionConfig, read_config, validity
from taskmap.schedules.cpu.attention.problem import AttentionProblem
from taskmap.schedules.cpu.matmul.microkernel import Tile
from tests.schedules.problem_checks import check_space, check_text

TARGETS = [cpu_target(isa, 2) for isa in ("avx512", "avx2", "generic")]
AVX512 = TARGETS[0]
BERT = AttentionProblem(1, 12, 12, 128, 128, 64, 64, (f32, f32))
places = st.sampled_from(["heads", "rows"])


@st.composite
def problems(draw: st.DrawFn) -> AttentionProblem:
    """Every kind of attention that the template takes."""
    shared, group = draw(st.integers(1, 2)), draw(st.integers(2, 3))
    free = tuple(name for name in ("batch", "queries", "keys") if draw(st.booleans()))
    return AttentionProblem(
        draw(st.integers(2, 3)), shared * group, shared,
        draw(st.integers(2, 300)), draw(st.integers(2, 300)), draw(st.integers(1, 70)), draw(st.integers(1, 70)),
        draw(st.sampled_from([(f32, f32), (f16, f16), (bf16, f32)])), draw(st.booleans()),
        draw(st.sampled_from(["none", "bool[b1qk]", "f32[11qk]", "f16[bhqk]", "bool[b11k]"])),
        draw(places), draw(places) if shared > 1 else "heads", draw(places) if shared > 1 else "heads", draw(places),
        free,
    )  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(problems())
def test_an_attention_is_what_its_text_says_and_found_in_its_own_task(p: AttentionProblem) -> None:
    check_text(p, AVX512)


@settings(deadline=None, max_examples=15)
@given(problems(), st.sampled_from(TARGETS))
def test_a_space_holds_its_default_and_is_ordered_by_costs(p: AttentionProblem, target: CpuTarget) -> None:
    check_space(p, target)
    assert p.read(str(p.default(target)), target) == p.default(target)


@settings(deadline=None, max_examples=5)
@given(problems(), st.randoms(use_true_random=False))
def test_every_configuration_has_a_kernel(p: AttentionProblem, chance: object) -> None:
    config = chance.choice(space_of(p, AVX512).configs)  # type: ignore[attr-defined]
    assert schedule(p.task(), AVX512, config).note == f"cpu.attention({config})"


def test_the_default_is_what_is_used_untuned() -> None:
    assert schedule(BERT.task(), AVX512).note == f"cpu.attention({BERT.default(AVX512)})"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (AttentionConfig(0, 128, Tile(6, 4)), "at least 1"),
        (AttentionConfig(128, 128, Tile(8, 4)), "takes 37 registers, but there are 32"),
        (AttentionConfig(129, 128, Tile(6, 4)), "there are 128 queries, not 129"),
        (AttentionConfig(128, 129, Tile(6, 4)), "there are 128 keys, not 129"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(config: AttentionConfig, why: str) -> None:
    found = find_attention(BERT.task())
    assert found is not None
    assert why in (validity(config, found, AVX512) or "")
    with pytest.raises(ScheduleError, match="cannot be computed with"):
        schedule(BERT.task(), AVX512, config)


def test_keys_that_no_stack_holds_are_refused() -> None:
    long = AttentionProblem(1, 1, 1, 64, 16384, 64, 64, (f32, f32))
    assert long.read("queries=64, keys=256, tile=6x4v", AVX512) is not None
    assert long.read("queries=64, keys=16384, tile=6x4v", AVX512) is None


def test_what_comes_first_is_not_masked_for_nothing() -> None:
    whole, causal = (AttentionProblem(1, 2, 2, 256, 256, 64, 64, (f32, f32), c) for c in (False, True))
    config = AttentionConfig(64, 64, Tile(6, 4))
    assert causal.cycles(config, AVX512) < 0.75 * whole.cycles(config, AVX512)


@pytest.mark.parametrize("text", ["", "queries=8, keys=8", "queries=8, keys=8, tile=6x4v\n"])
def test_text_that_says_no_configuration_is_none(text: str) -> None:
    assert read_config(text) is None
    assert BERT.read(text, AVX512) is None


PLAIN = "q=heads k=heads v=heads out=heads mask=none all"


@pytest.mark.parametrize(
    ("shapes", "dtypes", "layout"),
    [
        ("1x12x12x128x128x64", "f32,f32", PLAIN),
        ("1x12x5x128x128x64x64", "f32,f32", PLAIN),
        ("1x?12x12x128x128x64x64", "f32,f32", PLAIN),
        ("1x12x12x128x128x64x64", "f64,f64", PLAIN),
        ("1x12x12x128x128x64x64", "f32", PLAIN),
        ("1x12x12x128x128x64x64", "f32,i32", PLAIN),
        ("1x12x12x128x128x64x64", "f32,f32", PLAIN.replace("none", "i32[b1qk]")),
        ("1x12x12x128x128x64x64", "f32,f32", PLAIN.replace("none", "bool[qk]")),
        ("1x12x12x128x128x64x64", "f32,f32", PLAIN.replace("all", "some")),
    ],
)
def test_text_that_says_no_attention_is_refused(shapes: str, dtypes: str, layout: str) -> None:
    with pytest.raises(ScheduleError, match="does not describe an operator of"):
        read_problem("cpu.attention", shapes, dtypes, layout)


def test_a_mask_has_no_dimension_of_extent_one() -> None:
    layout = PLAIN.replace("none", "bool[bhqk]")
    found = read_problem("cpu.attention", "1x12x12x128x1x64x64", "f32,f32", layout)
    assert "mask=bool[1hq1]" in found.layout


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(ScheduleError, match="too large"):
        read_problem("cpu.attention", "1x12x12x999999x999999x64x64", "f32,f32", PLAIN)
