"""No two live buffers overlap, whatever the lifetimes and sizes, known or symbolic."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.backend.program.memory_plan import ALIGNMENT, MemoryBlock, place, plan_memory
from taskmap.backend.program.sizes import c_size, sizes_function
from taskmap.backend.program.structure import BufferKind, ExternCall, Launch, Program, ProgramBuffer
from taskmap.ir.construct import call, cast, ceil_div, const, maximum, select
from taskmap.ir.errors import CodegenError, GraphError
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.types import f64, i64

BATCH, LENGTH = Var("s0"), Var("s1")

FACTORS: list[Dim] = [1, BATCH, LENGTH, BATCH * LENGTH, LENGTH * BATCH, LENGTH + 3, ceil_div(LENGTH, 2)]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Random programs: each step uses some buffers, most in the arena, with sizes that may be symbolic."""
    sizes = draw(st.lists(st.tuples(st.integers(0, 3000), st.sampled_from(FACTORS)), min_size=1, max_size=14))
    kinds = draw(
        st.lists(
            st.sampled_from([BufferKind.ARENA, BufferKind.ARENA, BufferKind.INPUT]),
            min_size=len(sizes),
            max_size=len(sizes),
        )
    )
    buffers = tuple(ProgramBuffer(k, n * factor) for (n, factor), k in zip(sizes, kinds, strict=True))
    used = st.lists(st.integers(0, len(buffers) - 1), min_size=1, max_size=4, unique=True)
    steps = draw(st.lists(used, min_size=1, max_size=12))
    return Program(buffers, tuple(Launch("k", tuple(b)) for b in steps), (BATCH, LENGTH))


@given(programs(), st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=150)
def test_live_buffers_do_not_overlap(program: Program, batch: int, length: int) -> None:
    plan = plan_memory(program)
    dims = (batch, length)
    size = sizes_function([b.bytes for b in program.buffers], program.dims)(dims)
    factors = sizes_function([r.factor for r in plan.regions], program.dims)(dims)
    starts = [0]
    for region, factor in zip(plan.regions, factors, strict=True):
        starts.append(starts[-1] + region.units * factor)
    assert sizes_function([plan.bytes], program.dims)(dims) == (starts[-1],)
    ranges = {b: starts[r] + offset * factors[r] for b, (r, offset) in plan.places.items()}
    used = {b for step in program.steps for b in step.buffers if program.buffers[b].kind is BufferKind.ARENA}
    assert set(ranges) == used
    for b, start in ranges.items():
        assert start % ALIGNMENT == 0
        assert 0 <= start <= start + size[b] <= starts[-1]
    for position in range(len(program.steps)):
        # A buffer is alive from the first to the last step that uses it.
        live = [b for b in used if plan.demand[b][0] <= position <= plan.demand[b][1]]
        for i, a in enumerate(live):
            for b in live[i + 1 :]:
                apart = ranges[a] + size[a] <= ranges[b] or ranges[b] + size[b] <= ranges[a]
                assert apart or size[a] == 0 or size[b] == 0
    for b in used:
        steps = [p for p, step in enumerate(program.steps) if b in step.buffers]
        assert plan.demand[b] == (steps[0], steps[-1])


def chain(sizes: list[Dim]) -> Program:
    """Step i reads buffer i and writes buffer i + 1."""
    buffers = tuple(ProgramBuffer(BufferKind.ARENA, s) for s in sizes)
    return Program(buffers, tuple(Launch("k", (i, i + 1)) for i in range(len(sizes) - 1)), (BATCH,))


def test_a_chain_needs_only_two_buffers_at_a_time() -> None:
    assert plan_memory(chain([4096] * 20)).bytes == 2 * 4096


def test_a_chain_of_symbolic_size_shares_as_well_as_one_of_known_size() -> None:
    plan = plan_memory(chain([BATCH * 4096] * 20))
    assert sizes_function([plan.bytes], (BATCH,))((7,)) == (2 * 4096 * 7,)


def test_a_small_buffer_goes_into_the_tightest_gap() -> None:
    blocks = [
        MemoryBlock(1024, 0, 9),
        MemoryBlock(512, 0, 0),
        MemoryBlock(768, 1, 1),
        MemoryBlock(256, 0, 9),
        MemoryBlock(192, 2, 2),
    ]
    _, total = place(blocks)
    assert total == 1024 + 256 + 768


def test_an_extern_call_may_not_use_the_arena() -> None:
    with pytest.raises(GraphError, match="lies in the arena"):
        Program((ProgramBuffer(BufferKind.ARENA, 64),), (ExternCall(0, (0,)),))


def test_a_step_may_not_use_what_does_not_exist() -> None:
    with pytest.raises(GraphError, match="buffer 1"):
        Program((ProgramBuffer(BufferKind.ARENA, 64),), (Launch("k", (1,)),))


@given(st.integers(-50, 50), st.integers(1, 9))
def test_sizes_round_down_as_python_does(value: int, divisor: int) -> None:
    a = BATCH - 7
    wanted = ((value - 7) // divisor, (value - 7) % divisor, max(value, 3), 5 if value < 2 else 6)
    sizes = [a // divisor, a % divisor, maximum(BATCH, 3), select(BATCH < 2, 5, 6)]
    assert sizes_function(sizes, (BATCH,))((value,)) == wanted


def test_known_sizes_need_no_dimensions() -> None:
    assert sizes_function([3, const(4, BATCH.dtype)], ())(()) == (3, 4)


def test_what_is_no_size_is_refused() -> None:
    with pytest.raises(CodegenError, match="cannot write the size"):
        c_size(Var("x"), {})
    with pytest.raises(CodegenError, match="is not "):
        c_size(cast(call("erf", cast(BATCH, f64)), i64), {BATCH: "n"})


def test_a_size_may_be_computed_in_floating_point() -> None:
    half = cast(BATCH, f64) / 2.0
    sizes = [half, cast(call("floor", half), i64), call("sqrt", cast(BATCH, f64)), const(math.inf, f64)]
    assert sizes_function(sizes, (BATCH,))((9,)) == (4.5, 4, 3.0, math.inf)
