"""Attention of bf16 on dot products of pairs: its values, edges and choice, and the machine code of the hot loop."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.objects import KernelStore
from taskmap.graph.ops import arithmetic
from taskmap.graph.ops.attention import attention
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Allocate, Buffer, Dim, Var
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.task import Task
from taskmap.ir.types import DType, bf16, boolean, f16, f32
from taskmap.ir.visit import walk_stmts
from taskmap.schedules import problem, schedule
from taskmap.schedules.cpu.attention.problem import AttentionProblem
from tests.schedules import bf16_products
from tests.schedules.bf16_products import bf16_array
from tests.schedules.cpu.matmul.test_column_copies import elements_read
from tests.schedules.disassembly import hot_loop, spills
from tests.schedules.graph_tasks import fused, permuted_strides, tensor
from tests.schedules.interpreting import check_kernel
from tests.schedules.random_tasks import random_array
from tests.schedules.running import Array, Case, call_kernel, compare_outputs

TARGET = cpu_target("avx512", 2, features=["avx512_bf16"])
ONE_CORE = cpu_target("avx512", 1, features=["avx512_bf16"])
LOOSE = {"bf16": 3e-2}
needs_bf16 = pytest.mark.skipif("avx512_bf16" not in detect_host().features, reason="this CPU has no avx512_bf16")


def self_attention(
    queries: int,
    keys: int,
    depth: int,
    *,
    heads: int = 2,
    types: tuple[DType, DType] = (bf16, bf16),
    causal: bool = False,
) -> Task:
    return AttentionProblem(1, heads, heads, queries, keys, depth, depth, types, causal).task()


def random_case(seed: int, lengths: tuple[int, ...], depths: tuple[int, ...]) -> Case:
    """Known and symbolic sizes; shared keys; keys and values that are computed, or columns in memory."""
    chance = random.Random(seed)
    dims: dict[Var, int] = {}

    def size(value: int, name: str) -> Dim:
        if seed % 3 != 1 or value == 1 or chance.random() < 0.4:
            return value
        dims[symbol := Var(name)] = value
        return symbol

    shared = chance.choice((1, 2))
    heads, depth = shared * chance.choice((1, 1, 3)), chance.choice(depths)
    width = depth if chance.random() < 0.7 else chance.choice(depths)
    batch, queries = size(chance.choice((1, 2)), "b"), size(chance.choice(lengths), "s")
    keys = queries if chance.random() < 0.5 else size(chance.choice(lengths), "t")
    q = tensor(batch, heads, queries, depth, dtype=bf16)
    k, v = (tensor(batch, shared, keys, d, dtype=bf16) for d in (depth, width))
    mask, kind = None, chance.choice((None, None, bf16, boolean))
    if kind is not None:
        mask = tensor(*(chance.choice((1, n)) for n in (batch, heads, queries, keys)), dtype=kind)
    scaled = [arithmetic.mul(x, 1.5) if chance.random() < 0.2 else x for x in (k, v)]
    y = attention(q, scaled[0], scaled[1], mask, causal=chance.random() < 0.4)
    z = arithmetic.mul(y, 2.0) if chance.random() < 0.4 else y
    orders = ((0, 2, 1, 3), (0, 1, 3, 2))
    strides = {n: permuted_strides(n.shape, chance.choice(orders)) for n in (q, k, v) if chance.random() < 0.5}
    task = fused([z], y, strides)
    arrays = [random_array(chance, b.dtype, [size_of(d, dims) for d in b.shape]) for b in task.inputs]
    return Case(task, arrays, dims, "avx512")


@needs_bf16
def test_random_attention_on_the_machine() -> None:
    cases = [random_case(s, (1, 2, 5, 17, 33, 64, 100, 130, 600, 1900), (2, 5, 16, 33, 40, 64, 80)) for s in range(27)]
    kernels = [schedule(c.task, TARGET) for c in cases]
    assert sum("by=vdpbf16ps_16" in k.note for k in kernels) > 20
    sources = [generate(lower(k, target=TARGET), TARGET.vector_bytes) for k in kernels]
    found = compile_kernels(
        list({s.symbol: s for s in sources}.values()), find_toolchain(isa=TARGET.isa), KernelStore(), Counters()
    )
    for case, kernel, source in zip(cases, kernels, sources, strict=True):
        results = call_kernel(kernel, source, found[source.symbol], case.arrays, case.dims)
        compare_outputs(case, results, LOOSE)


@pytest.mark.parametrize("seed", [100, 101, 103, 106, 112])
def test_random_attention_in_the_interpreter(seed: int) -> None:
    """It reports accesses beyond an end, and uninitialised reads."""
    case = random_case(seed, (1, 5, 19), (2, 3, 8, 17))
    kernel = schedule(case.task, TARGET)
    assert "by=vdpbf16ps_16" in kernel.note
    check_kernel(kernel, case, TARGET, LOOSE)


def run(task: Task, arrays: list[Array]) -> Array:
    kernel = schedule(task, TARGET)
    assert "by=vdpbf16ps_16" in kernel.note
    return bf16_products.run(kernel, TARGET, ("avx512_bf16",), arrays, {})


def operands(queries: int, keys: int, depth: int, heads: int = 2) -> list[Array]:
    rng = np.random.default_rng()
    return [bf16_array((1, heads, n, depth), rng) for n in (queries, keys, keys)]


def check(got: Array, q: Array, k: Array, v: Array, *, causal: bool = False) -> None:
    """Weights are rounded to bf16, and results, too; all sums are of f32."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    if causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=np.bool_), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    weights /= weights.sum(axis=3, keepdims=True)
    want, size = weights @ v, weights @ np.abs(v)
    assert (np.abs(got - want) <= 2.0**-8 * (np.abs(want) + size) + 2.0**-15 * size).all()


