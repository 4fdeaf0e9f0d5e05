"""The threads that run parallel loops: every iteration runs once on any thread, and no thread waits for the others."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.compile import compile_kernels, team_file
from taskmap.backend.cpu.team import PARALLEL, PARALLEL_DECLARATION, TEAM, TEAM_DECLARATION, allowed_processors
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.key import KernelSource
from taskmap.backend.store.objects import KernelStore

CPUS = len(os.sched_getaffinity(0))
PRELUDE = f"typedef long long i64;\n{PARALLEL_DECLARATION}\n{TEAM_DECLARATION}\n"
LOOPS = KernelSource(
    "loops",
    f"""\
extern int gettid(void);
extern int usleep(unsigned);
struct loops {{ int *count; i64 *by; i64 extent, repeat; int leader, slow, meet, nested, here; }};
static void range(const void *data, i64 first, i64 end) {{
  struct loops *s = *(struct loops *const *)data;
  const int me = gettid();
  if (me != s->leader && s->slow) usleep(s->slow);
  if (s->meet) {{
    __atomic_fetch_add(&s->here, 1, 5);
    for (i64 i = 0; i < 100000 && __atomic_load_n(&s->here, 5) < s->meet; i++) usleep(100);
  }}
  for (i64 i = first; i < end; i++) {{
    __atomic_fetch_add(&s->count[i], 1, 5);
    if (s->nested) {{
      struct loops inside = *s, *const at = &inside;
      inside.nested = inside.meet = 0, inside.count = s->count + s->extent * (i + 1);
      {PARALLEL}(range, &at, s->extent);
    }}
  }}
  __atomic_fetch_add(&s->by[me != s->leader], end - first, 5);
}}
static void body(void *at) {{
  struct loops *s = at;
  for (i64 r = 0; r < s->repeat; r++) {PARALLEL}(range, &s, s->extent);
}}
void loops(int threads, int *count, i64 *by, i64 extent, i64 repeat, int slow, int meet, int nested) {{
  struct loops s = {{count, by, extent, repeat, gettid(), slow, meet, nested, 0}};
  {TEAM}(body, &s, threads);
}}
""",
    PRELUDE,
)


def loops(
    threads: int, extent: int, repeat: int = 1, *, slow: int = 0, meet: int = 0, nested: bool = False
) -> tuple[list[int], tuple[int, int]]:
    """The number of runs of each iteration, and the numbers of iterations that the calling thread and the others ran.

    slow: microseconds that the others take for each range; meet: the number of ranges that wait for each other.
    """
    address = compile_kernels([LOOPS], find_toolchain(), KernelStore(), Counters())["loops"]
    counts = np.zeros(extent * (1 + extent) if nested else extent, np.int32)
    by = np.zeros(2, np.int64)
    number, place, size = ctypes.c_int, ctypes.c_void_p, ctypes.c_longlong
    function = ctypes.CFUNCTYPE(None, number, place, place, size, size, number, number, number)(address)
    function(threads, counts.ctypes.data, by.ctypes.data, extent, repeat, slow, meet, nested)
    return counts.tolist(), (int(by[0]), int(by[1]))


@settings(max_examples=60, deadline=None)
@given(threads=st.integers(0, 9), extent=st.integers(0, 70), repeat=st.integers(1, 40))
def test_every_iteration_runs_once_a_loop(threads: int, extent: int, repeat: int) -> None:
    counts, (mine, others) = loops(threads, extent, repeat)
    assert counts == [repeat] * extent
    assert mine + others == extent * repeat
    assert others == 0 or threads != 1


@pytest.mark.skipif(CPUS < 2, reason="one processor")
def test_two_threads_run_at_once() -> None:
    time.sleep(0.2)  # until a leader that went on with fewer threads after the last loops would have all of them again
    counts, (_, others) = loops(2, 2, meet=2)
    assert counts == [1, 1]
    assert others == 1


def test_more_threads_than_processors_are_as_many_as_processors() -> None:
    counts, _ = loops(1000, 5000, 3)
    assert counts == [3] * 5000


def test_a_loop_in_a_loop_is_serial() -> None:
    counts, (mine, others) = loops(2, 11, nested=True)
    assert counts == [1] * (11 + 11 * 11)
    assert mine + others == 11 + 11 * 11


def test_a_leader_does_without_threads_that_do_not_run() -> None:
    """In a thousand loops whose other threads take 2 ms for work that the leader does at once, few wait for them."""
    _, (mine, others) = loops(2, 64, 1000, slow=2000)
    assert others < mine / 100
    _, (mine, others) = loops(2, 64, 1000, slow=2000)
    assert others < mine / 100


def test_threads_call_at_once() -> None:
    seen: list[list[int]] = []
    callers = [threading.Thread(target=lambda: seen.append(loops(2, 33, 200)[0])) for _ in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert seen == [[200] * 33] * 6


def test_a_forked_child_has_its_own_threads() -> None:
    program = """
import os
from tests.backend.cpu.test_team import loops
assert loops(2, 100, 50)[0] == [50] * 100
child = os.fork()
if child == 0:
    os._exit(0 if loops(2, 100, 50)[0] == [50] * 100 else 1)
assert os.waitpid(child, 0)[1] == 0
assert loops(2, 100, 50)[0] == [50] * 100
"""
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, cwd=root)


def test_one_processor_is_one_thread() -> None:
    """With taskset to one processor a loop is one range on the calling thread, whatever number is asked for."""
    program = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from tests.backend.cpu.test_team import loops
assert loops(8, 100, 50) == ([50] * 100, (5000, 0))
"""
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, cwd=root)


@pytest.mark.skipif(CPUS < 2, reason="one processor")
def test_a_run_without_a_parallel_loop_wakes_no_thread() -> None:
    program = """
import os
from tests.backend.cpu.test_team import loops
threads = lambda: len(os.listdir("/proc/self/task"))
assert loops(2, 1)[0] == [1]  # compiles
before = threads()
assert loops(2, 1, 50) == ([50], (50, 0)) and loops(2, 0) == ([], (0, 0))
assert threads() == before
assert loops(2, 100)[0] == [1] * 100
assert threads() > before
"""
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, cwd=root)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [("max 100000\n", None), ("100000 100000\n", 1), ("150000 100000\n", 2), ("5000 100000\n", 1), ("nonsense", None)],
)
def test_the_quota_of_a_control_group(tmp_path: Path, text: str, allowed: int | None) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(text)
    assert allowed_processors(quota) == allowed
    assert allowed_processors(tmp_path / "missing") is None


def test_the_library_needs_no_openmp(tmp_path: Path) -> None:
    """Without an OpenMP runtime in the process, loops are serial and correct."""
    path = team_file(find_toolchain(), KernelStore(tmp_path))
    program = f"""
import ctypes
team = ctypes.CDLL({str(path)!r}, mode=ctypes.RTLD_GLOBAL)
assert not hasattr(ctypes.CDLL(None), "GOMP_parallel")
seen = []
size = ctypes.c_longlong
loop = ctypes.CFUNCTYPE(None, ctypes.c_void_p, size, size)(lambda _, first, end: seen.append((first, end)))
team.{PARALLEL}(loop, None, size(12))
assert seen == [(0, 12)], seen
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
