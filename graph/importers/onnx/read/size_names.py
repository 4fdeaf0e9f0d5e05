"""Names for sizes: a size more complex than a sum of a few others becomes a symbolic size of its own.

The sizes of a deep network are long expressions of its inputs' sizes, which every kernel would recompute. With names,
each is computed once, before a graph runs, and kernels of equal layers are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from taskmap.graph.analysis.size_forms import is_plain, normal
from taskmap.graph.nodes import Node, OperatorNode
from taskmap.ir.construct import load, static_size
from taskmap.ir.nodes import Binary, Buffer, Dim, Expr, Load, Var
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

    def rename(self, node: Node) -> None:
        """Replaces the sizes in a new node by their names."""
        if all(static_size(n) is not None for n in node.shape) and not _is_open(node):
            return
        node.shape = tuple(self.named(n) for n in node.shape)
        if node.strides is not None:
            node.strides = tuple(self.named(n) for n in node.strides)
        if not isinstance(node, OperatorNode):
            return
        define = node.define
        formals = [
            replace(b, shape=source.shape) if len(b.shape) == len(source.shape) else b
            for b, source in zip(define.inputs, node.inputs, strict=True)
        ]
        renamed: Mapping[Buffer, Buffer] = dict(zip(define.inputs, formals, strict=True))

        def one(e: Expr) -> Expr | None:
            if isinstance(e, Load):
                return load(renamed.get(e.buffer, e.buffer), e.indices)
            return self.names.get(e) if isinstance(e, Binary) else None

        body = expr_map(one)(define.body)
        node.define = replace(define, inputs=tuple(formals), shape=node.shape, body=body)


def _is_open(node: Node) -> bool:
    return any(static_size(n) is None for source in node.inputs for n in source.shape)


def _count(e: Expr, most: int) -> int:
    """The number of nodes of a size, counted up to ``most``."""
    count, stack = 0, [e]
    while stack and count <= most:
        here = stack.pop()
        count += 1
        if isinstance(here, Binary):
            stack += [here.a, here.b]
    return count
