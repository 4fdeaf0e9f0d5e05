"""Attention: causal, masked, grouped queries, head sizes, known and symbolic lengths, types, layouts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from taskmap.backend.cpu.codegen import generate
from taskmap.graph.ops import arithmetic
from taskmap.graph.ops.attention import attention
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Allocate, Dim, Let, Var
from taskmap.ir.types import bf16, boolean, f16, f32
from taskmap.ir.visit import walk_stmts
from taskmap.schedules import schedule
from tests.schedules.graph_tasks import fused, permuted_strides, tensor
from tests.schedules.interpreting import check_every_pass
from tests.schedules.random_tasks import random_array
from tests.schedules.running import ISAS, Case, check, isas, run_cases, target

LOOSE = {"f32": 2e-5, "f16": 5e-3, "bf16": 3e-2}


LENGTHS = (1, 2, 5, 16, 17, 33, 64, 100, 130, 300, 600)
DEPTHS = (5, 8, 13, 16, 24, 64, 128)


def random_case(seed: int, isa: str, lengths: Sequence[int] = LENGTHS, depths: Sequence[int] = DEPTHS) -> Case:
    chance = random.Random(seed)
    dims: dict[Var, int] = {}

    def size(value: int, name: str) -> Dim:
        if seed % 3 != 1 or value == 1 or chance.random() < 0.4:
            return value
        symbol = Var(name)
        dims[symbol] = value
        return symbol

    dtype = chance.choice((f32, f32, f16, bf16))
    shared = chance.choice((1, 2))
    heads = shared * chance.choice((1, 1, 3))
    depth = chance.choice(depths)
    width = depth if chance.random() < 0.8 else chance.choice(depths)
    batch, queries = size(chance.choice((1, 2)), "b"), size(chance.choice(lengths), "s")
    keys = queries if chance.random() < 0.5 else size(chance.choice(lengths), "t")
    q = tensor(batch, heads, queries, depth, dtype=dtype)
    k, v = (tensor(batch, shared, keys, d, dtype=dtype) for d in (depth, width))
    kind = chance.choice((None, None, dtype, boolean))
    mask = None
    if kind is not None:
        mask = tensor(*(chance.choice((1, n)) for n in (batch, heads, queries, keys)), dtype=kind)
    y = attention(q, k, v, mask, causal=chance.random() < 0.4)
    z = arithmetic.mul(y, 2.0) if chance.random() < 0.4 else y
    strides = {n: permuted_strides(n.shape, (0, 2, 1, 3)) for n in (q, k, v, z) if chance.random() < 0.5}
    task = fused([z], y, strides)
    arrays = [random_array(chance, b.dtype, [size_of(d, dims) for d in b.shape]) for b in task.inputs]
    return Case(task, arrays, dims, isa)


def test_random_attention_on_the_machine() -> None:
    cases = [random_case(seed, isas()[seed % len(isas())]) for seed in range(27)]
    assert all(schedule(c.task, target(c.isa)).note.startswith("cpu.attention") for c in cases)
    check(cases, LOOSE)


@pytest.mark.parametrize("isa", ISAS)
def test_random_attention_in_the_interpreter(isa: str) -> None:
    for seed in (102, 104, 108):  # known sizes: the interpreter is slow on symbolic key blocks
        check_every_pass(random_case(seed, isa, (1, 5), (3, 8)), LOOSE)


def test_a_query_that_may_look_at_nothing_gives_zeros() -> None:
    q = tensor(1, 2, 20, 8)
    mask = tensor(1, 1, 20, 20, dtype=boolean)
    y = attention(q, q, q, mask)
    rng = np.random.default_rng(0)
    allowed = rng.random((1, 1, 20, 20)) < 0.5
    allowed[:, :, [0, 7, 19]] = False
    task = fused([y], y, inputs=[q, mask])
    cases = [Case(task, [rng.standard_normal((1, 2, 20, 8)).astype(np.float32), allowed], isa=isa) for isa in isas()]
    check(cases)
    for (result,) in run_cases(cases):
        assert not result[:, :, [0, 7, 19]].any()


def test_large_scores_do_not_overflow() -> None:
    q = tensor(1, 1, 40, 16)
    y = attention(q, q, q)
    x = 40 * np.random.default_rng(0).standard_normal((1, 1, 40, 16)).astype(np.float32)
    check([Case(fused([y], y), [x], isa=isa) for isa in isas()], {"f32": 2e-3})


@pytest.mark.parametrize("keys", [19, 300])
def test_no_weight_is_subnormal(keys: int) -> None:
    """Products with subnormal weights take microcode. Values that are an identity show the weights; some scores lie
    where exp is subnormal, as behind masks of -100. More keys than a block holds: a later maximum rescales."""
    q, k, v = tensor(1, 1, 4, 16), tensor(1, 1, keys, 16), tensor(1, 1, keys, keys)
    mask = tensor(1, 1, 4, keys)
    y = attention(q, k, v, mask)
    zeros = [np.zeros((1, 1, rows, 16), np.float32) for rows in (4, keys)]
    scores = np.full((4, keys), -95.0, np.float32)
    scores[0, keys // 2 :] = 0
    scores[1, ::2] = 0
    scores[2] = np.linspace(0, -110, keys)
    scores[3] = -np.inf
    scores[3, 1] = np.nan
    arrays = [*zeros, np.eye(keys, dtype=np.float32)[None, None], scores[None, None]]
    cases = [Case(fused([y], y, inputs=[q, k, v, mask]), arrays, isa=isa) for isa in isas()]
    exact = np.exp(scores - scores.max(axis=1, keepdims=True), dtype=np.float64)
    total = exact.sum(axis=1, keepdims=True)[:3]
    for (result,) in run_cases(cases):
        weights = np.asarray(result[0, 0, :3], np.float64) * total
        assert not np.any((weights > 0) & (weights < 0.999 * np.finfo(np.float32).tiny))
        np.testing.assert_allclose(weights, exact[:3], rtol=2e-5, atol=1.2e-38)
        assert np.isnan(result[0, 0, 3]).all()


def test_one_kernel_serves_all_lengths() -> None:
    s, t = Var("s"), Var("t")
    q, k, v = tensor(1, 2, s, 16), tensor(1, 2, t, 16), tensor(1, 2, t, 16)
    y = attention(q, k, v, causal=True)
    task = fused([y], y, inputs=[q, k, v])
    rng = np.random.default_rng(0)
    cases = []
    for queries, keys in ((1, 1), (1, 200), (5, 5), (31, 33), (64, 128), (100, 129), (300, 2)):
        shapes = [(1, 2, n, 16) for n in (queries, keys, keys)]
        cases.append(Case(task, [rng.standard_normal(n).astype(np.float32) for n in shapes], {s: queries, t: keys}))
    check(cases)


def test_keys_that_are_columns_in_memory_are_copied_along_them() -> None:
    """A symbolic number of contiguous keys: no strided access, and no access beyond the last key."""
    t, cases = Var("t"), []
    for causal in (False, True):
        q, k, v = tensor(1, 2, t, 16), tensor(1, 2, t, 16), tensor(1, 2, t, 16)
        y = attention(q, k, v, causal=causal)
        task = fused([y], y, {k: permuted_strides(k.shape, (0, 1, 3, 2))}, inputs=[q, k, v])
        kernel = schedule(task, target("avx512"))
        assert "tm_load_strided" not in generate(lower(kernel, target=target("avx512")), 64).text
        assert any(isinstance(s, Let) and s.var.name == "seen" for s in walk_stmts(kernel.body))
        for length in (1, 16, 30, 128, 129, 150):
            arrays = [random_array(random.Random(length), f32, (1, 2, length, 16)) for _ in range(3)]
            cases.append(Case(task, arrays, {t: length}))
    check(cases, LOOSE)


@pytest.mark.parametrize(("queries", "depth", "keys", "in_place"), [
    (1, 64, 300, True), (1, 16, 33, True), (2, 64, 1000, True), (16, 64, 100, False), (1, 61, 100, False),
])  # fmt: skip
def test_few_queries_read_keys_in_place(queries: int, depth: int, keys: int, in_place: bool) -> None:
    cases = []
    for causal, transposed in ((False, False), (True, False), (False, True)):
        q, k, v = tensor(2, 2, queries, depth), tensor(2, 2, keys, depth), tensor(2, 2, keys, 24)
        y = attention(q, k, v, causal=causal)
        strides = {k: permuted_strides(k.shape, (0, 1, 3, 2))} if transposed else {}
        task = fused([y], y, strides, inputs=[q, k, v])
        for isa in isas():
            kernel = schedule(task, target(isa))
            copied = any(isinstance(s, Allocate) and s.buffer.name == "keys_t" for s in walk_stmts(kernel.body))
            assert copied != (in_place and not transposed and target(isa).lanes(4) > 1)
            arrays = [random_array(random.Random(keys), f32, n) for n in
                      ((2, 2, queries, depth), (2, 2, keys, depth), (2, 2, keys, 24))]  # fmt: skip
            cases.append(Case(task, arrays, isa=isa))
    check(cases, LOOSE)


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_blocks_of_any_number_of_keys_are_contiguous_panels_and_masks_of_32_bits(isa: str) -> None:
    """Keys far apart by a power of two would share few sets of the first-level cache, and wide masks spill."""
    q, k, v = tensor(1, 2, 300, 64), tensor(1, 2, 500, 64), tensor(1, 2, 500, 64)
    y = attention(q, k, v)
    kernel = schedule(fused([y], y, inputs=[q, k, v]), target(isa))
    (keys,) = (s.buffer for s in walk_stmts(kernel.body) if isinstance(s, Allocate) and s.buffer.name == "keys_t")
    machine = target(isa)
    panels, depth, width = (int(str(n)) for n in keys.shape)
    assert panels > 1
    assert depth == 64
    assert width == {"avx512": 64, "avx2": 24}[isa]
    text = generate(lower(kernel, target=machine), machine.vector_bytes).text
    assert "m32x" in text
    assert "m64x" not in text


@pytest.mark.parametrize(("isa", "bound"), [("avx512", 49152), ("avx2", 32768)])
def test_a_panel_of_keys_fits_the_first_level_cache(isa: str, bound: int) -> None:
    q = tensor(1, 2, 1500, 64)
    y = attention(q, q, q)
    kernel = schedule(fused([y], y, inputs=[q]), target(isa))
    (keys,) = (s.buffer for s in walk_stmts(kernel.body) if isinstance(s, Allocate) and s.buffer.name == "keys_t")
    _, depth, width = (int(str(n)) for n in keys.shape)
    assert depth * width * 4 <= bound // 2
