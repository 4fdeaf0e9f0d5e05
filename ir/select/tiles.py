"""Products of whole tiles by the workers of a group: the statement matmul(m, n, k; c, a, b).

Each operand is a tile in memory, or in registers that a task mapping distributes over workers. An entry fits if the
tiles consist of whole tiles of its spec, and those in registers are held as its owners say: division of task mappings
decides that, as comparison of digits does for vectors. The cheapest form issues the fewest instructions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from taskmap.ir.algebra.fragments import Fragment, fragment, is_held_as
from taskmap.ir.algebra.mapping import TaskMapping, repeat
from taskmap.ir.algebra.quotient import quotient
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.isa.table import instructions_for
from taskmap.ir.select.egraph import EGraph, Node
from taskmap.ir.select.extract import cheapest
from taskmap.ir.select.rule import Rule
from taskmap.ir.select.saturate import saturate
from taskmap.ir.select.terms import Term
from taskmap.ir.target import Target
from taskmap.ir.types import DType

WARP = 32


@dataclass(frozen=True, slots=True)
class Tile:
    """An operand: its name for messages, element type, shape, and its owner if workers hold it in registers."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    owner: TaskMapping | None = None

    @property
    def term(self) -> Term:
        """The tile as a leaf of a statement."""
        return Term("tile", (self,))


@dataclass(frozen=True, slots=True)
class TileChoice:
    """The instruction found among ``candidates`` for a statement, or None with the reasons; rules: those that found it;
    nodes and seconds: of the search."""

    statement: Term
    candidates: tuple[Instruction, ...]
    by: Instruction | None
    reasons: tuple[str, ...]
    rules: tuple[str, ...] = ()
    nodes: int = 0
    seconds: float = 0.0

    @property
    def second(self) -> Instruction | None:
        """The instruction that would be chosen without the one found, by a search of its own; for reports."""
        return _best(self.statement, tuple(e for e in self.candidates if e is not self.by))[0] if self.by else None

    def __str__(self) -> str:
        name = self.by.name if self.by else f"no instruction ({' '.join(self.reasons) or 'sizes do not fit'})"
        return f"{name}; rules: {', '.join(self.rules) or 'none'}; {self.nodes} nodes, {self.seconds * 1e3:.1f} ms"


def product_of_tiles(c: Tile, a: Tile, b: Tile) -> Term:
    """c + a @ b."""
    return Term("matmul", (c.shape[-2], c.shape[-1], a.shape[-1]), (c.term, a.term, b.term))


@lru_cache(maxsize=1024)
def choose_tiles(
    c: Tile, a: Tile, b: Tile, target: Target, table: tuple[Instruction, ...], workers: int = WARP
) -> TileChoice:
    """The instruction of a group of ``workers`` (a warp, or 1 on a CPU) for c + a @ b, the one of which the fewest
    compute it."""
    m, n, k = c.shape[-2], c.shape[-1], a.shape[-1]
    found = instructions_for(target, MatMulSpec(m, n, k, a.dtype, b.dtype, c.dtype), table)
    candidates = tuple(e for e in found.instructions if e.workers == workers and not e.opaque and not e.completes)
    flaws = [flaw for e in candidates if (flaw := tile_flaw(e, c, a, b))]
    statement = product_of_tiles(c, a, b)
    reasons = tuple(dict.fromkeys(([found.reason] if found.reason else []) + flaws))
    started = time.perf_counter()
    by, rules, nodes = _best(statement, candidates)
    return TileChoice(statement, candidates, by, reasons, rules, nodes, time.perf_counter() - started)


def _best(statement: Term, candidates: tuple[Instruction, ...]) -> tuple[Instruction | None, tuple[str, ...], int]:
    """The instruction of the cheapest form, the rules that wrote that form, and the nodes of the search."""
    g = EGraph()
    root = g.insert(statement)
    search = saturate(g, [rule_of(e) for e in candidates])
    best = cheapest(g)
    term = best.term(root)
    rules = tuple(dict.fromkeys(rule for node in best.chosen(root) if (rule := g.origin.get(node))))
    return (term.data[0] if term.op == "tiled" else None), rules, search.nodes


@lru_cache(maxsize=256)
def rule_of(entry: Instruction) -> Rule:
    """The lowering rule of an entry for a group of workers."""

    def rewrite(g: EGraph, node: Node) -> Iterator[int]:
        """matmul(m, n, k; c, a, b) = tiled(e, count; c, a, b), of whole tiles that are held as e's owners say"""
        c, a, b = (_tile(g, x) for x in node.args)
        spec = entry.spec
        assert isinstance(spec, MatMulSpec)
        if not tile_flaw(entry, c, a, b):
            m, n, k = node.data
            yield g.add("tiled", (entry, m * n * k // entry.work), node.args)

    def instance(rng: Random) -> Term:
        spec = entry.spec
        assert isinstance(spec, MatMulSpec)
        whole = rng.choice([(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)])
        m, n, k = (size * count for size, count in zip((spec.m, spec.n, spec.k), whole, strict=True))
        assert entry.owner_c is not None
        c = Tile("c", spec.c, (m, n), repeat(m // spec.m, n // spec.n) * entry.owner_c)
        return product_of_tiles(c, Tile("a", spec.a, (m, k)), Tile("b", spec.b, (k, n)))

    return Rule(f"by {entry.name}", "lowering", "matmul", rewrite, instance)


def _tile(g: EGraph, c: int) -> Tile:
    tile: Tile = g.nodes(c, "tile")[0].data[0]
    return tile


def tile_flaw(entry: Instruction, c: Tile, a: Tile, b: Tile) -> str:
    """The reason that ``entry`` does not compute c + a @ b; "" if it does."""
    spec = entry.spec
    assert isinstance(spec, MatMulSpec)
    m, n, k = c.shape[-2], c.shape[-1], a.shape[-1]
    if (a.dtype, b.dtype, c.dtype) != (spec.a, spec.b, spec.c):
        return f"{a.dtype} × {b.dtype} → {c.dtype} is not what {entry.name} computes."
    if m % spec.m or n % spec.n or k % spec.k:
        return f"{m}×{n}×{k} is not made of whole {spec.m}×{spec.n}×{spec.k}."
    if entry.owner_c is None or entry.owner_a is None or entry.owner_b is None:
        return f"{entry.name} takes operands from memory."
    if c.owner is None or quotient(c.owner, entry.owner_c) is None:
        return f"{c.name} is held by {c.owner}, and {entry.name} by {entry.owner_c}."
    for tile, shape, owner in ((a, (spec.m, spec.k), entry.owner_a), (b, (spec.k, spec.n), entry.owner_b)):
        if tile.owner is not None and not _is_held(tile.owner, shape, owner, entry.workers):
            return f"{tile.name} is held by {tile.owner}, and the instruction's operand by {owner}."
    return ""


def _is_held(held: TaskMapping, shape: tuple[int, int], owner: TaskMapping, workers: int) -> bool:
    placed = fragment(held, (*[1] * (len(held.task_shape) - 2), *shape), workers)
    return isinstance(placed, Fragment) and is_held_as(placed, shape, owner) and len(held.task_shape) == 2
