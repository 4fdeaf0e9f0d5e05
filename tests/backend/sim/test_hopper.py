"""A matrix product by TMA, a ring of mbarriers and wgmma, with one producer warp and one consumer warpgroup: correct as
it is, and every mistake in it is found."""

import itertools

import numpy as np
import pytest

from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.cuda.tensor_map import MapParameter, TensorView
from taskmap.backend.sim.run import Policy, run
from taskmap.backend.sim.tensor_map import encode
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import InputError
from taskmap.ir.types import f16, f32
from tests.backend.sim.kernels import SEEDS, kernel

PARAMETERS = """tm_global<const tm_f16> a, tm_global<const tm_f16> b, tm_global<float> c,
    const __grid_constant__ tm_tensor_map map_a, const __grid_constant__ tm_tensor_map map_b,
    const __grid_constant__ tm_tensor_map map_c"""
# a is 64 x K with k contiguous, b is K x 64 with n contiguous, c is 64 x 64. Two stages of 64 x 64 of a and of b.
GEMM = """\
  tm_shared<tm_f16> s0 = tm_shared_at<tm_f16>(0, 8192);
  tm_shared<tm_f16> s1 = tm_shared_at<tm_f16>(16384, 8192);
  tm_shared<float> s2 = tm_shared_at<float>(32768, 4096);
  tm_shared<long long> full = tm_shared_at<long long>(49152, 2);
  tm_shared<long long> empty = tm_shared_at<long long>(49168, 2);
  const int thread = threadIdx.x;
  if (thread == 0) {
    for (int i = 0; i < 2; i++) {
      tm_mbarrier_init(full + i, 1);
      tm_mbarrier_init(empty + i, 128);
    }
    tm_fence_mbarrier_init();
  }
  tm_barrier();  // initialised
  if (thread >= 128) {
    if (thread == 128) {
      for (int i = 0; i < STEPS; i++) {
        const int stage = i % 2;
        tm_mbarrier_wait(empty + stage, i / 2 % 2 ^ 1);
        tm_mbarrier_arrive_expect_tx(full + stage, 16384);
        tm_tma_load_2d(s0 + stage * 4096, map_a, full + stage, i * 64, 0);
        tm_tma_load_2d(s1 + stage * 4096, map_b, full + stage, 0, i * 64);
      }
    }
  } else {
    float acc[32];
    for (int i = 0; i < STEPS; i++) {
      const int stage = i % 2;
      tm_mbarrier_wait(full + stage, i / 2 % 2);
      tm_wgmma_fence();
      for (int k = 0; k < 4; k++) {
        const long long x = tm_wgmma_descriptor<128>(s0 + stage * 4096 + k * 16, 16, 1024);
        const long long y = tm_wgmma_descriptor<128>(s1 + stage * 4096 + k * 1024, 4096, 1024);
        tm_wgmma_m64n64k16_f16_f32<0, 1>(acc, x, y, i > 0 || k > 0);
      }
      tm_wgmma_commit();
      tm_wgmma_wait<0>();
      tm_mbarrier_arrive(empty + stage);
    }
    const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    #pragma unroll
    for (int i = 0; i < 32; i++) s2[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + column + i % 2] = acc[i];
    tm_fence_proxy_async();
    tm_barrier_sync(1, 128);
    if (thread == 0) {
      tm_tma_store_2d(map_c, s2, 0, 0);
      tm_tma_commit();
      tm_tma_wait<0>();
    }
  }"""


def gemm(*changes: tuple[str, str], steps: int = 4) -> CudaSource:
    body = GEMM
    for old, new in changes:
        assert old in body, old
        body = body.replace(old, new)
    k = 64 * steps
    maps = (
        MapParameter(0, f16, (64, k), (k, 1), (64, 64), 128),
        MapParameter(1, f16, (k, 64), (64, 1), (64, 64), 128),
        MapParameter(2, f32, (64, 64), (64, 1), (64, 64)),
    )
    return kernel(body.replace("STEPS", str(steps)), PARAMETERS, threads=160, shared=49184, maps=maps)


def matrices(steps: int = 4) -> list[np.ndarray]:
    k = 64 * steps
    rng = np.random.default_rng()
    a, b = rng.standard_normal((64, k)).astype(np.float16), rng.standard_normal((k, 64)).astype(np.float16)
    return [a, b, np.empty((64, 64), np.float32)]


def is_right(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bool:
    return bool(np.allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=1e-2))


def kinds(source: CudaSource, store: KernelStore) -> list[set[str]]:
    """The kinds of problems found by each order of threads and each policy."""
    found: list[set[str]] = []
    policies: tuple[Policy, ...] = ("late", "early")
    for policy, seed in itertools.product(policies, SEEDS):
        arrays = matrices()
        report = run(source, arrays, seed=seed, policy=policy, outputs=[2], raises=False, store=store)
        wrong = set() if is_right(*arrays) else {"wrong"}
        found.append({p.kind for p in report.problems} | wrong)
    return found


@pytest.mark.parametrize("policy", ["late", "early"])
@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_right(store: KernelStore, policy: Policy, seed: int) -> None:
    arrays = matrices()
    report = run(gemm(), arrays, seed=seed, policy=policy, outputs=[2], store=store)
    assert is_right(*arrays)
    assert report.counters["tensor operations"] == 2 * 64 * 64 * 256
    assert report.counters["wgmma"] == 16
    assert report.counters["TMA"] == 9
    moved = 2 * 4 * (64 * 64 * 2) + 64 * 64 * 4  # both factors in four steps, and the result
    assert report.counters["copied"] == moved
    assert report.counters["global sectors"] == report.counters["global ideal"] == moved // 32


