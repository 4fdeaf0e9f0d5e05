"""Lowering: each instruction of the table enters by its spec and owners.

An entry for c[0, j] += sum over k < 2 of a[0, k] · b[k, j], j < 16, says by its owners that lane l of c is element
owner_c(l): so operands of a statement must be alike wherever those of the spec are. Slot s of a register is element
owner_a(s) or owner_b(s): the lane of the statement that holds it is picked. No entry has a rule of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from random import Random

from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MatMulSpec, MoveSpec
from taskmap.ir.select.address import Address
from taskmap.ir.select.egraph import EGraph, Node
from taskmap.ir.select.instances import base, value
from taskmap.ir.select.rule import Rewrite, Rule
from taskmap.ir.select.terms import Term, broadcast, load, ramp
from taskmap.ir.types import DType

Lanes = tuple[int, ...]


def product_entries(entries: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """The entries that one worker executes on vector registers: the products a vector statement can be made of. Those
    with parameters are invoked on tiles (``tiles``)."""
    return tuple(
        e
        for e in entries
        if isinstance(e.spec, MatMulSpec)
        and e.workers == 1
        and not e.parameters
        and e.owner_c is not None
        and e.owner_a is not None
        and e.owner_b is not None
        and e.alignment <= e.spec.c.bytes
    )


def move_entries(entries: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """The entries for vector accesses at any address."""
    return tuple(
        e for e in entries if isinstance(e.spec, MoveSpec) and not e.text and e.alignment <= e.spec.dtype.bytes
    )


def lowering_rules(entries: tuple[Instruction, ...]) -> tuple[Rule, ...]:
    """A lowering rule for each entry that computes or moves vectors."""
    products = [
        Rule(f"by {e.name}", "lowering", "dot", by_product(e), _product_instance(e)) for e in product_entries(entries)
    ]
    moves = move_entries(entries)
    copies = [Rule(f"by {e.name}", "lowering", "copy", by_move(e, moves), _move_instance(e, moves)) for e in moves]
    return (*products, *copies)


@lru_cache(maxsize=1024)
def by_product(entry: Instruction) -> Rewrite:
    """The rewrite that computes a dot product by ``entry``."""
    spec = entry.spec
    assert isinstance(spec, MatMulSpec)
    assert entry.owner_c is not None

    def rewrite(g: EGraph, node: Node) -> Iterator[int]:
        """dot(k; c, a, b) = apply(e; ... apply(e; c, slots of a, slots of b) ...), k / e.k steps"""
        (k,), (c, a, b) = node.data, node.args
        if g.facts(c).lanes != spec.m * spec.n or k % spec.k:
            return
        if [g.facts(x).dtype for x in node.args] != [spec.c, spec.a, spec.b]:
            return
        if operand_flaw(entry, "a", g.facts(a).alike, k) or operand_flaw(entry, "b", g.facts(b).alike, k):
            return
        c_lanes, order = c_order(entry)
        total = g.add("pick", (order,), (c,))
        for start in range(0, k, spec.k):
            registers = [g.add("pick", (slots(entry, name, k, start),), (x,)) for name, x in (("a", a), ("b", b))]
            total = g.add("apply", (entry,), (total, *registers))
        yield g.add("pick", (c_lanes,), (total,))

    return rewrite


@lru_cache(maxsize=1024)
def c_order(entry: Instruction) -> tuple[Lanes, Lanes]:
    """For each lane of a row-major m×n statement its slot in c's register, and for each slot its lane."""
    assert isinstance(entry.spec, MatMulSpec)
    assert entry.owner_c is not None
    order = tuple(i * entry.spec.n + j for i, j in entry.owner_c(0))
    return tuple(order.index(lane) for lane in range(len(order))), order


@lru_cache(maxsize=4096)
def slots(entry: Instruction, name: str, k: int, start: int) -> Lanes:
    """For each slot of an operand's register, the lane of the statement's operand (lane l·k + step) that it takes."""
    assert isinstance(entry.spec, MatMulSpec)
    owner = entry.owner_a if name == "a" else entry.owner_b
    assert owner is not None
    n = entry.spec.n
    if name == "a":
        return tuple(i * n * k + start + step for i, step in owner(0))
    return tuple(j * k + start + step for step, j in owner(0))


@lru_cache(maxsize=4096)
def operand_flaw(entry: Instruction, name: str, alike: Address | None, k: int) -> str:
    """The reason that an operand of a row-major m×n statement does not fit ``entry``; "" if it does.

    a must be the same in all columns, and b in all rows.
    """
    spec = entry.spec
    assert isinstance(spec, MatMulSpec)
    across = spec.n if name == "a" else spec.m
    if across == 1:
        return ""
    if alike is None:
        return f"{name} is not known to be the same in {across} {'columns' if name == 'a' else 'rows'}."
    rows = alike.rows()
    for i in range(spec.m):
        for j in range(spec.n):
            at, like = (i * spec.n + j) * k, (i * spec.n if name == "a" else j) * k
            if rows[at : at + k] != rows[like : like + k]:
                kind = "column" if name == "a" else "row"
                return f"{name} has digits {alike}, which differ from {kind} to {kind}."
    return ""


def by_move(entry: Instruction, moves: tuple[Instruction, ...]) -> Rewrite:
    """The rewrite that copies a vector by ``entry`` and, for a conversion, the access of as many elements of the
    other type."""
    same_width: dict[DType, Instruction] = {
        e.spec.dtype: e for e in moves if isinstance(e.spec, MoveSpec) and e.columns == entry.columns
    }

    def rewrite(g: EGraph, node: Node) -> Iterator[int]:
        """copy(t; x) = moved(e, f; x), if x has as many lanes as both entries"""
        (dtype,), (x,) = node.data, node.args
        other = same_width.get(g.facts(x).dtype)
        if dtype == getattr(entry.spec, "dtype", None) and g.facts(x).lanes == entry.columns and other is not None:
            yield g.add("moved", (entry, other), (x,))

    return rewrite


def _product_instance(entry: Instruction) -> Callable[[Random], Term]:
    spec = entry.spec
    assert isinstance(spec, MatMulSpec)

    def instance(rng: Random) -> Term:
        k = spec.k * rng.choice([1, 1, 2])
        row = ramp(base(rng), 1, k)
        a = broadcast(row, spec.n)
        a = a if spec.m == 1 else ramp(a, rng.randint(1, 40), spec.m)
        column = ramp(ramp(base(rng), rng.randint(1, 30), k), rng.randint(1, 3), spec.n)
        b = column if spec.m == 1 else broadcast(column, spec.m)
        c = value(rng, spec.m * spec.n, spec.c)
        return Term("dot", (k,), (c, load(f"a_{spec.a}", spec.a, a), load(f"b_{spec.b}", spec.b, b)))

    return instance


def _move_instance(entry: Instruction, moves: tuple[Instruction, ...]) -> Callable[[Random], Term]:
    spec = entry.spec
    assert isinstance(spec, MoveSpec)
    types = [e.spec.dtype for e in moves if isinstance(e.spec, MoveSpec) and e.columns == entry.columns]

    def instance(rng: Random) -> Term:
        return Term("copy", (spec.dtype,), (load("u", rng.choice(types), ramp(base(rng), 1, spec.n)),))

    return instance
