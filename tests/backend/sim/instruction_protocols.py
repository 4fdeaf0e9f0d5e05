"""Entries that compute nothing and only make sense together: barriers, fences, groups of copies, clusters. Each
protocol is a kernel that gives wrong numbers, or never ends, if one of them fails. Needs no pytest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.cuda.tensor_map import MapParameter
from taskmap.backend.sim import run as sim
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.interp.instructions import execute
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.types import f32
from tests.backend.sim.instruction_runs import run_wgmma
from tests.backend.sim.kernels import kernel

IN_OUT = "tm_global<const float> a, tm_global<float> b"


@dataclass(frozen=True, slots=True)
class Protocol:
    """``function`` (store) gives the text of the kernel that it ran; ``entries``: the names of those that it uses."""

    function: Callable[[KernelStore], str]
    entries: tuple[str, ...]

    def __str__(self) -> str:
        return self.function.__name__

    @property
    def used(self) -> list[Instruction]:
        """The entries."""
        return [instruction_named(name) for name in self.entries]

    def check(self, store: KernelStore) -> None:
        """Raises AssertionError for a wrong result, or if an entry is not used."""
        text = self.function(store)
        missing = [entry.name for entry in self.used if f"{entry.text}(" not in text and f"{entry.text}<" not in text]
        assert not missing, missing


PROTOCOLS: list[Protocol] = []


def protocol(*entries: str) -> Callable[[Callable[[KernelStore], str]], Callable[[KernelStore], str]]:
    """The function checks these entries."""

    def register(function: Callable[[KernelStore], str]) -> Callable[[KernelStore], str]:
        PROTOCOLS.append(Protocol(function, entries))
        return function

    return register


def ran(source: CudaSource, want: Callable[[np.ndarray], np.ndarray], store: KernelStore, size: int = 64) -> str:
    """Runs a kernel on ``size`` numbers, and compares its output."""
    a, b = np.random.default_rng().standard_normal(size).astype(np.float32), np.full(size, np.nan, np.float32)
    before = a.copy()
    sim.run(source, [a, b], outputs=[1], store=store)
    np.testing.assert_array_equal(b, want(before))
    return source.text


def turned(a: np.ndarray) -> np.ndarray:
    """Each half from its end to its beginning."""
    return np.concatenate([a[31::-1], a[:31:-1]])


@protocol("cp_async_commit", "cp_async_wait", "cp_async_wait_all", "cp_async_mbarrier_arrive", "mbarrier_init",
          "mbarrier_test_wait", "mbarrier_invalidate", "warp_sync")  # fmt: skip
def copies_are_waited_for(store: KernelStore) -> str:
    """Every lane reads data that another lane has copied: behind an mbarrier, and behind its group."""
    body = """\
  tm_shared<float> s = tm_shared_at<float>(0, 64);
  tm_shared<long long> full = tm_shared_at<long long>(256, 1);
  const int t = threadIdx.x;
  if (t == 0) tm_mbarrier_init(full, 32);
  tm_barrier();
  tm_cp_async_4(s + t, a + t);
  tm_cp_async_mbarrier_arrive(full);
  while (!tm_mbarrier_test_wait(full, 0)) {}
  b[t] = s[31 - t];
  if (t % 2) {
    tm_cp_async_4(s + 32 + t, a + 32 + t);
    tm_cp_async_wait_all();
  } else {
    tm_cp_async_4(s + 32 + t, a + 32 + t);
    tm_cp_async_commit();
    tm_cp_async_wait<0>();
  }
  tm_warp_sync();
  b[32 + t] = s[63 - t];
  tm_barrier();
  if (t == 0) tm_mbarrier_invalidate(full);"""
    return ran(kernel(body, IN_OUT, threads=32, shared=264), turned, store)


@protocol("mbarrier_expect_tx", "mbarrier_arrive", "mbarrier_try_wait", "mbarrier_wait", "mbarrier_arrive_expect_tx",
          "bulk_load", "bulk_store", "tma_commit", "tma_wait", "tma_wait_read", "prefetch_l1", "prefetch_l2",
          "fence_proxy_async", "fence_mbarrier_init")  # fmt: skip
def bytes_are_expected(store: KernelStore) -> str:
    """Two TMA loads in two phases of one mbarrier, and one store."""
    body = """\
  tm_shared<float> s = tm_shared_at<float>(0, 64);
  tm_shared<long long> full = tm_shared_at<long long>(256, 1);
  const int t = threadIdx.x;
  if (t == 0) {
    tm_mbarrier_init(full, 2);
    tm_fence_mbarrier_init();
    tm_prefetch_l1(a);
    tm_prefetch_l2(a + 32);
  }
  tm_barrier();
  if (t == 0) {
    tm_mbarrier_expect_tx(full, 128);
    tm_bulk_load(s, a, 128, full);
  }
  if (t < 2) tm_mbarrier_arrive(full);
  while (!tm_mbarrier_try_wait(full, 0)) {}
  tm_barrier();
  if (t == 0) {
    tm_mbarrier_arrive_expect_tx(full, 128);
    tm_bulk_load(s + 32, a + 32, 128, full);
    tm_mbarrier_arrive(full);
  }
  tm_mbarrier_wait(full, 1);
  const float x = s[t], y = s[32 + t];
  tm_barrier();
  s[31 - t] = x;
  s[63 - t] = y;
  tm_fence_proxy_async();
  tm_barrier();
  if (t == 0) {
    tm_bulk_store(b, s, 256);
    tm_tma_commit();
    tm_tma_wait_read<0>();
    tm_tma_wait<0>();
  }"""
    return ran(kernel(body, IN_OUT, threads=32, shared=264), turned, store)


@protocol("cluster_rank", "cluster_arrive", "cluster_arrive_relaxed", "cluster_wait", "cluster_map", "cluster_load",
          "fence_cluster", "mbarrier_arrive_remote", "mbarrier_arrive_expect_tx_remote")  # fmt: skip
def blocks_of_a_cluster(store: KernelStore) -> str:
    """Each block reads the other's memory, and the other says how many bytes arrive in its own."""
    body = """\
  tm_shared<float> s = tm_shared_at<float>(0, 32);
  tm_shared<float> own = tm_shared_at<float>(128, 32);
  tm_shared<long long> full = tm_shared_at<long long>(256, 1);
  const int t = threadIdx.x, rank = tm_cluster_rank(), other = rank ^ 1;
  own[t] = a[rank * 32 + t] * 2.0f;
  if (t == 0) {
    tm_mbarrier_init(full, 2);
    tm_fence_mbarrier_init();
  }
  tm_fence_cluster();
  tm_cluster_arrive();
  tm_cluster_wait();
  const float theirs = t < 16 ? tm_cluster_map(own, other)[31 - t] : tm_cluster_load(own + (31 - t), other);
  if (t == 0) {
    tm_mbarrier_arrive_remote(full, other);
    tm_mbarrier_arrive_expect_tx_remote(full, other, 128);
    tm_bulk_load(s, a + rank * 32, 128, full);
  }
  tm_mbarrier_wait(full, 0);
  b[rank * 32 + t] = s[t] + theirs;
  tm_cluster_arrive_relaxed();
  tm_cluster_wait();"""
    source = kernel(body, IN_OUT, threads=32, grid=(2,), shared=264, cluster=(2, 1, 1))
    return ran(source, lambda a: a + 2 * a[::-1], store)