@needs_bf16
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys", "depth"),
    [
        (128, 128, 64),
        (197, 197, 64),
        (50, 77, 80),
        (33, 33, 128),
        (40, 41, 33),
        (31, 90, 40),
        (9, 200, 64),
        (20, 1901, 64),
    ],
)
def test_values(queries: int, keys: int, depth: int, causal: bool) -> None:
    q, k, v = operands(queries, keys, depth)
    check(run(self_attention(queries, keys, depth, causal=causal), [q, k, v]), q, k, v, causal=causal)


@needs_bf16
@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize(("queries", "keys", "depth"), [(37, 45, 41), (19, 1901, 64)])
def test_values_beside_an_edge_stay_out(queries: int, keys: int, depth: int, bad: float) -> None:
    """The first value of a head follows the last one of the head before, and its first query its last query."""
    q, k, v = operands(queries, keys, depth)
    q[0, 1, 0, 0] = k[0, 1, 0, 0] = v[0, 1, 0, 3] = bad
    got = run(self_attention(queries, keys, depth), [q, k, v])
    check(got[:, :1], q[:, :1], k[:, :1], v[:, :1])
    assert not np.isfinite(got[0, 1, 0]).any()


@needs_bf16
def test_a_bad_query_or_value_spoils_only_its_own_results() -> None:
    q, k, v = operands(37, 45, 41)
    q[0, 0, 36, 0], v[0, 1, 44, 3] = np.nan, np.inf
    got = run(self_attention(37, 45, 41), [q, k, v])
    assert not np.isfinite(got[0, 0, 36]).any()
    assert not np.isfinite(got[0, 1, :, 3]).any()
    assert np.isfinite(got[0, 0, :36]).all()
    assert np.isfinite(np.delete(got[0, 1], 3, axis=1)).all()


@pytest.mark.parametrize(("queries", "keys", "depth"), [(128, 96, 64), (40, 49, 40), (30, 31, 33)])
def test_each_key_and_value_is_read_once_for_all_queries(queries: int, keys: int, depth: int) -> None:
    kernel = schedule(self_attention(queries, keys, depth, heads=1), ONE_CORE)
    assert "by=vdpbf16ps_16" in kernel.note
    for operand in kernel.buffers[1:3]:
        assert elements_read(kernel.body, operand, {}) == keys * depth


def source(task: Task, target: CpuTarget = TARGET) -> str:
    return generate(lower(schedule(task, target), target=target), target.vector_bytes).text


def test_keys_are_transposed_in_squares_and_values_interleaved() -> None:
    """Also where the number of keys is symbolic, and where keys are computed."""
    symbolic = AttentionProblem(1, 2, 2, 64, 300, 64, 64, (bf16, bf16), free=("keys",)).task()
    q, k = tensor(1, 2, 64, 64, dtype=bf16), tensor(1, 2, 96, 64, dtype=bf16)
    y = attention(q, arithmetic.mul(k, 1.5), k)
    for task in (self_attention(64, 96, 64), symbolic, fused([y], y)):
        text = source(task)
        assert "tm_transpose_u32x16(" in text
        assert "tm_store_pairs_bf16x16(" in text
        assert "tm_load_strided" not in text