def test_what_the_copy_engine_moves_is_counted_in_sectors(store: KernelStore) -> None:
    """Rows of 16 bytes, each in a sector of its own."""
    body = """\
  tm_shared<float> s0 = tm_shared_at<float>(0);
  tm_shared<long long> full = tm_shared_at<long long>(128);
  if (threadIdx.x == 0) {
    tm_mbarrier_init(full, 1);
    tm_fence_mbarrier_init();
    tm_mbarrier_arrive_expect_tx(full, 64);
    tm_tma_load_2d(s0, map_a, full, 0, 0);
  }
  tm_barrier();
  tm_mbarrier_wait(full, 0);
  p1[threadIdx.x] = s0[threadIdx.x];
"""
    maps = (MapParameter(0, f32, (4, 4), (8, 1), (4, 4)),)
    source = kernel(
        body, "tm_global<const float> p0, tm_global<float> p1, const __grid_constant__ tm_tensor_map map_a",
        threads=16, shared=136, maps=maps,
    )  # fmt: skip
    x, y = np.arange(32, dtype=np.float32), np.empty(16, np.float32)
    counters = run(source, [x, y], outputs=[1], store=store).counters
    assert np.array_equal(y.reshape(4, 4), x.reshape(4, 8)[:, :4])
    assert counters["copied"] == 64
    assert counters["global sectors"] == 4 + 2  # a sector of 32 bytes for each row, and what the threads write
    assert counters["global ideal"] == 2 + 2


def test_it_is_right_without_checks(store: KernelStore) -> None:
    arrays = matrices()
    run(gemm(), arrays, checks=False, store=store)
    assert is_right(*arrays)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("    tm_fence_mbarrier_init();\n", "", "missing proxy fence"),
        ("  tm_barrier();  // initialised\n", "", "mbarrier"),
        ("tm_mbarrier_wait(empty + stage, i / 2 % 2 ^ 1);", "", "asynchronous copy"),
        ("tm_mbarrier_wait(empty + stage, i / 2 % 2 ^ 1)", "tm_mbarrier_wait(empty + stage, i / 2 % 2)", "deadlock"),
        ("full + stage, 16384", "full + stage, 16000", "deadlock"),
        ("tm_mbarrier_arrive_expect_tx(full + stage, 16384)", "tm_mbarrier_arrive(full + stage)", "asynchronous copy"),
        ("tm_mbarrier_wait(full + stage, i / 2 % 2);", "", "asynchronous copy"),
        ("full + stage, i / 2 % 2)", "full + stage, i / 2 % 2 ^ 1)", "asynchronous copy"),
        ("full + stage, i / 2 % 2)", "full + stage, 0)", "deadlock"),
        ("tm_mbarrier_init(empty + i, 128)", "tm_mbarrier_init(empty + i, 129)", "deadlock"),
        ("tm_mbarrier_init(empty + i, 128)", "tm_mbarrier_init(empty + i, 64)", "wgmma"),
        ("      tm_wgmma_fence();\n", "", "wgmma"),
        ("      tm_wgmma_commit();\n", "", "wgmma"),
        ("      tm_wgmma_wait<0>();\n", "", "wgmma"),
        ("tm_wgmma_wait<0>()", "tm_wgmma_wait<1>()", "wgmma"),
        ("    tm_fence_proxy_async();\n", "", "missing proxy fence"),
        ("    tm_barrier_sync(1, 128);\n", "", "race"),
        ("tm_barrier_sync(1, 128)", "tm_barrier_sync(1, 160)", "deadlock"),
        ("      tm_tma_wait<0>();\n", "", "asynchronous copy"),
        ("tm_wgmma_descriptor<128>(s0", "tm_wgmma_descriptor<64>(s0", "wrong"),
        ("s1 + stage * 4096 + k * 1024, 4096, 1024", "s1 + stage * 4096 + k * 1024, 4096, 512", "wrong"),
        ("tm_tma_load_2d(s1 + stage * 4096", "tm_tma_load_2d(s1 + stage * 4096 + 8", "misaligned"),
        ("tm_tma_load_2d(s1 + stage * 4096", "tm_tma_load_2d(s1 + 64 + stage * 4096", "out of bounds"),
        ("full + stage, i * 64, 0)", "full + stage, i * 64 - 4, 0)", "misaligned"),
        ("tm_tma_store_2d(map_c, s2, 0, 0)", "tm_tma_store_2d(map_c, s2, 0, -8)", "misuse"),
        ("if (thread == 128)", "if (thread >= 128)", "mbarrier"),
        ("full + stage, 0, i * 64)", "full + stage, 0, i * 64 + 1)", "wrong"),
        ("      tm_mbarrier_arrive(empty + stage);\n", "", "deadlock"),
    ],
)
def test_a_mistake_is_found(store: KernelStore, old: str, new: str, kind: str) -> None:
    found = kinds(gemm((old, new)), store)
    assert kind in set.union(*found), found


def test_a_tensor_map_that_the_driver_refuses() -> None:
    with pytest.raises(InputError, match="multiples of 16 bytes"):
        encode(TensorView(0, f16, (63, 64), (126,), (8, 8), 0))
    with pytest.raises(InputError, match="not longer than the swizzle"):
        encode(TensorView(0, f16, (128, 64), (256,), (128, 8), 128))
