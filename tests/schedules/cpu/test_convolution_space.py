"""Tunable convolutions: as text, in tasks; their configurations, valid or refused with reasons."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir.errors import ScheduleError
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.types import bf16, f16, f32, f64
from taskmap.schedules import read_problem, schedule, space_of
from taskmap.schedules.cpu.convolution.config import ConvolutionConfig, read_config, validity
from taskmap.schedules.cpu.convolution.depthwise_config import DepthwiseConfig, depthwise_validity, read_depthwise
from taskmap.schedules.cpu.convolution.problem import ConvolutionProblem
from taskmap.schedules.cpu.matmul.microkernel import Tile
from tests.schedules.problem_checks import check_space, check_text

TARGETS = [cpu_target(isa, 2) for isa in ("avx512", "avx2", "generic")]
AVX512 = TARGETS[0]
IMAGE = ConvolutionProblem(
    (1, 32, 28, 28), (64, 32, 3, 3), (1, 1), (1, 1), (1, 1), 1, (f32, f32, f32), weights="packed64"
)
DEPTHWISE = ConvolutionProblem((1, 96, 28, 28), (96, 1, 3, 3), (1, 1), (1, 1), (1, 1), 96, (f32, f32, f32))


@st.composite
def problems(draw: st.DrawFn) -> ConvolutionProblem:
    """Every kind of convolution that the template takes."""
    rank, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 8]))
    each = st.integers(1, 4 if rank == 3 else 20)
    per_group, of_group = draw(st.integers(1, 5)), draw(st.integers(1, 70 // groups))
    transposed = draw(st.booleans())
    kernel = (*(draw(st.integers(1, 3)) for _ in range(rank - 1)), draw(st.integers(2, 3)))
    stride = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    padding = tuple(draw(st.integers(0, (k - 1) // 2)) for k in kernel)
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    image = tuple(draw(each) + 6 for _ in range(rank))
    x = (draw(st.integers(1, 3)), per_group * groups, *image)
    w = (x[1], of_group) if transposed else (of_group * groups, per_group)
    return ConvolutionProblem(
        x, (*w, *kernel), stride, padding, dilation, groups,
        draw(st.sampled_from([(f32, f32, f32), (f64, f64, f64), (f16, f16, f16), (bf16, bf16, bf16)])),
        tuple(draw(st.integers(0, s - 1)) for s in stride) if transposed else None,
        "channels" if x[1] == 1 else draw(st.sampled_from(["channels", "columns"])),
        draw(st.sampled_from(["plain", "channels"] if per_group == 1 < groups else ["plain"]))
        if of_group == 1
        else draw(st.sampled_from(["plain", "packed48"])),
        "channels" if of_group * groups == 1 else draw(st.sampled_from(["channels", "columns"])),
        tuple(d for d in (0, 2) if draw(st.booleans())),
    )  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(problems())
def test_a_convolution_is_what_its_text_says_and_found_in_its_own_task(p: ConvolutionProblem) -> None:
    check_text(p, AVX512)


@settings(deadline=None, max_examples=25)
@given(problems(), st.sampled_from(TARGETS))
def test_a_space_holds_its_default_and_is_ordered_by_costs(p: ConvolutionProblem, target: CpuTarget) -> None:
    check_space(p, target)


@settings(deadline=None, max_examples=12)
@given(problems(), st.sampled_from(TARGETS), st.randoms(use_true_random=False))
def test_every_configuration_has_a_kernel(p: ConvolutionProblem, target: CpuTarget, chance: object) -> None:
    configs = space_of(p, target).configs
    config = chance.choice(configs)  # type: ignore[attr-defined]
    assert schedule(p.task(), target, config).note.startswith(("cpu.convolution", "cpu.depthwise"))


def test_the_default_is_what_is_used_untuned() -> None:
    for p in (IMAGE, DEPTHWISE):
        default = space_of(p, AVX512).default
        assert schedule(p.task(), AVX512, default).note == schedule(p.task(), AVX512).note


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (ConvolutionConfig(Tile(0, 4), 1, 28, 1), "at least 1"),
        (ConvolutionConfig(Tile(8, 4), 1, 28, 1), "takes 37 registers, but there are 32"),
        (ConvolutionConfig(Tile(8, 3), 1, 28, 1), "panels of 64 channels, but the tile has 48"),
        (ConvolutionConfig(Tile(6, 4), 1, 28, 2), "has 1 panels of 64 channels, not 2"),
        (ConvolutionConfig(Tile(6, 4), 29, 28, 1), "there are 28 rows of output, not 29"),
        (ConvolutionConfig(Tile(6, 4), 1, 30, 1), "there are 28 columns of output, not 30"),
        (ConvolutionConfig(Tile(6, 4), 1, 8, 1), "blocks of 8 columns are not whole tiles of 6"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(config: ConvolutionConfig, why: str) -> None:
    assert why in (validity(config, IMAGE.convolution(), AVX512) or "")
    with pytest.raises(ScheduleError, match="cannot be computed with"):
        schedule(IMAGE.task(), AVX512, config)


def test_a_strip_that_no_stack_holds_is_refused() -> None:
    wide = ConvolutionProblem((1, 512, 64, 64), (64, 512, 3, 3), (1, 1), (1, 1), (1, 1), 1, (f32, f32, f32))
    why = validity(ConvolutionConfig(Tile(6, 4), 64, 64, 1), wide.convolution(), AVX512)
    assert "does not fit a thread's stack" in (why or "")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (DepthwiseConfig(0, 1, 28, 96), "at least 1"),
        (DepthwiseConfig(31, 1, 28, 96), "do not fit 32 registers"),
        (DepthwiseConfig(8, 1, 28, 97), "there are 96 channels, not 97"),
        (DepthwiseConfig(8, 29, 28, 96), "there are 28 rows of output, not 29"),
    ],
)
def test_a_depthwise_configuration_that_does_not_fit_is_refused(config: DepthwiseConfig, why: str) -> None:
    assert why in (depthwise_validity(config, DEPTHWISE.convolution(), AVX512) or "")
    with pytest.raises(ScheduleError, match="cannot be computed with"):
        schedule(DEPTHWISE.task(), AVX512, config)


def test_configurations_of_the_other_template_are_refused() -> None:
    dense, alone = (space_of(p, AVX512).default for p in (IMAGE, DEPTHWISE))
    for p, config in ((IMAGE, alone), (DEPTHWISE, dense)):
        assert p.read(str(config), AVX512) is None
        with pytest.raises(ScheduleError, match="depthwise"):
            schedule(p.task(), AVX512, config)


@pytest.mark.parametrize(
    "text", ["", "tile=7x4v", "tile=7x4v, block=1x28, panels=1, neighbours=none", "columns=8, block=1x28, channels=96 "]
)
def test_text_that_says_no_configuration_is_none(text: str) -> None:
    assert read_config(text) is None
    assert read_depthwise(text) is None


PLAIN = "stride=1x1 padding=1x1 dilation=1x1 groups=1 x=channels w=plain out=channels"


@pytest.mark.parametrize(
    ("shapes", "dtypes", "layout"),
    [
        ("1x32x28x28*64x32x3", "f32,f32,f32", PLAIN),
        ("1x32x28x28*64x16x3x3", "f32,f32,f32", PLAIN),
        ("1x?32x28x28*64x32x3x3", "f32,f32,f32", PLAIN),
        ("1x32x28x28*?64x32x3x3", "f32,f32,f32", PLAIN),
        ("1x32x28x28*64x32x3x3", "f32,f32", PLAIN),
        ("1x32x28x28*64x32x3x3", "f32,f32,i32", PLAIN),
        ("1x32x28x28*64x32x3x3", "f32,f32,f32", PLAIN.replace("stride=1x1", "stride=0x1")),
        ("1x32x28x28*64x32x3x3", "f32,f32,f32", PLAIN.replace("stride=1x1", "stride=1")),
        ("1x32x28x28*64x32x3x3", "f32,f32,f32", PLAIN.replace("groups=1", "groups=3")),
        ("1x32x2x2*64x32x7x7", "f32,f32,f32", PLAIN.replace("padding=1x1", "padding=0x0")),
        ("1x32x28x28*64x32x3x3", "f32,f32,f32", PLAIN + "\n"),
        ("1x32x28x28*1x32x3x3", "f32,f32,f32", PLAIN.replace("plain", "packed16")),
    ],
)
def test_text_that_says_no_convolution_is_refused(shapes: str, dtypes: str, layout: str) -> None:
    with pytest.raises(ScheduleError, match="does not describe an operator of"):
        read_problem("cpu.convolution", shapes, dtypes, layout)


def test_what_is_too_large_or_a_product_is_refused() -> None:
    with pytest.raises(ScheduleError, match="too large"):
        read_problem("cpu.convolution", "9999x9999x999x999*64x9999x3x3", "f32,f32,f32", PLAIN)
    with pytest.raises(ScheduleError, match="has no template of its own"):
        read_problem(
            "cpu.convolution", "1x32x28x28*64x32x1x1", "f32,f32,f32", PLAIN.replace("padding=1x1", "padding=0x0")
        )


def test_the_cost_model_prefers_what_leaves_no_core_idle_and_no_sum_waiting() -> None:
    def cost(tile: Tile, rows: int) -> float:
        return IMAGE.cycles(ConvolutionConfig(tile, rows, 28, 1), AVX512)

    assert cost(Tile(6, 4), 14) < cost(Tile(6, 4), 28)
    assert cost(Tile(6, 4), 14) < cost(Tile(2, 4), 14)
    assert cost(Tile(6, 4), 14) < cost(Tile(6, 4), 1)
