"""Matrix products: every transposition, several axes, epilogues, types and sizes, known and symbolic, packed or not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import pytest

from taskmap.backend.cpu.codegen import generate
from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations, arithmetic, matmul, reductions, views
from taskmap.graph.passes.weight_packing import PackWeights
from taskmap.ir.construct import cast, reduce
from taskmap.ir.errors import ScheduleError
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, For, If, Var
from taskmap.ir.types import DType, bf16, compute_type, f16, f32, f64
from taskmap.ir.visit import walk_stmts
from taskmap.schedules import packed_width, schedule
from tests.schedules.graph_tasks import fused, matrix_product, packed, permuted_strides, tensor
from tests.schedules.interpreting import check_every_pass
from tests.schedules.random_tasks import random_array
from tests.schedules.running import ISAS, Case, check, isas, target

SIZES = (1, 2, 7, 8, 15, 16, 17, 33, 100)
LOOSE = {"f32": 1e-4, "f16": 1e-2, "bf16": 6e-2}


def several_axes(m: Sequence[Dim], n: Sequence[Dim], k: Sequence[Dim], dtype: DType) -> Node:
    """A product of two rows, two columns and two summed axes, in an order of its own."""
    wide = compute_type(dtype)
    a, b = tensor(*m, *k, dtype=dtype), tensor(k[1], *n, k[0], dtype=dtype)

    def element(x: Buffer, w: Buffer) -> object:
        def at(i: Expr, i2: Expr, j: Expr, j2: Expr) -> ExprLike:
            r, q = Var("r"), Var("q")
            return reduce("sum", [(r, k[0]), (q, k[1])], cast(x[i, i2, r, q], wide) * cast(w[q, j, j2, r], wide))

        return at

    return define("contract", [a, b], (*m, *n), element, dtype)  # type: ignore[arg-type]  # `at` has four axes


def product(form: str, m: Dim, n: Dim, k: Dim, dtype: DType, isa: str, batch: Dim = 3) -> Node:
    if form == "several":
        return several_axes((m, 3), (2, n), (k, 2), dtype)
    y = matrix_product(form, m, n, k, dtype, batch)
    if form != "packed":
        return y
    return packed(y, PackWeights(partial(packed_width, target=target(isa))))


def epilogue(y: Node, chance: random.Random) -> list[Node]:
    """Element-wise operators after ``y``, some of them outputs too."""
    outputs: list[Node] = []
    z = y
    for _ in range(chance.choice((0, 1, 2, 3))):
        assert z.shape
        known = all(isinstance(n, int) for n in z.shape)
        kind = chance.choice(("bias", "gelu", "residual", "scale", "flat", *(["split"] if known else [])))
        if kind == "bias":
            z = arithmetic.add(z, tensor(z.shape[-1], dtype=y.dtype))
        elif kind == "gelu":
            z = activations.gelu(z)
        elif kind == "residual":
            z = arithmetic.add(z, tensor(*z.shape, dtype=y.dtype))
        elif kind == "scale":
            z = arithmetic.mul(z, 0.5)
        elif kind == "flat" and len(z.shape) > 1:
            z = views.reshape(z, (*z.shape[:-2], z.shape[-2] * z.shape[-1]))
        elif kind == "split":
            total = size_of(views.reshape(z, (-1,)).shape[0], {})
            rows = chance.choice([d for d in range(1, total + 1) if total % d == 0])
            z = views.reshape(z, (rows, total // rows))
        if chance.random() < 0.3:
            outputs.append(z)
    return list(dict.fromkeys([*outputs, z]))


def random_case(seed: int, isa: str, sizes: Sequence[int] = SIZES) -> Case:
    chance = random.Random(seed)
    dims: dict[Var, int] = {}

    def size() -> Dim:
        value = chance.choice(sizes)
        if seed % 4 != 1 or value == 1 or chance.random() < 0.5:
            return value
        symbol = Var(f"s{len(dims)}")
        dims[symbol] = value
        return symbol

    m, n, k, batch = size(), size(), size(), size()
    form = chance.choice(("plain", "left", "right", "batched", "several", "packed"))
    if form == "packed":
        n, k = (100 if isinstance(d, Var) else d for d in (n, k))
    y = product(form, m, n, k, chance.choice((f32, f32, f64, f16, bf16)), isa, batch)
    outputs = epilogue(y, chance)
    strides = {}
    for node in outputs:
        if chance.random() < 0.2:
            order = list(range(len(node.shape)))
            chance.shuffle(order)
            strides[node] = permuted_strides(node.shape, order)
    task = fused(outputs, y, strides)
    arrays = [random_array(chance, b.dtype, [size_of(d, dims) for d in b.shape]) for b in task.inputs]
    return Case(task, arrays, dims, isa)


def test_random_products_on_the_machine() -> None:
    check([random_case(seed, isas()[seed % len(isas())]) for seed in range(54)], LOOSE)


@pytest.mark.parametrize("isa", ISAS)
def test_random_products_in_the_interpreter(isa: str) -> None:
    for seed in range(ISAS.index(isa), 24, 3):
        check_every_pass(random_case(300 + seed, isa, (1, 2, 7, 8, 17)), {**LOOSE, "f64": 1e-9})


def test_many_rows_and_long_sums() -> None:
    cases = []
    for m, n, k in ((333, 70, 40), (20, 40, 3000), (1, 300, 500)):
        y = arithmetic.add(matmul.mm(tensor(m, k), tensor(k, n)), tensor(n))
        task = fused([y], y.inputs[0])
        arrays = [random_array(random.Random(m), f32, [size_of(d, {}) for d in b.shape]) for b in task.inputs]
        cases += [Case(task, arrays, isa=isa) for isa in isas()]
    check(cases, {"f32": 3e-4})


def test_one_kernel_serves_all_numbers_of_rows() -> None:
    m = Var("m")
    y = activations.relu(arithmetic.add(matmul.mm(tensor(m, 40), tensor(40, 50)), tensor(50)))
    task = fused([y], y.inputs[0].inputs[0])
    cases = []
    for rows in (1, 2, 6, 7, 8, 31, 120, 500):
        arrays = [random_array(random.Random(rows), f32, [size_of(d, {m: rows}) for d in b.shape]) for b in task.inputs]
        cases.append(Case(task, arrays, {m: rows}))
    check(cases, LOOSE)


def test_the_template_is_used_and_refuses_what_is_no_epilogue() -> None:
    y = matmul.mm(tensor(30, 40), tensor(40, 50))
    assert schedule(fused([y], y), target()).note.startswith("cpu.matmul")
    turned = arithmetic.add(views.permute(y, (1, 0)), tensor(50, 30))
    with pytest.raises(ScheduleError, match="at its own position"):
        schedule(fused([turned], y), target())
    with pytest.raises(ScheduleError, match="another number of elements"):
        schedule(fused([y, reductions.sum_(y, 1)], y), target())


def test_rows_of_two_unknown_sizes_are_loaded_and_stored_whole() -> None:
    """The address of a flat row in a batch of sequences takes no division per element."""
    n, length = Var("n"), Var("length")
    x, shortcut = tensor(n, length, 64), tensor(n, length, 48)
    made = matmul.mm(views.reshape(x, (n * length, 64)), tensor(64, 48))
    y = arithmetic.add(views.reshape(made, (n, length, 48)), shortcut)
    task = fused([y], made)
    source = generate(lower(schedule(task, target("avx512")), target=target("avx512")), 64).text
    assert "gather" not in source
    assert "scatter" not in source
    cases = []
    for dims in ({n: 1, length: 64}, {n: 3, length: 5}, {n: 1, length: 1}):
        arrays = [random_array(random.Random(7), f32, [size_of(d, dims) for d in b.shape]) for b in task.inputs]
        cases += [Case(task, arrays, dims, isa) for isa in isas()]
    check(cases, LOOSE)


def test_the_last_rows_of_an_unknown_number_are_one_tile() -> None:
    """All but a single row are computed in tiles: row by row, each would read all of B."""
    m = Var("m")
    y = matmul.mm(tensor(m, 40), tensor(40, 64))
    kernel = schedule(fused([y], y), target("avx512"))
    loops = {s.var.name: s.extent for s in walk_stmts(kernel.body) if isinstance(s, For)}
    assert "tile" in loops
    assert sum(isinstance(s, For) and s.var.name.startswith("k0") for s in walk_stmts(kernel.body)) == 2
    assert any(isinstance(s, If) for s in walk_stmts(kernel.body))
