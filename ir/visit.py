"""Generic traversal: the children of every node, rebuilding from new children, substitution.

A new node kind is entered in the tables here and nowhere else. Rebuilding goes through the constructors, so that
constants fold. Expressions are DAGs in memory: a shared node is visited once and stays shared.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar
from typing import cast as typed

from taskmap.ir import construct as make
from taskmap.ir import nodes as ir
from taskmap.ir.recurrence import Recurrence

ExprMap = Callable[[ir.Expr], ir.Expr]
Node = TypeVar("Node", ir.Expr, ir.Body)


def _symbolic(dims: Sequence[ir.Dim]) -> tuple[ir.Expr, ...]:
    return tuple(d for d in dims if isinstance(d, ir.Expr))


def _with_symbolic(dims: Sequence[ir.Dim], kids: Iterator[ir.Expr]) -> tuple[ir.Dim, ...]:
    return tuple(_plain(next(kids)) if isinstance(d, ir.Expr) else d for d in dims)


def _plain(dim: ir.Expr) -> ir.Dim:
    value = make.constant_value(dim)
    return dim if value is None else int(value)


_CHILDREN: dict[type, Callable[[Any], tuple[ir.Expr, ...]]] = {
    ir.Const: lambda e: (),
    ir.Var: lambda e: (),
    ir.Unary: lambda e: (e.a,),
    ir.Binary: attrgetter("a", "b"),
    ir.Compare: attrgetter("a", "b"),
    ir.Select: attrgetter("cond", "a", "b"),
    ir.Cast: lambda e: (e.a,),
    ir.Load: attrgetter("indices"),
    ir.Call: attrgetter("args"),
    ir.Ramp: attrgetter("base", "stride"),
    ir.Broadcast: lambda e: (e.a,),
    ir.LaneReduce: lambda e: (e.a,),
    ir.Intrinsic: attrgetter("args"),
    ir.Reduce: lambda e: (e.body, *_symbolic([extent for _, extent in e.axes])),
    ir.Scatter: lambda e: (e.initial, e.body, *e.here, *e.at, *_symbolic([extent for _, extent in e.axes])),
    Recurrence: lambda e: (*e.values, *e.initial, e.row, *e.here, *_symbolic([extent for _, extent in e.bound])),
}


def _rebuild_reduce(e: ir.Reduce, kids: Sequence[ir.Expr]) -> ir.Expr:
    extents = _with_symbolic([extent for _, extent in e.axes], iter(kids[1:]))
    return ir.Reduce(e.op, tuple((var, n) for (var, _), n in zip(e.axes, extents, strict=True)), kids[0], e.dtype)


def _rebuild_scatter(e: ir.Scatter, kids: Sequence[ir.Expr]) -> ir.Expr:
    rank = len(e.here)
    here, at, rest = kids[2 : 2 + rank], kids[2 + rank : 2 + 2 * rank], iter(kids[2 + 2 * rank :])
    extents = _with_symbolic([extent for _, extent in e.axes], rest)
    axes = tuple((var, n) for (var, _), n in zip(e.axes, extents, strict=True))
    return ir.Scatter(e.op, tuple(here), kids[0], axes, tuple(at), kids[1], e.dtype)


def _rebuild_recurrence(e: Recurrence, kids: Sequence[ir.Expr]) -> ir.Expr:
    rest = iter(kids)
    values, initial = (tuple(next(rest) for _ in old) for old in (e.values, e.initial))
    row, here = next(rest), tuple(next(rest) for _ in e.here)
    *extents, steps = _with_symbolic([extent for _, extent in e.bound], rest)
    axes = tuple((var, n) for (var, _), n in zip(e.axes, extents, strict=True))
    return replace(e, values=values, initial=initial, row=row, here=here, axes=axes, steps=steps)


_LEAVES = frozenset((ir.Const, ir.Var))
"""The classes of nodes without children."""

_REBUILD: dict[type, Callable[[Any, Sequence[ir.Expr]], ir.Expr]] = {
    ir.Unary: lambda e, k: make.unary(e.op, k[0]),
    ir.Binary: lambda e, k: make.binary(e.op, k[0], k[1]),
    ir.Compare: lambda e, k: make.compare(e.op, k[0], k[1]),
    ir.Select: lambda e, k: make.select(k[0], k[1], k[2]),
    ir.Cast: lambda e, k: make.cast(k[0], e.dtype),
    ir.Load: lambda e, k: make.load(e.buffer, k),
    ir.Call: lambda e, k: make.call(e.name, *k, dtype=e.dtype),
    ir.Ramp: lambda e, k: make.ramp(k[0], k[1], e.lanes),
    ir.Broadcast: lambda e, k: make.widen(k[0], e.lanes),
    ir.LaneReduce: lambda e, k: make.lane_reduce(e.op, k[0]),
    ir.Intrinsic: lambda e, k: ir.Intrinsic(e.instruction, tuple(k), e.dtype, e.lanes),
    ir.Reduce: _rebuild_reduce,
    ir.Scatter: _rebuild_scatter,
    Recurrence: _rebuild_recurrence,
}


def children(expr: ir.Expr) -> tuple[ir.Expr, ...]:
    """The direct subexpressions of ``expr``, in order; a Reduce gives its body, then its symbolic extents."""
    return _CHILDREN[type(expr)](expr)


def rebuild(expr: ir.Expr, kids: Sequence[ir.Expr]) -> ir.Expr:
    """``expr`` with other children, as the constructors would make it; ``expr`` itself if none differs.

    A scalar child that became a vector makes the node a vector.
    """
    if all(map(operator.is_, kids, _CHILDREN[type(expr)](expr))):
        return expr
    return _REBUILD[type(expr)](expr, kids)


def map_expr(expr: ir.Expr, fn: Callable[[ir.Expr], ir.Expr | None]) -> ir.Expr:
    """Apply ``fn`` to every node, children first; it sees the rebuilt node and returns its replacement, or None."""
    return _map_expr(expr, fn, {})


def expr_map(fn: Callable[[ir.Expr], ir.Expr | None]) -> ExprMap:
    """``map_expr`` with ``fn``, for many expressions that share parts and outlive the map: each part is visited once.

    ``fn`` must return the same result for a node wherever it occurs.
    """
    done: dict[int, ir.Expr] = {}

    def mapped(expr: ir.Expr) -> ir.Expr:
        known = done.get(id(expr))
        return _map_expr(expr, fn, done) if known is None else known

    return mapped


def _map_expr(expr: ir.Expr, fn: Callable[[ir.Expr], ir.Expr | None], done: dict[int, ir.Expr]) -> ir.Expr:
    """``done`` holds results by the identity of their nodes, which must stay alive as long as it does."""
    stack = [expr]
    while stack:
        node = stack[-1]
        if id(node) in done:
            stack.pop()
            continue
        kind = type(node)
        kids = _CHILDREN[kind](node)
        new: list[ir.Expr] = []
        changed = waits = False
        for k in kids:
            made = done.get(id(k))
            if made is None:
                if type(k) not in _LEAVES:
                    stack.append(k)
                    waits = True
                    continue
                made = fn(k)
                if made is None:
                    made = k
                done[id(k)] = made
            new.append(made)
            changed |= made is not k
        if waits:
            continue
        stack.pop()
        rebuilt = _REBUILD[kind](node, new) if changed else node
        mapped = fn(rebuilt)
        done[id(node)] = rebuilt if mapped is None else mapped
    return done[id(expr)]


def walk_exprs(root: ir.Expr | ir.Stmt | ir.Body) -> Iterator[ir.Expr]:
    """Every expression node under an expression, a statement or a body, parents first, a shared node once.

    Extents, region corners and symbolic sizes are included; the shapes of loaded buffers are not.
    """
    seen: set[int] = set()
    for top in (root,) if isinstance(root, ir.Expr) else _exprs_of_stmts(root):
        stack = [top]
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            if type(node) not in _LEAVES:
                stack.extend(reversed(_CHILDREN[type(node)](node)))


def loads_in(root: ir.Expr | ir.Stmt | ir.Body) -> list[ir.Load]:
    """The loads that ``walk_exprs`` visits, in its order."""
    found: list[ir.Load] = []
    seen: set[int] = set()
    for top in (root,) if isinstance(root, ir.Expr) else _exprs_of_stmts(root):
        stack = [top]
        while stack:
            node = stack.pop()
            if type(node) in _LEAVES or id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, ir.Load):
                found.append(node)
            stack.extend(reversed(_CHILDREN[type(node)](node)))
    return found


def _exprs_of_stmts(root: ir.Stmt | ir.Body) -> Iterator[ir.Expr]:
    for stmt in walk_stmts(root):
        yield from _STMT_EXPRS[type(stmt)](stmt)


def _region_exprs(region: ir.Region) -> tuple[ir.Expr, ...]:
    return (*region.start, *_symbolic(region.shape))


def _map_dim(dim: ir.Dim, fn: ExprMap) -> ir.Dim:
    return _plain(fn(dim)) if isinstance(dim, ir.Expr) else dim


def _map_region(region: ir.Region, fn: ExprMap) -> ir.Region:
    start = tuple(fn(e) for e in region.start)
    return ir.Region(region.buffer, start, tuple(_map_dim(d, fn) for d in region.shape))


def _invoke_exprs(s: ir.Invoke) -> tuple[ir.Expr, ...]:
    found: list[ir.Expr] = []
    for operand in s.operands:
        if isinstance(operand, ir.Region):
            found.extend(_region_exprs(operand))
        elif isinstance(operand, ir.Expr):
            found.append(operand)
    return tuple(found)


def _map_operand(operand: ir.Region | ir.Expr | ir.TensorMap, fn: ExprMap) -> ir.Region | ir.Expr | ir.TensorMap:
    if isinstance(operand, ir.Region):
        return _map_region(operand, fn)
    return fn(operand) if isinstance(operand, ir.Expr) else operand


_STMT_EXPRS: dict[type, Callable[[Any], tuple[ir.Expr, ...]]] = {
    ir.Store: lambda s: (*s.indices, s.value),
    ir.For: lambda s: (s.extent,) if s.shared is None else (s.extent, s.shared),
    ir.MappedFor: lambda s: (s.worker,),
    ir.If: lambda s: (s.cond,),
    ir.Let: lambda s: (s.value,),
    ir.Allocate: lambda s: (),
    ir.Barrier: lambda s: (),
    ir.Evaluate: lambda s: (s.value,),
    ir.Invoke: _invoke_exprs,
    ir.Move: lambda s: (*_region_exprs(s.dst), *_region_exprs(s.src), *([] if s.worker is None else [s.worker])),
    ir.MatMul: lambda s: (*_region_exprs(s.c), *_region_exprs(s.a), *_region_exprs(s.b)),
}

_MAP_STMT_EXPRS: dict[type, Callable[[Any, ExprMap], ir.Stmt]] = {
    ir.Store: lambda s, fn: ir.Store(s.buffer, tuple([fn(e) for e in s.indices]), fn(s.value), s.source),
    ir.For: lambda s, fn: replace(s, extent=fn(s.extent), shared=None if s.shared is None else fn(s.shared)),
    ir.MappedFor: lambda s, fn: replace(s, worker=fn(s.worker)),
    ir.If: lambda s, fn: replace(s, cond=fn(s.cond)),
    ir.Let: lambda s, fn: ir.Let(s.var, fn(s.value), s.source),
    ir.Evaluate: lambda s, fn: replace(s, value=fn(s.value)),
    ir.Invoke: lambda s, fn: replace(s, operands=tuple([_map_operand(o, fn) for o in s.operands])),
    ir.Move: lambda s, fn: replace(
        s, dst=_map_region(s.dst, fn), src=_map_region(s.src, fn), worker=None if s.worker is None else fn(s.worker)
    ),
    ir.MatMul: lambda s, fn: replace(s, c=_map_region(s.c, fn), a=_map_region(s.a, fn), b=_map_region(s.b, fn)),
}


_BODIES: dict[type, Callable[[Any], tuple[ir.Body, ...]]] = {
    ir.For: lambda s: (s.body,),
    ir.MappedFor: lambda s: (s.body,),
    ir.If: lambda s: (s.then, s.orelse),
}


def stmt_exprs(stmt: ir.Stmt) -> tuple[ir.Expr, ...]:
    """The expressions directly in ``stmt``, without those of the statements inside it."""
    return _STMT_EXPRS[type(stmt)](stmt)


def stmt_bodies(stmt: ir.Stmt) -> tuple[ir.Body, ...]:
    """The bodies inside ``stmt``: one for a loop, two for an If, zero otherwise."""
    get = _BODIES.get(type(stmt))
    return () if get is None else get(stmt)


def walk_stmts(root: ir.Stmt | ir.Body) -> Iterator[ir.Stmt]:
    """Every statement, in program order, a loop before its body."""
    stack = [root] if isinstance(root, ir.Stmt) else list(reversed(root))
    while stack:
        stmt = stack.pop()
        yield stmt
        bodies = _BODIES.get(type(stmt))
        if bodies is not None:
            for body in reversed(bodies(stmt)):
                stack.extend(reversed(body))


def map_stmt_exprs(stmt: ir.Stmt, fn: ExprMap) -> ir.Stmt:
    """``stmt`` with ``fn`` applied to each of its own expressions; the same object if none changed."""
    old = _STMT_EXPRS[type(stmt)](stmt)
    new = [fn(e) for e in old]
    if all(map(operator.is_, new, old)):
        return stmt
    results = iter(new)
    return _MAP_STMT_EXPRS[type(stmt)](stmt, lambda _: next(results))


def with_bodies(stmt: ir.Stmt, bodies: Sequence[ir.Body]) -> ir.Stmt:
    """``stmt`` with other bodies, as many as ``stmt_bodies`` gives."""
    if all(map(operator.is_, bodies, stmt_bodies(stmt))):
        return stmt
    if isinstance(stmt, ir.If):
        return replace(stmt, then=bodies[0], orelse=bodies[1])
    return replace(typed(ir.For, stmt), body=bodies[0])


StmtMap = Callable[[ir.Stmt], "ir.Stmt | Sequence[ir.Stmt] | None"]


def map_body(body: ir.Body, stmt: StmtMap | None = None, expr: ExprMap | None = None) -> ir.Body:
    """Rewrite a body, inner statements first.

    expr: applied to each expression of a statement as a whole (use ``map_expr`` in it to reach every node).
    stmt: sees the rebuilt statement and returns its replacement: a statement, several, ``()`` to drop it, None to keep.
    An If with a condition that has become constant is replaced by the branch taken. Without changes the same object is
    returned.
    """
    out: list[ir.Stmt] = []
    for old in body:
        new = map_stmt_exprs(old, expr) if expr else old
        bodies = _BODIES.get(type(old))
        if bodies is not None:
            new = with_bodies(new, [map_body(b, stmt, expr) for b in bodies(old)])
        replaced = stmt(new) if stmt else None
        if replaced is None:
            if type(new) is ir.If:
                out.extend(_fold_if(new))
            else:
                out.append(new)
        elif isinstance(replaced, ir.Stmt):
            out.append(replaced)
        else:
            out.extend(replaced)
    unchanged = len(out) == len(body) and all(map(operator.is_, out, body))
    return body if unchanged else tuple(out)


def _fold_if(stmt: ir.If) -> Sequence[ir.Stmt]:
    known = make.constant_value(stmt.cond)
    if known is None:
        return (stmt,)
    return stmt.then if known else stmt.orelse


NO_VALUES: Mapping[ir.Var, ir.Expr] = MappingProxyType({})


def substitute(root: Node, values: Mapping[ir.Var, ir.Expr]) -> Node:
    """``root``, an expression or a body, with each variable replaced by its value; constants are folded."""
    if not values:
        return root

    def leaf(e: ir.Expr) -> ir.Expr | None:
        return values.get(e) if isinstance(e, ir.Var) else None

    if isinstance(root, ir.Expr):
        return map_expr(root, leaf)
    return map_body(root, expr=expr_map(leaf))


def replace_buffers(root: Node, buffers: Mapping[ir.Buffer, ir.Buffer]) -> Node:
    """``root`` with each buffer replaced wherever it is loaded, stored, moved, multiplied or allocated."""
    if not buffers:
        return root

    def in_expr(e: ir.Expr) -> ir.Expr | None:
        return make.load(buffers[e.buffer], e.indices) if isinstance(e, ir.Load) and e.buffer in buffers else None

    if isinstance(root, ir.Expr):
        return map_expr(root, in_expr)
    return map_body(root, lambda s: _with_buffers(s, buffers), expr_map(in_expr))


def _with_buffers(s: ir.Stmt, buffers: Mapping[ir.Buffer, ir.Buffer]) -> ir.Stmt | None:
    """``s`` with each buffer that it names itself replaced; None if it names none."""

    def region(r: ir.Region) -> ir.Region:
        return replace(r, buffer=buffers.get(r.buffer, r.buffer))

    if isinstance(s, (ir.Store, ir.Allocate)):
        return replace(s, buffer=buffers[s.buffer]) if s.buffer in buffers else None
    if isinstance(s, ir.Move):
        return replace(s, dst=region(s.dst), src=region(s.src))
    if isinstance(s, ir.MatMul):
        return replace(s, c=region(s.c), a=region(s.a), b=region(s.b))
    if isinstance(s, ir.Invoke):
        return replace(s, operands=tuple(region(o) if isinstance(o, ir.Region) else o for o in s.operands))
    return None


def fresh(body: ir.Body, values: Mapping[ir.Var, ir.Expr] = NO_VALUES) -> ir.Body:
    """A copy of ``body`` with new variables and buffers for all that it defines, so that one kernel can hold both.

    ``values`` replace variables that it uses, as in ``substitute``.
    """
    variables: dict[ir.Var, ir.Expr] = {}
    buffers: dict[ir.Buffer, ir.Buffer] = {}
    for stmt in walk_stmts(body):
        for var in defined_vars(stmt):
            variables[var] = ir.Var(var.name, var.dtype, var.lanes)
        if isinstance(stmt, ir.Allocate):
            buffers[stmt.buffer] = replace(stmt.buffer)
    if not variables and not buffers:
        return substitute(body, values)
    values = {**values, **variables}

    def in_expr(e: ir.Expr) -> ir.Expr | None:
        if isinstance(e, ir.Var):
            return values.get(e)
        return make.load(buffers[e.buffer], e.indices) if isinstance(e, ir.Load) and e.buffer in buffers else None

    def in_stmt(s: ir.Stmt) -> ir.Stmt | None:
        if isinstance(s, (ir.For, ir.Let)):
            return replace(s, var=typed(ir.Var, variables[s.var]))
        if isinstance(s, ir.MappedFor):
            return replace(s, vars=tuple(typed(ir.Var, variables[v]) for v in s.vars))
        return _with_buffers(s, buffers) if buffers else None

    return map_body(body, in_stmt, expr_map(in_expr))


def defined_vars(stmt: ir.Stmt) -> tuple[ir.Var, ...]:
    """The variables that ``stmt`` defines: a loop's, or a Let's."""
    if isinstance(stmt, (ir.For, ir.Let)):
        return (stmt.var,)
    return stmt.vars if isinstance(stmt, ir.MappedFor) else ()


def free_vars(root: ir.Expr | ir.Body) -> set[ir.Var]:
    """The variables that ``root`` uses without defining them (in a loop, a Let, or a reduction's axes)."""
    used: set[ir.Var] = set()
    bound: set[ir.Var] = set()
    for e in walk_exprs(root):
        if isinstance(e, ir.Var):
            used.add(e)
        elif isinstance(e, (ir.Reduce, ir.Scatter)):
            bound.update(var for var, _ in e.axes)
        elif isinstance(e, Recurrence):
            bound.update(var for var, _ in e.bound)
    if not isinstance(root, ir.Expr):
        bound.update(v for s in walk_stmts(root) for v in defined_vars(s))
    return used - bound
