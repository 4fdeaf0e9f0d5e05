"""Memory accesses and the block's barrier: correct code runs clean in every order, mistakes are reported."""

import numpy as np
import pytest

from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim.run import run
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import InputError, SimulationError
from tests.backend.sim.kernels import SEEDS, clean, kernel, kinds

MATMUL = """\
  tm_shared<float> s0 = tm_shared_at<float>(0);
  tm_shared<float> s1 = tm_shared_at<float>(1024);
  const int i = threadIdx.x / 16, j = threadIdx.x % 16;
  float r0[1];
  r0[0] = 0.0f;
  for (int k = 0; k < 2; k++) {
    s0[threadIdx.x] = a[(blockIdx.y * 16 + i) * 32 + k * 16 + j];
    s1[threadIdx.x] = b[(k * 16 + i) * 48 + blockIdx.x * 16 + j];
    tm_barrier();  // loaded
    for (int l = 0; l < 16; l++) r0[0] = r0[0] + s0[i * 16 + l] * s1[l * 16 + j];
    tm_barrier();  // used
  }
  c[(blockIdx.y * 16 + i) * 48 + blockIdx.x * 16 + j] = r0[0];"""
MATRICES = "tm_global<const float> a, tm_global<const float> b, tm_global<float> c"


def matmul(*changes: tuple[str, str]) -> CudaSource:
    body = MATMUL
    for old, new in changes:
        assert old in body
        body = body.replace(old, new)
    return kernel(body, MATRICES, threads=256, grid=(3, 4), shared=2048)


def matrices() -> list[np.ndarray]:
    rng = np.random.default_rng()
    a, b = rng.standard_normal((64, 32), np.float32), rng.standard_normal((32, 48), np.float32)
    return [a, b, np.empty((64, 48), np.float32)]


def test_elementwise(store: KernelStore) -> None:
    body = "  const int i = blockIdx.x * 128 + threadIdx.x;\n  if (i < n) c[i] = a[i] + b[i];"
    source = kernel(body.replace("n)", "1000)"), MATRICES, threads=128, grid=(8,))
    a, b = np.random.default_rng().standard_normal((2, 1000), np.float32)
    c = np.empty_like(a)
    clean(source, [a, b, c], store, outputs=[2])
    assert (c == a + b).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("checks", [True, False])
def test_matmul_through_shared_memory(store: KernelStore, seed: int, checks: bool) -> None:
    a, b, c = matrices()
    run(matmul(), [a, b, c], outputs=[2], seed=seed, checks=checks, store=store)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("    tm_barrier();  // loaded\n", "", "race"),
        ("    tm_barrier();  // used\n", "", "race"),
        ("k * 16 + j];\n    s1", "k * 16 + j + 1];\n    s1", "out of bounds"),
        ("s1[threadIdx.x] =", "if (threadIdx.x != 7) s1[threadIdx.x] =", "uninitialised"),
        ("tm_shared_at<float>(1024)", "tm_shared_at<float>(1026)", "misaligned"),
        ("tm_shared_at<float>(1024)", "tm_shared_at<float>(1028)", "out of bounds"),
        ("blockIdx.x * 16 + j] = r0[0]", "j] = r0[0]", "race between blocks"),
        ("    tm_barrier();  // used\n", "    if (threadIdx.x >= 64) tm_barrier();\n", "divergent barrier"),
        ("tm_shared_at<float>(1024)", "tm_shared_at<float>(1024, 255)", "out of bounds"),
    ],
)
def test_a_mistake_in_the_matmul_is_found(store: KernelStore, old: str, new: str, kind: str) -> None:
    assert kind in kinds(matmul((old, new)), matrices(), store, outputs=[2])


