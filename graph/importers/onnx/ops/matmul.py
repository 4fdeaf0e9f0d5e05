"""Matrix products: MatMul, Gemm, Einsum, Det."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from taskmap.graph.build import broadcast_shapes, define, same_dim
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.host import on_host
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops.matmul import contract, mm, scaled_sum
from taskmap.graph.ops.pointwise import pointwise
from taskmap.graph.ops.views import expand, reshape, transpose
from taskmap.ir.construct import cast, product, reduce, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import DType, compute_type


def matmul(a: Node, b: Node, dtype: DType | None = None) -> Node:
    """numpy's matmul: matrices in the last two dimensions, the others broadcast."""
    if len(a.shape) == 1:
        row = matmul(reshape(a, [1, *a.shape]), b, dtype)
        cut = len(row.shape) - 2 if len(b.shape) > 1 else len(row.shape) - 1
        return reshape(row, [n for d, n in enumerate(row.shape) if d != cut])
    if len(b.shape) == 1:
        column = matmul(a, reshape(b, [*b.shape, 1]), dtype)
        return reshape(column, column.shape[:-1])
    if len(b.shape) == 2:
        flat = a if len(a.shape) == 2 else reshape(a, [product(a.shape[:-1]), a.shape[-1]])
        result = mm(flat, b, dtype)
        return reshape(result, [*a.shape[:-1], b.shape[-1]])
    return _batched(a, b, dtype)


def _batched(a: Node, b: Node, dtype: DType | None) -> Node:
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if not same_dim(a.shape[-1], b.shape[-2]) and None not in (static_size(a.shape[-1]), static_size(b.shape[-2])):
        raise UnsupportedError(f"a product of shapes {a.shape} and {b.shape}")
    shape = [*batch, a.shape[-2], b.shape[-1]]
    known = [static_size(n) for n in batch]
    if None not in known and len(batch) > 1 and _is_whole(a, batch) and _is_whole(b, batch):
        count = product(batch)
        three = contract_batch(reshape(a, [count, *a.shape[-2:]]), reshape(b, [count, *b.shape[-2:]]), dtype)
        return reshape(three, shape)
    if len(batch) == 1 and _is_whole(a, batch) and _is_whole(b, batch):
        return contract_batch(a, b, dtype)
    whole = [expand(n, [*batch, *n.shape[-2:]]) for n in (a, b)]

    def at(axes: tuple[Expr, ...], k: Expr) -> tuple[Sequence[ExprLike], Sequence[ExprLike]]:
        return (*axes[:-1], k), (*axes[:-2], k, axes[-1])

    return contract("matmul", whole[0], whole[1], shape, a.shape[-1], at, dtype)


def _is_whole(x: Node, batch: Sequence[Dim]) -> bool:
    return len(x.shape) == len(batch) + 2 and all(same_dim(n, m) for n, m in zip(x.shape, batch, strict=False))


def contract_batch(a: Node, b: Node, dtype: DType | None) -> Node:
    """[batch, m, k] @ [batch, k, n]."""
    shape = (a.shape[0], a.shape[1], b.shape[2])
    return contract("bmm", a, b, shape, a.shape[2], lambda i, r: ((i[0], i[1], r), (i[0], r, i[2])), dtype)


@lowering("MatMul")
def _matmul(call: OnnxCall) -> Node:
    a, b = call.node(0), call.node(1)
    if not a.shape or not b.shape:
        raise call.error("a matrix product of a tensor without dimensions")
    call.same(a.shape[-1], b.shape[0] if len(b.shape) == 1 else b.shape[-2])
    call.broadcasts(a.shape[:-2], b.shape[:-2])
    return matmul(a, b)


@lowering("Gemm")
def _gemm(call: OnnxCall) -> Node:
    a, b = call.node(0), call.node(1)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise call.error("Gemm takes matrices")
    a = transpose(a, 0, 1) if call.attr("transA", 0) else a
    b = transpose(b, 0, 1) if call.attr("transB", 0) else b
    alpha, beta = call.attr("alpha", 1.0), call.attr("beta", 1.0)
    call.same(a.shape[1], b.shape[0])
    result = mm(a, b)
    if not call.has(2):
        return scaled_sum(result, 0, result, _number(alpha, result))
    bias = call.node(2)
    call.broadcasts(result.shape, bias.shape)
    if not result.dtype.is_float:
        factors = (int(alpha), int(beta))
        return pointwise(
            "gemm", (result, bias), lambda p, c: p * factors[0] + c * factors[1], result.dtype, result.dtype
        )
    return scaled_sum(bias, _number(beta, result), result, _number(alpha, result))


