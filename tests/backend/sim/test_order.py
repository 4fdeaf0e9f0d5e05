"""Synchronisation of threads: warps, named barriers, mbarriers, fences with atomic operations, clusters. Each in a
correct kernel, and in incorrect ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taskmap.backend.sim.problems import Problem
from taskmap.backend.sim.run import run
from taskmap.backend.store.objects import KernelStore
from tests.backend.sim.kernels import SEEDS, clean, kernel, kinds

ONE = "tm_global<float> p"


def problem(store: KernelStore, body: str, parameters: str = ONE, size: int = 256, **options: Any) -> Problem:
    """The first problem of a kernel."""
    source = kernel(body, parameters, **options)
    report = run(source, [np.zeros(size, np.float32)], raises=False, store=store)
    assert report.problems
    return report.problems[0]


NEIGHBOURS = """\
  tm_shared<float> s = tm_shared_at<float>(0);
  s[threadIdx.x] = p[threadIdx.x];
  tm_warp_sync();
  p[threadIdx.x] = s[threadIdx.x ^ XOR];"""


def test_a_warp_barrier_orders_a_warp(store: KernelStore) -> None:
    p = np.arange(64, dtype=np.float32)
    clean(kernel(NEIGHBOURS.replace("XOR", "3"), ONE, threads=64, shared=256), [p], store)
    assert kinds(kernel(NEIGHBOURS.replace("XOR", "32"), ONE, threads=64, shared=256), [p], store) & {
        "race",
        "uninitialised",
    }
    without = NEIGHBOURS.replace("  tm_warp_sync();\n", "").replace("XOR", "3")
    found = [run(kernel(without, ONE, threads=64, shared=256), [p], seed=s, raises=False, store=store) for s in SEEDS]
    assert all(report.problems for report in found)


def test_a_shuffle_orders_no_memory(store: KernelStore) -> None:
    body = NEIGHBOURS.replace("tm_warp_sync()", "tm_shuffle_xor(0, 1)").replace("XOR", "1")
    assert "race" in kinds(kernel(body, ONE, threads=32, shared=256), [np.zeros(32, np.float32)], store)


HALVES = """\
  tm_shared<float> s = tm_shared_at<float>(0);
  const int half = threadIdx.x / 64;
  s[threadIdx.x] = p[threadIdx.x];
  tm_barrier_sync(1 + half, 64);
  p[threadIdx.x] = s[threadIdx.x ^ 63];"""


def test_named_barriers_order_their_threads_alone(store: KernelStore) -> None:
    p = np.arange(128, dtype=np.float32)
    clean(kernel(HALVES, ONE, threads=128, shared=512), [p], store)
    crossed = kernel(HALVES.replace("^ 63", "^ 127"), ONE, threads=128, shared=512)
    for seed in SEEDS:
        assert run(crossed, [p], seed=seed, raises=False, store=store).problems


def test_a_named_barrier_with_the_wrong_number_of_threads(store: KernelStore) -> None:
    found = problem(store, HALVES.replace("half, 64", "half, 96"), threads=128, shared=512)
    assert found.kind == "deadlock"
    assert "named barrier never ends: threads 0-127: at named barrier in line 6" in found.text
    assert problem(store, HALVES.replace("half, 64", "half, 48"), threads=128, shared=512).kind == "misuse"


PRODUCER = """\
  tm_shared<float> s = tm_shared_at<float>(0);
  if (threadIdx.x < 32) {
    s[threadIdx.x] = p[threadIdx.x];
    tm_barrier_arrive(3, 64);
  } else {
    tm_barrier_sync(3, 64);
    p[threadIdx.x] = s[threadIdx.x - 32];
  }"""


def test_arriving_without_waiting(store: KernelStore) -> None:
    p = np.arange(64, dtype=np.float32)
    clean(kernel(PRODUCER, ONE, threads=64, shared=128), [p], store)
    assert (p[32:] == p[:32]).all()
    assert problem(store, PRODUCER.replace("    tm_barrier_arrive(3, 64);\n", ""), threads=64, shared=128).kind


def test_a_divergent_barrier_says_who_waits_where(store: KernelStore) -> None:
    body = "  if (threadIdx.x < 40) tm_barrier();\n  p[threadIdx.x] = 1.0f;"
    found = problem(store, body, threads=64)
    assert found.kind == "divergent barrier"
    assert "threads 0-39: at barrier in line 3; threads 40-63: ended" in found.text
    assert found.place.code.startswith("if (threadIdx.x < 40)")


def test_barriers_in_different_places(store: KernelStore) -> None:
    body = "  if (threadIdx.x < 32) {\n    tm_barrier();\n  } else {\n    tm_barrier();\n  }"
    assert problem(store, body, threads=64).kind == "divergent barrier"


def test_collectives_that_lanes_do_not_share(store: KernelStore) -> None:
    body = "  if (threadIdx.x % 2) p[threadIdx.x] = tm_shuffle_xor(1.0f, 1);"
    found = problem(store, body, threads=32)
    assert found.kind == "incomplete collective"
    assert "which have ended" in found.text or "a shuffle never ends" in found.text
    body = "  if (threadIdx.x % 2) tm_vote_any(true);\n  else tm_shuffle_xor(1.0f, 1);"
    assert problem(store, body, threads=32).kind == "incomplete collective"
    assert problem(store, "  tm_shuffle_xor(1.0f, 1);", threads=16).kind == "incomplete collective"
    body = "  float c[32];\n  tm_wgmma_fence();\n  if (threadIdx.x != 5) tm_wgmma_m64n64k16_f16_f32<0, 0>(c, 0, 0, 0);"
    assert problem(store, body, threads=128, shared=16384).kind == "incomplete collective"


MBARRIER = """\
  tm_shared<float> s = tm_shared_at<float>(0, 64);
  tm_shared<long long> bar = tm_shared_at<long long>(256, 1);
  if (threadIdx.x == 0) tm_mbarrier_init(bar, 32);
  tm_barrier();
  for (int i = 0; i < 4; i++) {
    if (threadIdx.x < 32) {
      s[i % 2 * 32 + threadIdx.x] = p[i * 32 + threadIdx.x];
      tm_mbarrier_arrive(bar);
    }
    tm_mbarrier_wait(bar, i % 2);
    q[i * 64 + threadIdx.x] = s[i % 2 * 32 + threadIdx.x % 32];
    tm_barrier();
  }"""
TWO = "tm_global<const float> p, tm_global<float> q"


def test_mbarriers_order(store: KernelStore) -> None:
    p, q = np.arange(128, dtype=np.float32), np.zeros(256, np.float32)
    clean(kernel(MBARRIER, TWO, threads=64, shared=264), [p, q], store)
    assert (q.reshape(4, 2, 32) == p.reshape(4, 1, 32)).all()


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("tm_mbarrier_wait(bar, i % 2);", "", "race"),
        ("tm_mbarrier_wait(bar, i % 2)", "tm_mbarrier_wait(bar, 0)", "deadlock"),
        ("tm_mbarrier_init(bar, 32)", "tm_mbarrier_init(bar, 33)", "deadlock"),
        ("tm_mbarrier_init(bar, 32)", "tm_mbarrier_init(bar, 16)", "race"),
        ("if (threadIdx.x == 0) tm_mbarrier_init(bar, 32);", "", "mbarrier"),
        ("if (threadIdx.x == 0) tm_mbarrier_init", "tm_mbarrier_init", "mbarrier"),
        ("  tm_barrier();\n  for", "  for", "mbarrier"),
        ("tm_shared_at<long long>(256, 1)", "tm_shared_at<long long>(252, 1)", "misaligned"),
        ("tm_mbarrier_arrive(bar);", "tm_mbarrier_arrive(bar); tm_mbarrier_arrive(bar);", "race"),
    ],
)
def test_mistakes_with_mbarriers(store: KernelStore, old: str, new: str, kind: str) -> None:
    assert old in MBARRIER
    source = kernel(MBARRIER.replace(old, new, 1), TWO, threads=64, shared=264)
    found: set[str] = set()
    for seed in SEEDS:
        arrays = [np.arange(128, dtype=np.float32), np.zeros(256, np.float32)]
        report = run(source, arrays, seed=seed, raises=False, store=store)
        found |= {p.kind for p in report.problems}
    assert kind in found, found


def test_too_many_arrivals(store: KernelStore) -> None:
    body = """\
  tm_shared<long long> bar = tm_shared_at<long long>(0, 1);
  tm_mbarrier_init(bar, 2);
  tm_mbarrier_expect_tx(bar, 4);
  for (int i = 0; i < 3; i++) tm_mbarrier_arrive(bar);"""
    found = problem(store, body, threads=1, shared=8)
    assert found.kind == "mbarrier"
    assert "more arrivals in phase 0" in found.text


def test_a_phase_that_was_missed(store: KernelStore) -> None:
    body = """\
  tm_shared<long long> bar = tm_shared_at<long long>(0, 1);
  if (threadIdx.x == 0) tm_mbarrier_init(bar, 1);
  tm_barrier();
  if (threadIdx.x == 0) tm_mbarrier_arrive(bar);
  tm_mbarrier_wait(bar, 0);
  tm_barrier();
  if (threadIdx.x == 0) {
    tm_mbarrier_arrive(bar);
    tm_mbarrier_wait(bar, 1);
    tm_mbarrier_arrive(bar);
  }
  tm_barrier();
  tm_mbarrier_wait(bar, 1);"""
    report = run(kernel(body, ONE, threads=32, shared=8), [np.zeros(1, np.float32)], raises=False, store=store)
    assert {p.kind for p in report.problems} == {"mbarrier", "deadlock"}


COPIES = """\
  tm_shared<float> s = tm_shared_at<float>(0, 64);
  tm_shared<long long> bar = tm_shared_at<long long>(256, 1);
  if (threadIdx.x == 0) tm_mbarrier_init(bar, 64);
  tm_barrier();
  tm_cp_async_4(s + threadIdx.x, p + threadIdx.x);
  tm_cp_async_mbarrier_arrive(bar);
  tm_mbarrier_wait(bar, 0);
  q[threadIdx.x] = s[threadIdx.x ^ 63];"""


def test_copies_that_arrive_at_an_mbarrier(store: KernelStore) -> None:
    p, q = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    clean(kernel(COPIES, TWO, threads=64, shared=264), [p, q], store, outputs=[1])
    assert (q == p[::-1]).all()
    plain = COPIES.replace("tm_cp_async_mbarrier_arrive", "tm_mbarrier_arrive")
    assert "asynchronous copy" in kinds(kernel(plain, TWO, threads=64, shared=264), [p, q], store)


LAST_BLOCK = """\
  tm_shared<int> last = tm_shared_at<int>(0, 1);
  part[blockIdx.x * 32 + threadIdx.x] = p[blockIdx.x * 32 + threadIdx.x];
  tm_barrier();
  if (threadIdx.x == 0) {
    tm_fence_gpu();  // release
    last[0] = tm_atomic_add_i32(count, 1);
    tm_fence_gpu();  // acquire
  }
  tm_barrier();
  if (last[0] == 3) {
    float total = 0.0f;
    for (int i = 0; i < 4; i++) total = total + part[i * 32 + threadIdx.x];
    q[threadIdx.x] = total;
  }"""
PARTS = "tm_global<const float> p, tm_global<float> part, tm_global<int> count, tm_global<float> q"


def parts() -> list[np.ndarray]:
    rng = np.random.default_rng()
    return [
        rng.integers(0, 9, 128).astype(np.float32),
        np.empty(128, np.float32),
        np.zeros(1, np.int32),
        np.empty(32, np.float32),
    ]


def test_the_last_block_sums_what_the_others_have_written(store: KernelStore) -> None:
    source = kernel(LAST_BLOCK, PARTS, threads=32, grid=(4,), shared=4)
    for seed in SEEDS:
        arrays = parts()
        run(source, arrays, seed=seed, outputs=[1, 3], store=store)
        assert (arrays[3] == arrays[0].reshape(4, 32).sum(0)).all()


@pytest.mark.parametrize("dropped", ["    tm_fence_gpu();  // release\n", "    tm_fence_gpu();  // acquire\n"])
def test_a_fence_that_is_missing(store: KernelStore, dropped: str) -> None:
    source = kernel(LAST_BLOCK.replace(dropped, ""), PARTS, threads=32, grid=(4,), shared=4)
    for seed in SEEDS:
        report = run(source, parts(), seed=seed, outputs=[1, 3], raises=False, store=store)
        assert {p.kind for p in report.problems} == {"race between blocks"}


LAST_THREAD = """\
  part[blockIdx.x * 32 + threadIdx.x] = p[blockIdx.x * 32 + threadIdx.x];
  FENCE();
  const int before = tm_atomic_add_i32(count, 1);
  FENCE();
  if (before == ALL - 1) {
    float total = 0.0f;
    for (int i = 0; i < ALL; i++) total = total + part[i];
    q[0] = total;
  }"""


@pytest.mark.parametrize("blocks", ["one", "a cluster", "any"])
@pytest.mark.parametrize("fence", ["block", "cluster", "gpu", "system"])
def test_the_scope_of_a_fence(store: KernelStore, fence: str, blocks: str) -> None:
    """A fence orders only the threads of its scope."""
    grid = 1 if blocks == "one" else 2
    body = LAST_THREAD.replace("FENCE", f"tm_fence_{fence}").replace("ALL", str(32 * grid))
    how: dict[str, Any] = {"cluster": (2, 1, 1)} if blocks == "a cluster" else {}
    source = kernel(body, PARTS, threads=32, grid=(grid,), **how)
    reaches = {"block": 1, "cluster": 2, "gpu": 3, "system": 3}[fence]
    right = reaches >= ["one", "a cluster", "any"].index(blocks) + 1
    for seed in SEEDS:
        arrays = parts()
        report = run(source, arrays, seed=seed, outputs=[1, 3], raises=False, store=store)
        if right:
            assert not report.problems, report.problems
            assert arrays[3][0] == arrays[0][: 32 * grid].sum()
        else:
            assert {p.kind for p in report.problems} == {"race" if blocks == "a cluster" else "race between blocks"}


def test_atomic_and_plain_accesses_race(store: KernelStore) -> None:
    together = kernel("  tm_red_add_f32(p + threadIdx.x % 4, 1.0f);", ONE, threads=64, grid=(4,))
    p = np.zeros(4, np.float32)
    run(together, [p], store=store)
    assert (p == 64).all()
    mixed = "  tm_red_add_f32(p, 1.0f);\n  if (threadIdx.x == 0) p[1] = p[0];"
    assert "race" in kinds(kernel(mixed, ONE, threads=32), [p], store)


CLUSTER = """\
  tm_shared<float> s = tm_shared_at<float>(0, 32);
  const int rank = tm_cluster_rank();
  s[threadIdx.x] = p[blockIdx.x * 32 + threadIdx.x];
  tm_cluster_arrive();
  tm_cluster_wait();  // written
  tm_shared<float> there = tm_cluster_map(s, rank ^ 1);
  q[blockIdx.x * 32 + threadIdx.x] = there[31 - threadIdx.x];
  tm_cluster_arrive();
  tm_cluster_wait();  // read"""


