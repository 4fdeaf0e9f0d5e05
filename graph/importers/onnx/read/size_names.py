"""Names for sizes: a size more complex than a sum of a few others becomes a symbolic size of its own.

The sizes of a deep network are long expressions of its inputs' sizes, which every kernel would recompute. With names,
each is computed once, before a graph runs, and kernels of equal layers are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from taskmap.graph.analysis.size_forms import is_plain, normal
from taskmap.graph.nodes import Node, OperatorNode
from taskmap.ir.construct import load, static_size
from taskmap.ir.nodes import Binary, Dim, Expr, Load, Var
from taskmap.ir.visit import expr_map, substitute

LONGEST = 200
"""A size with more nodes than this, in terms of the inputs' sizes, is expressed by other names instead."""


@dataclass(slots=True)
class SizeNames:
    """``forms`` maps each name to its definition, in terms of the inputs' sizes or of earlier names."""

    forms: dict[Var, Expr] = field(default_factory=dict)
    names: dict[Expr, Var] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names.update({form: var for var, form in self.forms.items()})

    def named(self, size: Dim) -> Dim:
        """The size as a number, a sum of a few sizes, a product of sizes, or a name."""
        known = static_size(size)
        if known is not None:
            return known
        if isinstance(size, Var) or not isinstance(size, Expr):
            return size
        if isinstance(size, Binary) and size.op == "mul":
            return normal(self.named(size.a) * self.named(size.b))
        form = normal(self._expanded(size))
        if not isinstance(form, Expr) or is_plain(form):
            return form
        if form not in self.names:
            var = Var(f"s{len(self.forms)}")
            self.names[form], self.forms[var] = var, form
        return self.names[form]

    def _expanded(self, size: Expr) -> Expr:
        made = substitute(size, self.forms)
        assert isinstance(made, Expr)
        return made if _count(made, LONGEST) <= LONGEST else size

    def renamed(self, node: Node) -> Node:
        """``node`` with names for its sizes. The nodes that it reads have them already."""
        if not isinstance(node, OperatorNode) or not (_is_symbolic(node) or any(map(_is_symbolic, node.inputs))):
            return node
        define, shape = node.define, tuple(self.named(n) for n in node.shape)
        formals = tuple(
            replace(b, shape=source.shape) if len(b.shape) == len(source.shape) and b.shape != source.shape else b
            for b, source in zip(define.inputs, node.inputs, strict=True)
        )
        fresh = {b: formal for b, formal in zip(define.inputs, formals, strict=True) if b is not formal}

        def one(e: Expr) -> Expr | None:
            if isinstance(e, Load):
                return load(fresh[e.buffer], e.indices) if e.buffer in fresh else None
            return self.names.get(e) if isinstance(e, Binary) else None

        body = expr_map(one)(define.body)
        if not fresh and body is define.body and shape == node.shape:
            return node
        return replace(node, shape=shape, define=replace(define, inputs=formals, shape=shape, body=body))


def _is_symbolic(node: Node) -> bool:
    return any(static_size(n) is None for n in node.shape)


def _count(e: Expr, most: int) -> int:
    """The number of nodes of a size, counted up to ``most``."""
    count, stack = 0, [e]
    while stack and count <= most:
        here = stack.pop()
        count += 1
        if isinstance(here, Binary):
            stack += [here.a, here.b]
    return count