def _number(value: float, like: Node) -> float:
    return int(value) if value == int(value) or not like.dtype.is_float else value


@lowering("Einsum")
def _einsum(call: OnnxCall) -> Node:
    equation = call.required("equation").replace(" ", "")
    nodes = call.nodes()
    terms, result = _parse(call, equation, nodes)
    sizes: dict[str, Dim] = {}
    for term, node in zip(terms, nodes, strict=True):
        for letter, size in zip(term, node.shape, strict=True):
            call.broadcasts([sizes.setdefault(letter, size)], [size])
            if static_size(sizes[letter]) == 1:
                sizes[letter] = size
    return einsum(nodes, terms, result)


def _parse(call: OnnxCall, equation: str, nodes: Sequence[Node]) -> tuple[list[str], str]:
    """Terms and result with "..." replaced by letters of its own, one for each dimension it represents."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(nodes):
        raise call.error(f"the equation {equation!r} has {len(terms)} terms for {len(nodes)} tensors")
    most = 0
    for term, node in zip(terms, nodes, strict=True):
        if "..." in term:
            most = max(most, len(node.shape) - len(term.replace("...", "")))
    dots = "".join(chr(0x3B1 + i) for i in range(most))
    full = [
        t.replace("...", dots[most - (len(n.shape) - len(t.replace("...", ""))) :] if "..." in t else "")
        for t, n in zip(terms, nodes, strict=True)
    ]
    for term, node in zip(full, nodes, strict=True):
        if len(term) != len(node.shape):
            raise call.error(f"the equation {equation!r} does not fit a tensor of rank {len(node.shape)}")
    if arrow:
        return full, right.replace("...", dots)
    letters = "".join(full)
    once = sorted(c for c in set(letters) if letters.count(c) == 1 and c not in dots)
    return full, dots + "".join(once)


def einsum(nodes: Sequence[Node], terms: Sequence[str], result: str) -> Node:
    """The product of the tensors' elements, summed over the letters that ``result`` lacks."""
    sizes: dict[str, Dim] = {}
    for term, node in zip(terms, nodes, strict=True):
        for letter, size in zip(term, node.shape, strict=True):
            if letter not in sizes or static_size(sizes[letter]) == 1:
                sizes[letter] = size
            elif static_size(size) not in (1, None, static_size(sizes[letter])) and static_size(sizes[letter]):
                raise UnsupportedError(f"an equation in which the letter {letter!r} is both {sizes[letter]} and {size}")
    if any(c not in sizes for c in result) or len(set(result)) != len(result):
        raise UnsupportedError("an equation whose result repeats a letter, or has one that no term has")
    folded = [c for c in sizes if c not in result]
    wide = compute_type(nodes[0].dtype)

    def element(*formals: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            places: dict[str, Expr] = dict(zip(result, axes, strict=True))
            inner = [(Var(f"k{i}"), sizes[c]) for i, c in enumerate(folded)]
            places.update({c: v for c, (v, _) in zip(folded, inner, strict=True)})
            total: Expr | None = None
            for f, term, node in zip(formals, terms, nodes, strict=True):
                position = [
                    0 if static_size(n) == 1 and static_size(sizes[c]) != 1 else places[c]
                    for c, n in zip(term, node.shape, strict=True)
                ]
                value = cast(f[tuple(position)], wide)
                total = value if total is None else total * value
            assert total is not None
            return reduce("sum", inner, total) if inner else total

        return at

    return define("einsum", list(nodes), [sizes[c] for c in result], element, nodes[0].dtype)


@lowering("Det")
def _det(call: OnnxCall) -> Any:
    x = call.tensor(0)
    return on_host(
        call, lambda a: np.linalg.det(a.astype(np.float64)).astype(a.dtype), [(x.elem, x.shape[:-2])], "a determinant"
    )
