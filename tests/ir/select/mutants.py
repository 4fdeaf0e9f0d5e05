"""A wrong version of each rule: the mistake that its author is most likely to make."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from taskmap.ir.select.egraph import EGraph, Node
from taskmap.ir.select.rule import Rewrite
from taskmap.ir.select.terms import Term


def _result(change: Callable[[EGraph, Node, Term], int]) -> Callable[[Rewrite], Rewrite]:
    """Every result of the rule, changed."""

    def mutate(rewrite: Rewrite) -> Rewrite:
        def wrong(g: EGraph, node: Node) -> Iterator[int]:
            for equal in rewrite(g, node):
                term = g.term(equal)
                assert term is not None
                yield change(g, node, term)

        return wrong

    return mutate


def _instead(wrong: Rewrite) -> Callable[[Rewrite], Rewrite]:
    return lambda rewrite: wrong


def _subtract(g: EGraph, node: Node) -> Iterator[int]:
    yield g.add("sub", (), (node.args[1], node.args[0]))


def _square(g: EGraph, node: Node) -> Iterator[int]:
    yield g.add("mul", (), (node.args[1], node.args[1]))


def _unguarded(g: EGraph, node: Node) -> Iterator[int]:
    yield node.args[0]


def _one_side(g: EGraph, node: Node) -> Iterator[int]:
    for op in ("add", "sub", "mul"):
        for inner in g.nodes(node.args[0], op):
            sides = tuple(g.add("broadcast", node.data, (x,)) for x in inner.args)
            yield g.add(op, (), sides[::-1] if op == "sub" else (sides[0], sides[0]))


def _any_cast(g: EGraph, node: Node) -> Iterator[int]:
    for inner in g.nodes(node.args[0], "cast"):
        yield g.add("cast", node.data, inner.args)


def _outer_total(g: EGraph, node: Node) -> Iterator[int]:
    for inner in g.nodes(node.args[0], "total"):
        first = g.add("pick", (tuple(range(node.data[0])),), (g.add("total", inner.data, inner.args),))
        yield first


def _forgets_c(g: EGraph, node: Node, term: Term) -> int:
    c, a, b = term.args
    return g.insert(Term("dot", term.data, (Term("sub", (), (c, c)), a, b)))


def _counts_twice(g: EGraph, node: Node, term: Term) -> int:
    return g.insert(Term("dot", term.data, (term, *term.args[1:])))


def _strips_any(g: EGraph, node: Node) -> Iterator[int]:
    c, a, b = node.args
    for left in g.nodes(a, "cast"):
        yield g.add("dot", node.data, (c, left.args[0], b))


def _first_only(g: EGraph, node: Node, term: Term) -> int:
    return g.insert(Term("pick", ((0,) * term.type[1],), (term,)))


def _reversed(g: EGraph, node: Node, term: Term) -> int:
    return g.insert(Term("pick", (tuple(reversed(range(term.type[1]))),), (term,)))


def _swapped_loads(g: EGraph, node: Node) -> Iterator[int]:
    loads = [g.nodes(x, "load") for x in node.args]
    if all(loads):
        at = tuple(found[0].args[0] for found in reversed(loads))
        yield g.add("load", loads[0][0].data, (g.add("concat", (), at),))


def _same_slots(g: EGraph, node: Node, term: Term) -> int:
    if term.op == "moved":
        return g.insert(Term("pick", (tuple(reversed(range(term.type[1]))),), (term,)))

    def wrong(t: Term) -> Term:
        if t.op != "apply":
            return Term(t.op, t.data, tuple(map(wrong, t.args)))
        c, a, b = t.args
        n = b.type[1]
        return Term("apply", t.data, (c, a, Term("pick", (tuple((lane + 1) % n for lane in range(n)),), (b,))))

    return g.insert(wrong(term))


MUTANTS: dict[str, Callable[[Rewrite], Rewrite]] = {
    "commute-add": _instead(_subtract),
    "commute-mul": _instead(_square),
    "flatten-broadcast": _result(_reversed),
    "broadcast-once": _instead(_unguarded),
    "broadcast-into-load": _result(_reversed),
    "broadcast-into-cast": _result(_reversed),
    "cast-of-broadcast": _result(_first_only),
    "broadcast-into-pair": _instead(_one_side),
    "cast-through": _instead(_any_cast),
    "cast-to-own-type": _instead(_unguarded),
    "total-once": _instead(_unguarded),
    "total-of-total": _instead(_outer_total),
    "lift-multiply-add": _result(_forgets_c),
    "lift-sums": _result(_counts_twice),
    "lift-sums-from-zero": _result(_counts_twice),
    "narrow-operands": _instead(_strips_any),
    "join-successive": _result(_forgets_c),
    "lane-by-lane": _result(_first_only),
    "pick-of-pick": _result(_reversed),
    "neighbouring-loads": _instead(_swapped_loads),
    "contiguous-runs": _result(_first_only),
    "columns-in-pieces": _result(_reversed),
    "by entry": _result(_same_slots),
}
