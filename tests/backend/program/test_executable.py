"""The launch sequence and the executable, with kernels written by hand."""

from __future__ import annotations

import threading
from array import array
from pathlib import Path

import numpy as np
import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.team import PARALLEL, PARALLEL_DECLARATION
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.program.arena import ArenaPool, allocate_arena
from taskmap.backend.program.executable import Executable
from taskmap.backend.program.host_launch import HostLauncher
from taskmap.backend.program.launch_c import launch_sources
from taskmap.backend.program.memory_plan import plan_memory
from taskmap.backend.program.sequence import CompiledSequence
from taskmap.backend.program.structure import BufferKind, ExternCall, Launch, Program, ProgramBuffer
from taskmap.backend.store.key import KernelSource
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import IndexOutOfRangeError, InputError
from taskmap.ir.nodes import Dim, Var
from tests.backend.program.mappings import flags_of

N = Var("s0")
SCALE = KernelSource(
    "scale", "void scale(void *x, void *y, long long n) { for (long long i = 0; i < n; i++)"
    " ((float *)y)[i] = 2.0f * ((float *)x)[i]; }"
)  # fmt: skip
ADD = KernelSource(
    "add", "void add(void *a, void *b, void *y, long long n) { for (long long i = 0; i < n; i++)"
    " ((float *)y)[i] = ((float *)a)[i] + ((float *)b)[i]; }"
)  # fmt: skip
TAKE = KernelSource(
    "take", "void take(void *x, void *index, void *y, long long n, int *error) { long long i = *(long long *)index;"
    " if (i < 0 || i >= n) { *error = 1; i = 0; } *(float *)y = ((float *)x)[i]; }"
)  # fmt: skip
RANGES = KernelSource(
    "ranges",
    "static void count(const void *data, i64 first, i64 end) { __atomic_fetch_add(*(int *const *)data, 1, 5); }\n"
    f"void ranges(int *y) {{ *y = 0; {PARALLEL}(count, &y, 64); }}",
    f"typedef long long i64;\n{PARALLEL_DECLARATION}\n",
)
"""Counts the ranges of a loop: one of all iterations, or some for each thread."""


def build(
    program: Program, kernels: list[KernelSource], folder: Path, single: bool = False, threads: int | None = None
) -> Executable:
    plan = plan_memory(program)
    launches = [] if single else launch_sources(program, plan, threads=threads)
    loaded = compile_kernels([*kernels, *launches], find_toolchain(), KernelStore(folder / "store"), Counters())
    functions = [loaded[source.symbol] for source in launches]
    sequence = None if single else CompiledSequence(program, plan, loaded, functions)
    return Executable(program, plan, HostLauncher(program, loaded, threads), sequence, single)


def address(*arrays: np.ndarray) -> array[int]:
    return array("q", [a.ctypes.data for a in arrays])


def buffers(*kinds: BufferKind, size: Dim = N * 4) -> tuple[ProgramBuffer, ...]:
    return tuple(ProgramBuffer(kind, size) for kind in kinds)


I, O, A, T, C = BufferKind.INPUT, BufferKind.OUTPUT, BufferKind.ARENA, BufferKind.TENSOR, BufferKind.CONSTANT  # noqa: E741


def chain(steps: int) -> Program:
    """y = x * 2**steps through temporaries of symbolic size."""
    ids = [0, *range(2, steps + 1), 1]
    launches = tuple(Launch("scale", (ids[i], ids[i + 1]), (N,)) for i in range(steps))
    return Program(buffers(I, O, *[A] * (steps - 1)), launches, (N,))


def test_one_executable_serves_every_size(tmp_path: Path) -> None:
    run = build(chain(6), [SCALE], tmp_path)
    for n in (0, 1, 33, 1000, 7):
        x, y = np.random.rand(n).astype(np.float32), np.full(n, np.nan, np.float32)
        run(address(x, y), (n,))
        np.testing.assert_array_equal(y, x * 64)


def test_constants_have_a_table_of_their_own(tmp_path: Path) -> None:
    program = Program(buffers(C, I, O, size=16), (Launch("add", (1, 0, 2), (4,)),))
    run = build(program, [ADD], tmp_path)
    x, y, w = np.ones(4, np.float32), np.zeros(4, np.float32), np.arange(4, dtype=np.float32)
    run(address(x, y), (), address(w))
    np.testing.assert_array_equal(y, w + 1)


