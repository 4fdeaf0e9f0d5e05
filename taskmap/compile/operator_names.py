"""Names of a graph's operators and their sizes in reports."""

from __future__ import annotations

import re

from taskmap.graph.analysis.classify import definition
from taskmap.graph.nodes import Node
from taskmap.ir.analysis.contraction import Contraction, find_contraction
from taskmap.ir.construct import product
from taskmap.ir.nodes import Buffer, Dim, Reduce
from taskmap.ir.printer import print_dim
from taskmap.ir.visit import walk_exprs


def operator_name(node: Node) -> str:
    """The operator's name, with PyTorch's if it came from one of another name: add (batch_norm)."""
    source = source_name(node.origin.operator)
    return node.op if not source or node.op in source or source in node.op else f"{node.op} ({source})"


def source_name(operator: str) -> str:
    """aten._native_batch_norm_legit_no_training.default -> batch_norm."""
    name = operator.removeprefix("aten.").split(".")[0]
    return re.sub(r"_legit.*$", "", re.sub(r"^_*(native_|unsafe_)?", "", name))


def value_text(value: Node | Buffer) -> str:
    """Type and shape: f32[1, 64, 56, 56]."""
    return f"{value.dtype}[{', '.join(map(print_dim, value.shape))}]"


def anchor_text(node: Node) -> str:
    """The anchor with its sizes: convolution 3×3, 64→64, 56×56; mm 128×3072 · 3072×768."""
    name = operator_name(node)
    if "dilation" in node.attrs:
        return f"{name} {_convolution(node)}"
    define = definition(node)
    found = find_contraction(define.axes, node.shape, define.body)
    if found is None:
        return f"{name} {_by(node.shape)}"
    return f"{name} {_product(found)}"


def _product(c: Contraction) -> str:
    m, n, k = (print_dim(product([d for _, d in part])) for part in (c.m, c.n, c.k))
    text = f"{m}×{k} · {k}×{n}"
    return f"{print_dim(product([d for _, d in c.batch]))} × ({text})" if c.batch else text


def _convolution(node: Node) -> str:
    """Window, channels and result; strides, dilations and groups if they are not 1."""
    attrs = node.attrs
    rank = len(node.shape) - 2
    summed = _summed(node)
    window, inner = summed[len(summed) - rank :], summed[: len(summed) - rank]
    groups = attrs.get("groups", 1)
    channels = product([*inner, groups]) if isinstance(groups, int) else product(inner)
    parts = [_by(window), f"{print_dim(channels)}→{print_dim(node.shape[1])}", _by(node.shape[2:])]
    for name in ("stride", "dilation"):
        values = attrs.get(name)
        if isinstance(values, tuple) and any(v != 1 for v in values):
            parts.append(f"{name} {values[0] if len(set(values)) == 1 else _by(values)}")
    if isinstance(groups, int) and groups != 1:
        parts.append(f"{groups} groups")
    return ", ".join(parts)


def _summed(node: Node) -> tuple[Dim, ...]:
    reduce = next((e for e in walk_exprs(definition(node).body) if isinstance(e, Reduce)), None)
    return () if reduce is None else tuple(extent for _, extent in reduce.axes)


def _by(sizes: tuple[Dim, ...]) -> str:
    return "×".join(map(print_dim, sizes))
