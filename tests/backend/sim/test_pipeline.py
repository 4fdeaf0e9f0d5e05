"""A matrix product on tensor cores with three stages of cp.async and swizzled shared memory: correct as it is, and
every mistake in it is found."""

import numpy as np
import pytest

from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim.run import Policy, run
from taskmap.backend.store.objects import KernelStore
from tests.backend.sim.kernels import SEEDS, clean, kernel, kinds

PARAMETERS = "tm_global<const tm_f16> a, tm_global<const tm_f16> b, tm_global<float> c"
GEMM = """\
  tm_shared<tm_f16> s0 = tm_shared_at<tm_f16>(0);      // 3 stages of 64 x 32
  tm_shared<tm_f16> s1 = tm_shared_at<tm_f16>(12288);  // 3 stages of 32 x 64
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int wm = warp / 2 * 32, wn = warp % 2 * 32;
  float acc[32];
  #pragma unroll
  for (int i = 0; i < 32; i++) acc[i] = 0.0f;
  for (int stage = 0; stage < 2; stage++) {
    for (int i = 0; i < 2; i++) {
      const int v = thread + i * 128, r = v / 4, k = v % 4;
      tm_cp_async_16(s0 + stage * 2048 + r * 32 + (k ^ r / 2 % 4) * 8, a + r * K + stage * 32 + k * 8);
    }
    for (int i = 0; i < 2; i++) {
      const int v = thread + i * 128, r = v / 8, n = v % 8;
      tm_cp_async_16(s1 + stage * 2048 + r * 64 + (n ^ r % 8) * 8, b + (stage * 32 + r) * 64 + n * 8);
    }
    tm_cp_async_commit();  // first stages
  }
  for (int kt = 0; kt < K / 32; kt++) {
    tm_cp_async_wait<1>();
    tm_barrier();
    if (kt + 2 < K / 32) {
      const int stage = (kt + 2) % 3;
      for (int i = 0; i < 2; i++) {
        const int v = thread + i * 128, r = v / 4, k = v % 4;
        tm_cp_async_16(s0 + stage * 2048 + r * 32 + (k ^ r / 2 % 4) * 8, a + r * K + (kt + 2) * 32 + k * 8);
      }
      for (int i = 0; i < 2; i++) {
        const int v = thread + i * 128, r = v / 8, n = v % 8;
        tm_cp_async_16(s1 + stage * 2048 + r * 64 + (n ^ r % 8) * 8, b + ((kt + 2) * 32 + r) * 64 + n * 8);
      }
    }
    tm_cp_async_commit();  // next stage
    const int stage = kt % 3;
    #pragma unroll
    for (int kk = 0; kk < 2; kk++) {
      alignas(4) tm_f16 x[16], y[16];
      for (int i = 0; i < 2; i++) {
        const int r = wm + i * 16 + lane % 16, k = kk * 2 + lane / 16;
        tm_ldmatrix_x4(x + i * 8, s0 + stage * 2048 + r * 32 + (k ^ r / 2 % 4) * 8);
      }
      for (int j = 0; j < 2; j++) {
        const int r = kk * 16 + lane % 16, n = wn / 8 + j * 2 + lane / 16;
        tm_ldmatrix_x4_trans(y + j * 8, s1 + stage * 2048 + r * 64 + (n ^ r % 8) * 8);
      }
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++) tm_mma_m16n8k16_f16_f32(acc + (i * 4 + j) * 4, x + i * 8, y + j * 4);
    }
  }
  tm_cp_async_wait<0>();
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 4; j++)
      for (int e = 0; e < 2; e++) {
        const int r = wm + i * 16 + lane / 4 + e * 8, n = wn + j * 8 + lane % 4 * 2;
        tm_vec<float, 2> pair = tm_get<2>(acc + (i * 4 + j) * 4 + e * 2);
        tm_store(c + r * 64 + n, pair);
      }"""


def gemm(*changes: tuple[str, str], k: int = 128) -> CudaSource:
    body = GEMM
    for old, new in changes:
        assert old in body
        body = body.replace(old, new)
    return kernel(body.replace("K", str(k)), PARAMETERS, threads=128, shared=24576)


