"""Endless kernels are detected by their actions, not by a time limit: the verdict is the same on any machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim.problems import Problem
from taskmap.backend.sim.run import run
from taskmap.backend.store.objects import KernelStore
from tests.backend.sim.kernels import SEEDS, kernel

NEVER = 1e6
"""Seconds that no test takes: a run that ends earlier was not ended by a clock."""


def problems(source: CudaSource, arrays: list[NDArray[Any]], store: KernelStore, **how: Any) -> list[Problem]:
    report = run(source, arrays, seconds=NEVER, raises=False, store=store, **how)
    assert report.counters["steps"] > 0
    return list(report.problems)


MBARRIER = """\
  tm_shared<long long> full = tm_shared_at<long long>(0, 1);
  if (threadIdx.x == 0) tm_mbarrier_init(full, 32);
  tm_barrier();
  if (threadIdx.x > 0) tm_mbarrier_arrive(full);
  while (!tm_mbarrier_test_wait(full, 0)) {}
  p[threadIdx.x] = 1.0f;"""


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_polls_that_never_succeed_are_a_deadlock(store: KernelStore, seed: int) -> None:
    source = kernel(MBARRIER, "tm_global<float> p", threads=32, shared=8)
    (found,) = problems(source, [np.zeros(32, np.float32)], store, seed=seed)
    assert found.kind == "deadlock"
    assert found.place.line == 7
    assert "threads 0-31: polling, at a test of an mbarrier in line 7" in found.text
    right = kernel(MBARRIER.replace("if (threadIdx.x > 0) ", ""), "tm_global<float> p", threads=32, shared=8)
    run(right, [np.zeros(32, np.float32)], seed=seed, store=store)


def test_threads_that_poll_while_others_wait(store: KernelStore) -> None:
    text = MBARRIER.replace("  while", "  if (threadIdx.x == 5) tm_mbarrier_wait(full, 0);\n  else while")
    (found,) = problems(kernel(text, "tm_global<float> p", threads=32, shared=8), [np.zeros(32, np.float32)], store)
    assert found.kind == "deadlock"
    assert "thread 5: at a wait for an mbarrier in line 7" in found.text
    assert "lacks 1 arrivals" in found.text


def test_reads_of_what_nobody_writes(store: KernelStore) -> None:
    source = kernel("  while (p[0] == 0.0f) {}", "tm_global<float> p", threads=1)
    (found,) = problems(source, [np.zeros(1, np.float32)], store)
    assert (found.kind, found.place.line) == ("deadlock", 3)
    assert "a read never ends, nothing changes any more" in found.text


def test_a_thread_that_polls_lets_the_writer_run(store: KernelStore) -> None:
    """A kernel that ends has no deadlock; the mistake is that nothing orders the two threads."""
    body = "  if (threadIdx.x == 0) { while (p[0] == 0.0f) {} p[1] = 2.0f; } else { p[0] = 1.0f; }"
    array = np.zeros(2, np.float32)
    found = problems(kernel(body, "tm_global<float> p", threads=2), [array], store)
    assert {p.kind for p in found} == {"race"}
    assert array.tolist() == [1, 2]


LOCK = """\
  while (tm_atomic_cas_i32(m, 0, 1) != 0) {}
  tm_fence_gpu();
  p[0] = p[0] + 1.0f;
  tm_fence_gpu();
  tm_atomic_exch_i32(m, 0);"""


@pytest.mark.parametrize("checks", [True, False])
def test_locks(store: KernelStore, checks: bool) -> None:
    """A thread that holds a lock yields to those that want it, and they yield again."""
    body = LOCK.replace("  p[0]", "  for (int i = 0; i < 3; i++) tm_atomic_add_i32(m + 1, 0);\n  p[0]")
    right = kernel(body, "tm_global<float> p, tm_global<int> m", threads=64, grid=(2,))
    array = np.zeros(1, np.float32)
    run(right, [array, np.zeros(2, np.int32)], checks=checks, store=store)
    assert array[0] == 128
    kept = kernel(LOCK.replace("  tm_atomic_exch_i32(m, 0);", ""), "tm_global<float> p, tm_global<int> m", threads=64)
    found = run(kept, [array, np.zeros(1, np.int32)], checks=checks, seconds=NEVER, raises=False, store=store).problems
    assert [p.kind for p in found] == ["deadlock"]
    assert "threads 1-63: polling, at an atomic operation in line 3" in found[0].text


def test_a_block_may_not_wait_for_a_later_one(store: KernelStore) -> None:
    body = "  if (blockIdx.x == 0) while (tm_atomic_add_i32(m, 0) == 0) {}\n  else tm_atomic_exch_i32(m, 1);"
    source = kernel(body, "tm_global<int> m", threads=1, grid=(2,))
    (found,) = problems(source, [np.zeros(1, np.int32)], store)
    assert found.kind == "deadlock"
    assert "may not wait for later ones" in found.text
    assert not problems(source, [np.zeros(1, np.int32)], store, seed=1)  # descending: the other block comes first


def test_many_atomic_operations_that_change_nothing_end(store: KernelStore) -> None:
    body = "  for (int i = 0; i < 3000; i++) tm_atomic_max_i32(m, (int)threadIdx.x % 7);"
    top = np.zeros(1, np.int32)
    assert not problems(kernel(body, "tm_global<int> m", threads=64), [top], store)
    assert top[0] == 6


def test_steps_are_bounded(store: KernelStore) -> None:
    body = "  for (int i = 0; i < 1000; i++) p[0] = p[0] + 1.0f;"
    source = kernel(body, "tm_global<float> p", threads=1)
    (found,) = problems(source, [np.zeros(1, np.float32)], store, steps=1999)
    assert (found.kind, found.text) == ("timeout", "the run took more than 1999 steps")
    assert not problems(source, [np.zeros(1, np.float32)], store, steps=2000)
    assert not problems(source, [np.zeros(1, np.float32)], store)


def test_processor_time_is_the_last_guard(store: KernelStore) -> None:
    source = kernel("  for (long long i = 0; i < 1ll << 50; i++) p[0] = p[0] + 1.0f;", "tm_global<float> p", threads=1)
    (found,) = run(source, [np.zeros(1, np.float32)], seconds=0.1, raises=False, store=store).problems
    assert (found.kind, found.text) == ("timeout", "the run took longer than 0.1 s of processor time")
