"""Traversal, rebuilding and substitution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir import nodes
from taskmap.ir.analysis.key import structure
from taskmap.ir.construct import call, cast, constant_value, index, lane_reduce, ramp, reduce, select, unary, widen
from taskmap.ir.interp.run import interpret
from taskmap.ir.isa.table import INSTRUCTIONS, instruction_named
from taskmap.ir.nodes import Allocate, Buffer, Expr, For, If, Intrinsic, Let, LoopKind, Stmt, Store, Var
from taskmap.ir.recurrence import Recurrence
from taskmap.ir.types import f32, i64
from taskmap.ir.visit import (
    children,
    defined_vars,
    free_vars,
    fresh,
    map_body,
    map_expr,
    rebuild,
    replace_buffers,
    stmt_bodies,
    stmt_exprs,
    substitute,
    walk_exprs,
    walk_stmts,
)
from tests.ir.random_kernels import COLS, ROWS, kernels

i, j = Var("i"), Var("j")
X = Buffer("x", f32, (8, 8))
Y = Buffer("y", f32, (8,))
FMA = next(entry for entry in INSTRUCTIONS if entry.name == "fma_f32x4")

SAMPLES: list[Expr] = [
    index(3),
    i,
    unary("neg", i),
    i + j,
    i < j,
    select(i < j, i, j),
    cast(i, f32),
    X[i, j],
    call("exp", X[i, j]),
    ramp(i, 2, 4),
    widen(i, 4),
    lane_reduce("sum", ramp(i, 1, 4)),
    reduce("sum", [(j, i)], X[i, j]),
    nodes.Scatter("sum", (i, j), X[i, j], ((Var("r"), i),), (j, i), X[j, i], f32),
    Recurrence((i, j), Var("s"), i, ((j, j),), (X,), (X[i, j],), (Y,), (X[j, i],), (0,), i, f32),
    Intrinsic(FMA, (X[i, ramp(j, 1, 4)], X[i, j], X[j, ramp(i, 1, 4)]), f32, 4),
]


def test_the_samples_are_every_kind_of_expression() -> None:
    kinds = {k for k in vars(nodes).values() if isinstance(k, type) and issubclass(k, Expr) and k is not Expr}
    assert {type(e) for e in SAMPLES} == kinds | {Recurrence}


def test_every_kind_of_statement_can_be_visited() -> None:
    kinds = {k for k in vars(nodes).values() if isinstance(k, type) and issubclass(k, Stmt) and k is not Stmt}
    region = nodes.Region(X, (i, j), (1, i))
    samples: list[Any] = [
        Store(X, (i, j), X[j, i]),
        For(i, index(3), LoopKind.SERIAL, ()),
        nodes.MappedFor((i,), None, j, ()),  # type: ignore[arg-type]  # traversal does not look at the mapping
        If(i < j, (), ()),
        Let(Var("t"), i),
        Allocate(X),
        nodes.Barrier(),
        nodes.Evaluate(i),
        nodes.Move(region, region),
        nodes.MatMul(region, region, region),
        nodes.Invoke(instruction_named("cp_async_commit"), (region, j)),
    ]
    assert {type(s) for s in samples} == kinds
    for s in samples:
        assert list(walk_stmts(s)) == [s]
        stmt_exprs(s), stmt_bodies(s), defined_vars(s)
        (changed,) = substitute((s,), {j: index(7)}) or (None,)
        assert j not in set(walk_exprs(changed)) if changed else isinstance(s, If)


@pytest.mark.parametrize("expr", SAMPLES, ids=lambda e: type(e).__name__)
def test_rebuilding_from_equal_children_gives_an_equal_node(expr: Expr) -> None:
    kids = children(expr)
    assert rebuild(expr, kids) is expr
    if kids:
        copies = [replace(k) if not isinstance(k, Var) else k for k in kids]  # type: ignore[type-var]
        assert rebuild(expr, copies) == expr


def test_map_expr_works_from_the_leaves_and_folds() -> None:
    doubled = map_expr(i * 2 + 3, lambda e: index(5) if e is i else None)
    assert constant_value(doubled) == 13


def test_map_expr_visits_a_shared_node_once() -> None:
    seen: list[Expr] = []
    e: Expr = X[i, j]
    for _ in range(40):
        e = e + e
    map_expr(e, seen.append)
    assert len(seen) == 43
    assert len(list(walk_exprs(e))) == 43


def test_deep_expressions_do_not_reach_the_recursion_limit() -> None:
    e: Expr = i
    for _ in range(5000):
        e = e + j
    assert free_vars(map_expr(e, lambda n: None)) == {i, j}
    assert structure(e)


def test_substituting_a_ramp_makes_a_vector() -> None:
    vector = substitute(X[i, j] * 2.0 + 1.0, {j: ramp(0, 1, 4)})
    assert vector.lanes == 4


def test_an_if_that_is_decided_leaves_its_branch() -> None:
    inner = (Store(X, (i, i), X[i, i]),)
    body = (If(j < 2, inner, ()),)
    assert substitute(body, {j: index(1)}) == inner
    assert substitute(body, {j: index(2)}) == ()


def test_map_body_keeps_unchanged_statements() -> None:
    body = (For(i, index(4), LoopKind.SERIAL, (Store(X, (i, i), X[i, i]),)),)
    assert map_body(body) is body
    assert map_body(body, stmt=lambda s: () if isinstance(s, Store) else None)[0].body == ()  # type: ignore[attr-defined]


def test_free_variables_are_those_not_bound_inside() -> None:
    assert free_vars(reduce("sum", [(j, 4)], X[i, j])) == {i}
    assert free_vars((For(i, j, LoopKind.SERIAL, (Store(X, (i, i), X[i, i]),)),)) == {j}


def test_replacing_a_buffer_reaches_loads_and_stores() -> None:
    y = replace(X, name="y")
    body = replace_buffers((Store(X, (i, i), X[i, j]),), {X: y})
    store = body[0]
    assert isinstance(store, Store)
    assert store.buffer is y
    assert store.value == y[i, j]


@settings(max_examples=30)
@given(kernels(), st.integers(0, 2**32 - 1))
def test_a_fresh_copy_computes_the_same_and_shares_no_definition(kernel: nodes.Kernel, seed: int) -> None:
    copy = replace(kernel, body=fresh(kernel.body))
    x = np.random.default_rng(seed).standard_normal((ROWS, COLS)).astype(np.float32)
    dims = dict.fromkeys(kernel.dims, ROWS)
    inputs = {kernel.buffers[0]: x}
    before, after = (interpret(k, inputs, dims)[k.outputs[0]] for k in (kernel, copy))
    np.testing.assert_array_equal(before, after)
    old, new = ({v for s in walk_stmts(k.body) for v in defined_vars(s)} for k in (kernel, copy))
    assert old
    assert not old & new
    assert structure(kernel.body) == structure(copy.body)


def test_fresh_renames_only_names_defined_inside() -> None:
    t = Var("t", i64)
    (let, store) = fresh((Let(t, j + 1), Store(X, (t, j), X[t, j])))
    assert isinstance(let, Let)
    assert isinstance(store, Store)
    assert let.var is not t
    assert store.indices == (let.var, j)