def test_blocks_of_a_cluster_read_each_other(store: KernelStore) -> None:
    p, q = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    clean(kernel(CLUSTER, TWO, threads=32, grid=(8,), shared=128, cluster=(2, 1, 1)), [p, q], store, outputs=[1])
    assert (q.reshape(4, 2, 32) == p.reshape(4, 2, 32)[:, ::-1, ::-1]).all()


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("  tm_cluster_arrive();\n  tm_cluster_wait();  // written\n", "", "uninitialised"),
        ("  tm_cluster_arrive();\n  tm_cluster_wait();  // written\n", "  tm_barrier();\n", "race"),
        (
            "tm_cluster_arrive();\n  tm_cluster_wait();  // written",
            "tm_cluster_arrive_relaxed();\n  tm_cluster_wait();",
            "race",
        ),
        ("  tm_cluster_arrive();\n  tm_cluster_wait();  // read", "", "misuse"),
        ("rank ^ 1", "rank ^ 2", "misuse"),
        ("  tm_cluster_wait();  // written\n", "", "divergent barrier"),
    ],
)
def test_mistakes_with_clusters(store: KernelStore, old: str, new: str, kind: str) -> None:
    assert old in CLUSTER
    source = kernel(CLUSTER.replace(old, new), TWO, threads=32, grid=(8,), shared=128, cluster=(2, 1, 1))
    found: set[str] = set()
    for seed in SEEDS:
        arrays = [np.arange(256, dtype=np.float32), np.zeros(256, np.float32)]
        found |= {p.kind for p in run(source, arrays, seed=seed, raises=False, store=store).problems}
    assert kind in found, found


