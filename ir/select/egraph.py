"""The e-graph: classes of equal terms, each term stored once.

A node is an operation, its data, and the classes of its arguments. Two nodes alike are one (hash-consing). Joining two
classes makes nodes above them alike in turn; ``rebuild`` joins those until congruence holds. Everything is visited in
the order of insertion, so equal inputs give equal graphs.

An index with known digits is stored as index(digits) alone, so that equal addresses are equal nodes however they were
written, and no rule need rewrite address arithmetic.

Source: Willsey et al., "egg: Fast and Extensible Equality Saturation", POPL 2021, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from taskmap.ir.errors import SelectionLimitError
from taskmap.ir.select.facts import Facts, facts_of
from taskmap.ir.select.terms import Data, Term

__all__ = ["EGraph", "Node"]


class Node(NamedTuple):
    """An operation, its data, and the classes of its arguments."""

    op: str
    data: Data
    args: tuple[int, ...]


class EGraph:
    """Classes are numbered; ``find`` gives the current number of a class that may have been joined to another."""

    def __init__(self, most_nodes: int = 1 << 30) -> None:
        self.most_nodes = most_nodes
        self.rule = ""
        """The rule that is being applied; nodes are recorded as its work."""
        self.origin: dict[Node, str] = {}
        self._leader: list[int] = []
        self._known: dict[Node, int] = {}
        self._nodes: dict[int, dict[str, dict[Node, None]]] = {}
        self._users: dict[int, dict[Node, int]] = {}
        self._facts: dict[int, Facts] = {}
        self._touched: list[int] = []
        self._folded: dict[Node, int] = {}
        self._located: list[int] = []
        self._fresh: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, c: int) -> int:
        """The current number of a class."""
        leader = self._leader
        while leader[c] != c:
            leader[c] = leader[leader[c]]
            c = leader[c]
        return c

    def add(self, op: str, data: Data = (), args: tuple[int, ...] = ()) -> int:
        """The class of a node; a new one if no equal node is known.

        Raises TypeMismatchError for arguments that do not fit together, and SelectionLimitError for too many nodes.
        """
        node = Node(op, data, tuple(map(self.find, args)))
        known = self._known.get(node)
        known = self._folded.get(node) if known is None else known
        if known is not None:
            return self.find(known)
        facts = facts_of(op, data, [self._facts[a] for a in node.args])
        if facts.layout is not None and op != "index":
            c = self._folded[node] = self.add("index", (facts.layout,))
            return c
        if len(self._known) >= self.most_nodes:
            raise self.too_much(f"more than {self.most_nodes} nodes")
        c = len(self._leader)
        self._leader.append(c)
        self._known[node] = c
        self._nodes[c] = {op: {node: None}}
        self._users[c] = {}
        self._facts[c] = facts
        self._fresh[c] = None
        self.origin[node] = self.rule
        for a in node.args:
            self._users[a][node] = c
        return c

    def insert(self, term: Term) -> int:
        """The class of a term."""
        return self.add(term.op, term.data, tuple(map(self.insert, term.args)))

    def facts(self, c: int) -> Facts:
        """The facts of a class."""
        return self._facts[self.find(c)]

    def classes(self) -> list[int]:
        """All classes, oldest first."""
        return list(self._nodes)

    def nodes(self, c: int, op: str | None = None) -> list[Node]:
        """The nodes of a class, of one operation if given, oldest first."""
        by_op = self._nodes[self.find(c)]
        if op is not None:
            return list(by_op.get(op, ()))
        return [n for nodes in by_op.values() for n in nodes]

    def join(self, a: int, b: int) -> bool:
        """Record that two classes are equal; True if that is new. Raises TypeMismatchError if their facts disagree."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return False
        kept, gone = min(a, b), max(a, b)
        self._facts[kept] = self._facts[kept].merged(self._facts[gone])
        del self._facts[gone]
        self._leader[gone] = kept
        for op, nodes in self._nodes.pop(gone).items():
            self._nodes[kept].setdefault(op, {}).update(nodes)
        self._users[kept].update(self._users.pop(gone))
        self._touched.append(kept)
        self._fresh[kept] = None
        return True

    def take_changed(self) -> list[int]:
        """The classes that changed since the last call, and those up to two levels above: the depth of the rules."""
        changed = dict.fromkeys(map(self.find, self._fresh))
        self._fresh = {}
        for _ in range(2):
            changed.update(dict.fromkeys(self.find(u) for c in list(changed) for u in self._users[c].values()))
        return sorted(changed)

    def rebuild(self) -> None:
        """Restore congruence: nodes with equal arguments are in one class, and each is stored once."""
        while self._touched:
            touched = dict.fromkeys(map(self.find, self._touched))
            self._touched = []
            for c in touched:
                self._repair(self.find(c))
            located, self._located = self._located, []
            for c in map(self.find, located):
                layout = self._facts[c].layout
                assert layout is not None
                self.join(c, self.add("index", (layout,)))

    def _repair(self, c: int) -> None:
        users: dict[Node, int] = {}
        before = dict(self._users[c])
        for node, owner in before.items():
            self._known.pop(node, None)
            at = self.find(owner)
            now = Node(node.op, node.data, tuple(map(self.find, node.args)))
            held = self._nodes[at].get(node.op, {})
            if now != node:
                held.pop(node, None)
                held[now] = None
                self.origin.setdefault(now, self.origin[node])
            other = self._known.get(now)
            if other is not None and self.find(other) != at:
                self.join(other, at)
                at = self.find(at)
            self._known[now] = at
            users[now] = at
            self._learn(at, now)
        here = self._users[self.find(c)]
        for node in before:
            here.pop(node, None)
        here.update(users)

    def _learn(self, c: int, node: Node) -> None:
        """Facts of a node that follow from new facts of its arguments."""
        merged = self._facts[c].merged(facts_of(node.op, node.data, [self.facts(a) for a in node.args]))
        if merged != self._facts[c]:
            if merged.layout is not None and self._facts[c].layout is None:
                self._located.append(c)
            self._facts[c] = merged
            self._touched.append(c)
            self._fresh[c] = None

    def too_much(self, what: str) -> SelectionLimitError:
        """The error for a limit that was passed; names the rules that added the most nodes."""
        counts: dict[str, int] = {}
        for rule in self.origin.values():
            counts[rule or "the statement"] = counts.get(rule or "the statement", 0) + 1
        most = sorted(counts.items(), key=lambda pair: -pair[1])[:3]
        return SelectionLimitError(
            f"the search for instructions took {what}",
            why="nodes by rule: " + ", ".join(f"{rule} {count}" for rule, count in most) + ".",
            hint="Simplify the statement, or raise the limits.",
        )

    def term(self, c: int, seen: frozenset[int] = frozenset()) -> Term | None:
        """Some term of a class, the oldest that does not contain itself."""
        c = self.find(c)
        if c in seen:
            return None
        for node in self.nodes(c):
            args = [self.term(a, seen | {c}) for a in node.args]
            if all(a is not None for a in args):
                return Term(node.op, node.data, tuple(a for a in args if a is not None))
        return None

    def __iter__(self) -> Iterator[tuple[int, Node]]:
        for c, by_op in list(self._nodes.items()):
            for nodes in list(by_op.values()):
                for node in list(nodes):
                    yield c, node