@protocol("barrier_sync", "barrier_arrive", "fence_block", "fence_gpu", "fence_system")
def warps_meet_at_a_barrier(store: KernelStore) -> str:
    """One warp writes and continues, the other waits for it."""
    body = """\
  tm_shared<float> s = tm_shared_at<float>(0, 64);
  const int t = threadIdx.x;
  if (t < 32) {
    s[t] = a[t];
    s[32 + t] = a[32 + t];
    tm_fence_block();
    tm_barrier_arrive(1, 64);
  } else {
    tm_barrier_sync(1, 64);
    b[t - 32] = s[63 - t];
    tm_fence_gpu();
    b[t] = s[95 - t];
    tm_fence_system();
  }"""
    return ran(kernel(body, IN_OUT, threads=64, shared=256), turned, store)


@protocol("prefetch_tensor_map", "fence_proxy_async_global")
def the_copy_engine_reads_what_threads_wrote(store: KernelStore) -> str:
    body = """\
  tm_shared<float> s = tm_shared_at<float>(0, 64);
  tm_shared<long long> full = tm_shared_at<long long>(256, 1);
  const int t = threadIdx.x;
  const float x = a[t] * 3.0f;
  tm_prefetch_tensor_map(m);
  a[t] = x;
  if (t == 0) {
    tm_mbarrier_init(full, 1);
    tm_fence_mbarrier_init();
  }
  tm_fence_proxy_async_global();
  tm_barrier();
  if (t == 0) {
    tm_mbarrier_arrive_expect_tx(full, 256);
    tm_tma_load_1d(s, m, full, 0);
  }
  tm_mbarrier_wait(full, 0);
  b[t] = s[t];"""
    parameters = "tm_global<float> a, tm_global<float> b, const __grid_constant__ tm_tensor_map m"
    maps = (MapParameter(0, f32, (64,), (1,), (64,)),)
    return ran(kernel(body, parameters, threads=64, shared=264, maps=maps), lambda a: a * np.float32(3), store)


@protocol("grid_wait", "grid_launch")
def grids_that_depend_on_each_other(store: KernelStore) -> str:
    """A grid that was launched alone waits for none, and lets none begin."""
    body = "  const int t = threadIdx.x;\n  tm_grid_wait();\n  b[t] = a[t] + 1.0f;\n  tm_grid_launch();"
    return ran(kernel(body, IN_OUT, threads=64), lambda a: a + np.float32(1), store)


@protocol("setmaxnreg_inc", "setmaxnreg_dec")
def registers_change_hands(store: KernelStore) -> str:
    """168 registers of each of three warpgroups become 40 and twice 232."""
    body = """\
  const int t = threadIdx.x;
  if (t < 128) {
    tm_setmaxnreg_dec<40>();
    if (t < 64) b[t] = a[t] * 2.0f;
  } else {
    tm_setmaxnreg_inc<232>();
    if (t < 192) b[t - 64] = a[t - 64] * 4.0f;
  }"""
    source = kernel(body, IN_OUT, threads=384)
    # The assembler knows the initial number of registers of a thread only with a bound on blocks.
    source = replace(source, text=source.text.replace("(384)", "(384, 1)"))
    return ran(source, lambda a: np.concatenate([2 * a[:64], 4 * a[64:]]), store, size=128)


@protocol("wgmma_fence", "wgmma_commit", "wgmma_wait", "wgmma_hold", "wgmma_descriptor")
def a_product_is_waited_for(store: KernelStore) -> str:
    entry = instruction_named("wgmma_m64n8k16_f16_f32")
    texts: list[str] = []
    c, a, b, after = run_wgmma(entry, store, 128, (False, False), seen=texts)
    np.testing.assert_array_equal(after, execute(entry, c, a, b).astype(after.dtype))
    return texts[0]