def test_a_report_names_both_threads_and_their_lines(store: KernelStore) -> None:
    source = matmul(("    tm_barrier();  // loaded\n", ""))
    with pytest.raises(SimulationError) as error:
        run(source, matrices(), store=store)
    assert "race: read of 4 bytes" in str(error.value)
    report = run(source, matrices(), raises=False, store=store)
    (race,) = (p for p in report.problems if p.kind == "race" and p.other and p.other.code.startswith("s1"))
    assert race.place.code.startswith("for (int l")
    assert race.place.line == 2 + MATMUL.splitlines().index("    tm_barrier();  // loaded") + 1
    assert race.other is not None
    assert race.other.thread != race.place.thread


def test_writes_of_the_same_value_race(store: KernelStore) -> None:
    source = kernel("  p[0] = 1.0f;", "tm_global<float> p", threads=32)
    assert kinds(source, [np.empty(1, np.float32)], store, outputs=[0]) == {"race"}


def test_blocks_that_read_what_others_write(store: KernelStore) -> None:
    body = "  p[blockIdx.x] = p[(blockIdx.x + 1) % 4] + 1.0f;"
    source = kernel(body, "tm_global<float> p", threads=1, grid=(4,))
    assert kinds(source, [np.zeros(4, np.float32)], store) == {"race between blocks"}


def test_arrays_that_overlap_are_one_memory(store: KernelStore) -> None:
    body = "  b[threadIdx.x] = a[threadIdx.x] + 1.0f;"
    source = kernel(body, "tm_global<const float> a, tm_global<float> b", threads=32)
    memory = np.zeros(33, np.float32)
    clean(source, [memory[:32], memory[:32]], store)
    assert kinds(source, [memory[:32], memory[1:]], store) == {"race"}


def test_vectors_are_aligned_and_checked_as_a_whole(store: KernelStore) -> None:
    body = "  tm_store(b + threadIdx.x * 4, tm_load<4>(a + threadIdx.x * 4 + OFFSET));"
    parameters = "tm_global<const float> a, tm_global<float> b"
    a, b = np.arange(33 * 4, dtype=np.float32), np.empty(128, np.float32)
    clean(kernel(body.replace("OFFSET", "4"), parameters, threads=32), [a, b], store, outputs=[1])
    assert (b == a[4:]).all()
    assert kinds(kernel(body.replace("OFFSET", "1"), parameters, threads=32), [a, b], store) == {"misaligned"}
    assert kinds(kernel(body.replace("OFFSET", "8"), parameters, threads=32), [a, b], store) == {"out of bounds"}
    loose = body.replace("tm_load<4>", "tm_load<4, 1>").replace("OFFSET", "1")
    clean(kernel(loose, parameters, threads=32), [a, b], store, outputs=[1])
    assert (b == a[1:129]).all()


def test_elements_take_part_in_expressions(store: KernelStore) -> None:
    """An element of writable memory converts like a value of its type."""
    body = """\
  const int i = threadIdx.x;
  q[i] = tm_cast<tm_f16>(p[i]) + q[i] * tm_f16(2.0f);
  p[i] = tm_max(p[i], 0.5f) + tm_min(p[i], p[i]) + tm_sigmoid(p[i]) + (i < 3 ? p[i] : 0.0f) + tm_exp(p[i]);
  p[i] += 1.0f;"""
    source = kernel(body, "tm_global<float> p, tm_global<tm_f16> q", threads=64)
    p, q = np.random.default_rng().standard_normal((2, 64), np.float32)
    q = q.astype(np.float16)
    x, y = p.copy(), q.copy()
    run(source, [p, q], store=store)
    few = np.where(np.arange(64) < 3, x, 0)
    want = np.maximum(x, 0.5) + x + 1 / (1 + np.exp(-x)) + few + np.exp(x) + 1
    np.testing.assert_allclose(p, want, rtol=1e-5, atol=1e-6)  # the terms may cancel
    assert (q == x.astype(np.float16) + y * np.float16(2)).all()


def test_the_number_of_arrays_is_checked(store: KernelStore) -> None:
    with pytest.raises(InputError, match="takes 3 arrays, not 2"):
        run(matmul(), matrices()[:2], store=store)