def test_an_arrival_at_the_mbarrier_of_another_block(store: KernelStore) -> None:
    body = """\
  tm_shared<float> s = tm_shared_at<float>(0, 32);
  tm_shared<long long> bar = tm_shared_at<long long>(128, 1);
  if (threadIdx.x == 0) { tm_mbarrier_init(bar, 32); tm_fence_mbarrier_init(); }
  tm_cluster_arrive();
  tm_cluster_wait();
  const int other = tm_cluster_rank() ^ 1;
  tm_cluster_map(s, other)[threadIdx.x] = p[blockIdx.x * 32 + threadIdx.x];
  tm_mbarrier_arrive_remote(bar, other);
  tm_mbarrier_wait(bar, 0);
  q[blockIdx.x * 32 + threadIdx.x] = s[31 - threadIdx.x];
  tm_cluster_arrive();
  tm_cluster_wait();"""
    p, q = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    source = kernel(body, TWO, threads=32, grid=(2,), shared=136, cluster=(2, 1, 1))
    clean(source, [p, q], store, outputs=[1])
    assert (q.reshape(2, 32) == p.reshape(2, 32)[::-1, ::-1]).all()
    local = kernel(
        body.replace("arrive_remote(bar, other)", "arrive(bar)"),
        TWO,
        threads=32,
        grid=(2,),
        shared=136,
        cluster=(2, 1, 1),
    )
    for seed in SEEDS:
        assert run(local, [p, q], seed=seed, raises=False, store=store).problems
