"""Threads of a block, interleaved: each runs until it has to meet others, in any order, and those who met go on.

A thread asks for a meeting by yielding what it waits for: a barrier, an instruction that several threads execute
together, a condition. Nobody able to go on is a deadlock, which is an error of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskmap.ir.errors import VerifyError
from taskmap.ir.nodes import Barrier, Expr, Stmt
from taskmap.ir.source import SourceLocation

Value = Any


@dataclass(frozen=True, slots=True)
class Collective:
    """A thread has come to what its group executes together; ``site`` is the statement or the expression."""

    site: Stmt | Expr
    name: str
    workers: int
    args: Sequence[Value] = ()
    source: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class Until:
    """A thread waits for others to make ``holds`` true."""

    holds: Callable[[], bool]
    name: str
    source: SourceLocation | None = None


Request = Barrier | Collective | Until
SyncPoint = Generator[Request, Value, None]


class ThreadBlock:
    """One run of one block. ``execute(request, threads, requests)`` does what a group came together for, and gives each
    of them its result; ``order`` shuffles; ``epoch`` is called when all have passed a barrier."""

    def __init__(
        self,
        threads: Sequence[SyncPoint],
        execute: Callable[[Collective, Sequence[int], Sequence[Collective]], Sequence[Value]],
        order: Callable[[list[int]], list[int]],
        epoch: Callable[[], None],
    ) -> None:
        self.running: dict[int, SyncPoint] = dict(enumerate(threads))
        self.count = len(threads)
        self.execute = execute
        self.order = order
        self.epoch = epoch
        self.waiting: dict[int, Request] = {}
        self.results: dict[int, Value] = {}

    def run(self) -> None:
        """Every thread to its end. Raises VerifyError when some wait for what cannot happen."""
        while True:
            for t in self.order([t for t in self.running if t not in self.waiting]):
                self.step(t)
            if not self.running:
                return
            if not (self.met() or self.released() or self.passed()):
                self.stuck()

    def step(self, t: int) -> None:
        try:
            self.waiting[t] = self.running[t].send(self.results.pop(t, None))
        except StopIteration:
            del self.running[t]

    def met(self) -> bool:
        """Groups that have come together execute what they came for."""
        some = False
        for t in list(self.waiting):
            request = self.waiting.get(t)
            if not isinstance(request, Collective):
                continue
            first = t - t % request.workers
            group = range(first, first + request.workers)
            asked = [self.waiting.get(other) for other in group]
            if all(isinstance(a, Collective) and a.site is request.site for a in asked):
                requests = [a for a in asked if isinstance(a, Collective)]
                for other, result in zip(group, self.execute(request, group, requests), strict=True):
                    self.results[other] = result
                    del self.waiting[other]
                some = True
        return some

    def released(self) -> bool:
        """Those whose condition has become true go on."""
        free = [t for t, request in self.waiting.items() if isinstance(request, Until) and request.holds()]
        for t in free:
            del self.waiting[t]
        return bool(free)

    def passed(self) -> bool:
        """All threads stand at one barrier, and pass it."""
        barriers = {t: r for t, r in self.waiting.items() if isinstance(r, Barrier)}
        if len(barriers) < self.count or any(b is not barriers[0] for b in barriers.values()):
            return False
        self.waiting.clear()
        self.epoch()
        return True

    def stuck(self) -> None:
        """Nobody can go on: raises VerifyError, which names who waits and who does not come."""
        together = {t: r for t, r in self.waiting.items() if isinstance(r, Collective)}
        if together:
            t, request = next(iter(together.items()))
            first = t - t % request.workers
            absent = next(
                o
                for o in range(first, first + request.workers)
                if getattr(self.waiting.get(o), "site", None) is not request.site
            )
            raise VerifyError(
                f"thread {t} waits for others to execute {request.name}, which thread {absent} never reaches",
                where=request.source,
                why=f"threads {first} to {first + request.workers - 1} execute it together.",
            )
        until = {t: r for t, r in self.waiting.items() if isinstance(r, Until)}
        if until:
            t, waits = next(iter(until.items()))
            raise VerifyError(
                f"thread {t} waits for ever", where=waits.source, why=f"nothing that still runs completes {waits.name}."
            )
        self.divided({t: r for t, r in self.waiting.items() if isinstance(r, Barrier)})

    def divided(self, waiting: Mapping[int, Barrier]) -> None:
        first, at = next(iter(waiting.items()))
        if len(waiting) < self.count:
            other = next(t for t in range(self.count) if t not in waiting)
            raise VerifyError(
                f"thread {first} waits at a barrier that thread {other} never reaches",
                where=at.source,
                why=f"{len(waiting)} of {self.count} threads arrived; the others have finished.",
            )
        other = next(t for t, b in waiting.items() if b is not at)
        raise VerifyError(f"thread {first} waits at one barrier and thread {other} at another", where=at.source)