def local(task: Task, name: str) -> Buffer:
    kernel = schedule(task, TARGET)
    (found,) = (s.buffer for s in walk_stmts(kernel.body) if isinstance(s, Allocate) and s.buffer.name == name)
    return found


@pytest.mark.parametrize(("width", "panels", "wide"), [(64, 1, 64), (80, 2, 48), (128, 2, 64), (33, 1, 48)])
def test_values_are_packed_in_panels_of_about_equal_width(width: int, panels: int, wide: int) -> None:
    """A panel of one vector would wait for its own sums."""
    assert local(self_attention(128, 128, width), "values_packed").shape == (panels, 64, wide, 2)


@pytest.mark.parametrize(("keys", "vectors"), [(128, 4), (50, 4), (20, 2), (7, 1)])
def test_several_maxima_of_a_row_of_scores_do_not_wait_for_each_other(keys: int, vectors: int) -> None:
    kernel = schedule(self_attention(64, keys, 64), TARGET)
    found = {s.buffer.shape for s in walk_stmts(kernel.body) if isinstance(s, Allocate) and s.buffer.name == "best"}
    assert found == {(16 * vectors,)}


@pytest.mark.parametrize("l2", [1 << 18, 1 << 20, 1 << 24])
def test_packed_keys_and_values_fit_part_of_the_second_level_cache_and_a_stack(l2: int) -> None:
    target = cpu_target("avx512", 2, l2=l2, features=["avx512_bf16"])
    for keys in (500, 1500, 5000):
        kernel = schedule(self_attention(64, keys, 64), target)
        assert "by=vdpbf16ps_16" in kernel.note
        held = [s.buffer for s in walk_stmts(kernel.body) if isinstance(s, Allocate)]
        packed = [b for b in held if b.name in ("keys_t", "values_packed")]
        assert sum(2 * int(np.prod([int(str(n)) for n in b.shape])) for b in packed) <= min(l2, 1 << 20) // 2


def test_the_hot_loop_is_dot_products_without_spills(tmp_path: Path) -> None:
    task = self_attention(128, 128, 64)
    assert '"vdpbf16ps ' in source(task)
    assert source(task).count("__asm__") == 4  # two products of a tile, of all queries but the last, and of these
    loop = hot_loop(schedule(task, TARGET), TARGET, "vdpbf16ps", tmp_path)
    assert sum("vdpbf16ps" in line for line in loop) == 6 * 4
    assert not any(name in line for line in loop for name in ("vcvt", "vpmovzx", "vpsll", "vfmadd"))
    assert not spills(loop)


@pytest.mark.parametrize("types", [(f32, f32), (f16, f16), (bf16, f32)], ids=str)
def test_operands_and_results_of_other_types_are_not_rounded(types: tuple[DType, DType]) -> None:
    task = self_attention(64, 64, 64, types=types)
    assert "by=" not in schedule(task, TARGET).note
    assert source(task, TARGET) == source(task, cpu_target("avx512", 2))


def test_the_instruction_is_one_of_the_target() -> None:
    task = self_attention(64, 64, 64)
    assert "by=" not in schedule(task, cpu_target("avx512", 2)).note
    tiles = cpu_target("avx512", 2, features=["avx512_bf16", "amx_tile", "amx_bf16"])
    assert "by=tdpbf16ps" in schedule(task, tiles).note
    assert "by=vdpbf16ps_16" in schedule(self_attention(1, 64, 64), tiles).note


def test_packing_for_one_query_of_odd_elements_does_not_pay() -> None:
    many, one = (AttentionProblem(1, 2, 2, n, 300, 5, 64, (bf16, bf16)).task() for n in (100, 1))
    assert "by=vdpbf16ps_16" in schedule(many, TARGET).note
    assert "by=" not in schedule(one, TARGET).note


def test_sums_that_no_stack_holds_stay_on_multiply_adds() -> None:
    wide, wider = (AttentionProblem(1, 1, 1, 512, 2000, 64, n, (bf16, bf16)).task() for n in (400, 800))
    assert "by=vdpbf16ps_16" in schedule(wide, ONE_CORE).note
    assert schedule(wider, ONE_CORE).note.startswith("cpu.attention")
    assert "by=" not in schedule(wider, ONE_CORE).note


def test_attention_on_dot_products_is_no_problem_of_tuning() -> None:
    assert problem(self_attention(64, 64, 64), TARGET) is None
    assert problem(self_attention(64, 64, 64), cpu_target("avx512", 2)) is not None