def matrices(k: int = 128) -> list[np.ndarray]:
    rng = np.random.default_rng()
    a, b = rng.standard_normal((64, k)).astype(np.float16), rng.standard_normal((k, 64)).astype(np.float16)
    return [a, b, np.empty((64, 64), np.float32)]


def is_right(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bool:
    return bool(np.allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=1e-3))


def test_it_is_right_in_every_order(store: KernelStore) -> None:
    arrays = matrices()
    clean(gemm(), arrays, store, outputs=[2])
    assert is_right(*arrays)
    policies: tuple[Policy, ...] = ("late", "early")
    for policy in policies:
        for seed in SEEDS:
            arrays[2][:] = np.nan
            run(gemm(), arrays, seed=seed, policy=policy, store=store)
            assert is_right(*arrays)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("tm_cp_async_wait<1>()", "tm_cp_async_wait<2>()", "asynchronous copy"),
        ("    tm_cp_async_commit();  // first stages\n", "", "asynchronous copy"),
        ("    tm_cp_async_commit();  // next stage\n", "", "asynchronous copy"),
        ("    tm_barrier();\n", "", "asynchronous copy"),
        ("  tm_cp_async_wait<0>();\n", "", None),
        ("(kt + 2) % 3;", "(kt + 3) % 3;", "race"),
        ("K + (kt + 2) * 32 + k * 8", "K + (kt + 3) * 32 + k * 8 + 1", "misaligned"),
        ("b + ((kt + 2) * 32 + r) * 64", "b + ((kt + 3) * 32 + r) * 64", "out of bounds"),
        ("tm_ldmatrix_x4(x + i * 8,", "if (lane < 31) tm_ldmatrix_x4(x + i * 8,", "incomplete collective"),
        ("tm_mma_m16n8k16_f16_f32(acc", "if (lane) tm_mma_m16n8k16_f16_f32(acc", "incomplete collective"),
        ("v / 4, k = v % 4;\n      tm_cp", "v / 4, k = v % 3;\n      tm_cp", "asynchronous copy"),
    ],
)
def test_a_mistake_is_found(store: KernelStore, old: str, new: str, kind: str | None) -> None:
    found = kinds(gemm((old, new)), matrices(), store, outputs=[2])
    assert (kind in found) if kind else not found, found


def test_a_wrong_swizzle_gives_wrong_values(store: KernelStore) -> None:
    arrays = matrices()
    wrong = gemm(
        (
            "k = kk * 2 + lane / 16;\n        tm_ldmatrix_x4(x + i * 8, s0 + stage * 2048 + r * 32 + (k ^ r / 2 % 4)",
            "k = kk * 2 + lane / 16;\n        tm_ldmatrix_x4(x + i * 8, s0 + stage * 2048 + r * 32 + (k ^ r % 4)",
        )
    )
    run(wrong, arrays, store=store)
    assert not is_right(*arrays)


def test_counters(store: KernelStore) -> None:
    k = 128
    counted = run(gemm(), matrices(), store=store).counters
    assert counted["tensor operations"] == 2 * 64 * 64 * k
    assert counted["mma"] == 4 * (k // 16) * 8
    assert counted["ldmatrix"] == 4 * (k // 16) * 4
    assert counted["barriers"] == k // 32
    assert counted["copied"] == counted["global read"] == 2 * 64 * k * 2
    assert counted["global written"] == 64 * 64 * 4
    assert counted["global sectors"] == counted["global ideal"]
    assert counted["shared wavefronts"] == counted["shared ideal"]


def test_bank_conflicts_of_rows_that_are_not_swizzled(store: KernelStore) -> None:
    plain = gemm(("(k ^ r / 2 % 4)", "k"), ("(n ^ r % 8)", "n"))
    arrays = matrices()
    counted = run(plain, arrays, store=store).counters
    assert is_right(*arrays)
    assert counted["shared wavefronts"] > 3 * counted["shared ideal"]