@pytest.mark.parametrize("single", [False, True])
def test_extern_calls_run_between_launches_and_give_addresses(tmp_path: Path, single: bool) -> None:
    program = Program(
        buffers(I, T, T, O, A, size=16),
        (
            Launch("scale", (0, 4), (4,)),
            Launch("scale", (4, 1), (4,)),
            ExternCall(0, (1, 2)),
            Launch("add", (1, 2, 3), (4,)),
        ),
    )
    run = build(program, [SCALE, ADD], tmp_path, single=single)
    assert len(run.program.steps if run.sequence is None else run.sequence.segments) == (4 if single else 3)
    x, t, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32), np.zeros(4, np.float32)
    kept = []

    def extern(index: int, io: array[int]) -> None:
        assert index == 0
        kept.append(-t)
        io[2] = kept[-1].ctypes.data

    run(address(x, t, y, y), extern=extern)
    np.testing.assert_array_equal(y, 0 * x)
    np.testing.assert_array_equal(kept[0], -4 * x)
    assert [len(timed.seconds) for timed in run.runs] == ([4] if single else [])
    with pytest.raises(InputError, match="extern call 0"):
        run(address(x, t, y, y))


def test_an_index_out_of_range_names_the_operator_and_stops(tmp_path: Path) -> None:
    program = Program(
        buffers(I, I, O, O, size=16),
        (
            Launch("scale", (0, 2), (4,)),
            Launch("take", (0, 1, 3), (4,), needs_error=True, label="embedding", where="model.py:7  self.table(i)"),
            Launch("scale", (0, 3), (4,)),
        ),
    )
    run = build(program, [SCALE, TAKE], tmp_path)
    x, y, z = np.arange(4, dtype=np.float32), np.zeros(4, np.float32), np.zeros(4, np.float32)
    run(address(x, np.array([3]), y, z))
    np.testing.assert_array_equal(z, 2 * x)
    z[:] = 0
    with pytest.raises(IndexOutOfRangeError, match=r"out of range in embedding\n  model.py:7"):
        run(address(x, np.array([4]), y, z))
    assert z.tolist() == [0, 0, 0, 0]


def test_threads_share_no_arena(tmp_path: Path) -> None:
    run = build(chain(4), [SCALE], tmp_path)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(50):
            n = 20_000
            x, y = np.full(n, seed, np.float32), np.zeros(n, np.float32)
            run(address(x, y), (n,))
            if not (y == 16 * seed).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_a_number_of_threads_holds_only_during_the_call(tmp_path: Path) -> None:
    program = Program(buffers(O, size=4), (Launch("ranges", (0,)),))
    seen = np.zeros(1, np.int32)
    build(program, [RANGES], tmp_path)(address(seen))
    before = int(seen[0])
    build(program, [RANGES], tmp_path, threads=1)(address(seen))
    assert seen[0] == 1
    build(program, [RANGES], tmp_path)(address(seen))
    assert seen[0] == before


def test_wrong_numbers_of_addresses_and_sizes_are_refused(tmp_path: Path) -> None:
    run = build(chain(1), [SCALE], tmp_path)
    x = np.zeros(4, np.float32)
    with pytest.raises(InputError, match="2 addresses"):
        run(address(x), (4,))
    with pytest.raises(InputError, match="1 sizes"):
        run(address(x, x), ())


def test_arenas_are_used_again_and_grow() -> None:
    pool = ArenaPool()
    small = pool.take(100)
    other = pool.take(100)
    assert small.address != other.address
    assert small.address % 64 == 0
    pool.give(small)
    assert pool.take(50) is small
    pool.give(small)
    assert pool.take(5 << 20).bytes == 5 << 20
    assert allocate_arena(3 << 20).address % (2 << 20) == 0


def test_a_large_arena_is_private_memory_in_huge_pages() -> None:
    large, small = allocate_arena(3 << 20), allocate_arena(1 << 20)
    flags = flags_of(large.address)
    assert "hg" in flags
    assert "sh" not in flags | flags_of(small.address)  # a forked process has its own
