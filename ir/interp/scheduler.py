"""The threads of a block, interleaved: each runs, in any order, until it must synchronise, and then continues with the
others of its group.

A thread synchronises by yielding a request: a barrier, an instruction that several threads execute together, or a
condition. If no thread can continue, the kernel has a deadlock, which is an error.
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
    """A thread has reached an operation that its group executes together; ``site`` is the statement or expression."""

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
    """One run of one block. ``execute(request, threads, requests)`` executes a group's operation and returns each
    thread's result; ``order`` shuffles; ``epoch`` is called after all threads have passed a barrier."""

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
        """Run every thread to its end. Raises VerifyError for a deadlock."""
        while True:
            for t in self.order([t for t in self.running if t not in self.waiting]):
                self.step(t)
            if not self.running:
                return
            if not (self.executed() or self.released() or self.passed()):
                self.stuck()

    def step(self, t: int) -> None:
        try:
            self.waiting[t] = self.running[t].send(self.results.pop(t, None))
        except StopIteration:
            del self.running[t]

    def executed(self) -> bool:
        """Execute the operation of every complete group."""
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
        """Let threads continue whose condition has become true."""
        free = [t for t, request in self.waiting.items() if isinstance(request, Until) and request.holds()]
        for t in free:
            del self.waiting[t]
        return bool(free)

    def passed(self) -> bool:
        """Let all threads continue if they are at the same barrier."""
        barriers = {t: r for t, r in self.waiting.items() if isinstance(r, Barrier)}
        if len(barriers) < self.count or any(b is not barriers[0] for b in barriers.values()):
            return False
        self.waiting.clear()
        self.epoch()
        return True

    def stuck(self) -> None:
        """No thread can continue: raises VerifyError, naming a waiting thread and one that does not arrive."""
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
                f"thread {t} waits forever", where=waits.source, why=f"no running thread completes {waits.name}."
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
