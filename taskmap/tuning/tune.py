"""Tunes one operator: builds its configurations, races them, and records the results.

Configurations are built in chunks while earlier ones get a first look. Those that are clearly slower, as the cost model
expected, are not measured again; the others compete in further rounds, all in one process, while nothing is compiling.
After each chunk and each round all results are in the database, so a killed run loses at most one chunk or round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import closing
from dataclasses import dataclass, field, replace

from taskmap.ir.target import Target
from taskmap.ir.util.waiting import first_done
from taskmap.options import Options
from taskmap.schedules import Problem, Space, space_of
from taskmap.tuning.database import Database
from taskmap.tuning.job import Failure, Job, JobOutcome, Setting
from taskmap.tuning.race import Heat, confirmed, doubtful, leader, next_round, survivors, united
from taskmap.tuning.record import Conditions, Operator, Record, Verdict, typical
from taskmap.tuning.workers import Workers

__all__ = ["Budget", "Progress", "Tuned", "operator_of", "tune"]

FIRST = 8
"""Configurations that are measured by default, besides the default one."""
_CHUNKS = (6, 12, 24)
"""Configurations that are built together: few at first, so that measuring begins early."""
LOOKS = 2
"""Samples of a first look."""
_NEAR = 3
"""Known configurations that are measured again together with new ones."""
_ROUND = 4
"""Samples of each further round."""
_KEPT = 12
"""Samples that are carried over from one race of an operator to the next."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The amount to measure: the ``first`` configurations in the cost model's order (None: the whole space) and
    ``spread`` of the rest, evenly spaced in that order, for at most ``seconds`` seconds. Work in progress is then
    completed, and the likely winner is measured once more while nothing is compiling. ``again``: measure known
    configurations, too; ``known``: measure nothing.
    """

    seconds: float = 60.0
    first: int | None = FIRST
    again: bool = False
    patience: float = 60.0
    spread: int = 0
    known: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of tuning: the number of configurations done, of ``total``, and the best so far with its seconds."""

    done: int
    total: int
    best: str = ""
    seconds: float = 0.0


Show = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Tuned:
    """The results for an operator after tuning. ``times``: typical seconds by configuration; ``pick``: the cost model's
    favourite; ``measured``: the number of configurations measured now."""

    operator: Operator
    default: str
    pick: str
    times: Mapping[str, float]
    failures: Mapping[str, Failure]
    measured: int
    total: int
    seconds: float

    @property
    def best(self) -> str | None:
        """The fastest configuration; None if none could be measured."""
        return min(self.times, key=lambda c: (self.times[c], c)) if self.times else None


def operator_of(problem: Problem, target: Target) -> Operator:
    """The operator under which ``problem`` is recorded."""
    return Operator(problem.template, problem.shapes, problem.dtypes, problem.layout, str(target))


def tune_for(
    problem: Problem,
    target: Target,
    options: Options,
    isa: str | None,
    here: Conditions,
    database: Database,
    budget: Budget | float,
    show: Show | None = None,
) -> Tuned:
    """``tune`` for kernels that are compiled with ``options``; a budget may be just its seconds."""
    setting = Setting(target.cores, isa, options.fast_math, options.cache_dir, options.gpu)
    given = budget if isinstance(budget, Budget) else Budget(budget)
    return tune(problem, target, setting, here, database, given, show=show)


def tune(
    problem: Problem,
    target: Target,
    setting: Setting,
    here: Conditions,
    database: Database,
    budget: Budget | None = None,
    *,
    executor: Executor | None = None,
    show: Show | None = None,
    command: Sequence[str] = (),
) -> Tuned:
    """Measure configurations of ``problem``, and keep the results in ``database``.

    target, setting, here: the target of the kernels, how they are built, and the conditions on this machine. executor:
    runs jobs, anywhere; None is this machine. Raises TuningError when the database cannot be used, and
    KeyboardInterrupt after all results have been saved.
    """
    began = time.monotonic()
    space = space_of(problem, target)
    operator = operator_of(problem, target)
    known = _Known.of(database.records(operator), here)
    baseline = str(space.default)
    budget = budget or Budget()
    expected = {str(c): cost for c, cost in zip(space.configs, space.cycles, strict=True)}
    wanted = _wanted(space, budget, known, expected)
    passing: dict[str, Failure] = {}
    if wanted:
        database.ready()  # fail before spending minutes on results that could not be kept
        with closing(Workers(executor)) as workers:
            job = Job(operator, setting, (baseline,), patience=budget.patience, command=tuple(command))
            deadline = began + budget.seconds
            before = () if budget.again else known.heats(baseline)
            race = _Race(job, workers, database, here, deadline, show, len(wanted), expected, known.sure, before)
            race.run(wanted)
            passing = {config: failure for config, failure in race.failures.items() if not failure.lasts}
        known = _Known.of(database.records(operator), here)
    return Tuned(
        operator,
        baseline,
        str(space.configs[0]),
        known.times,
        {**passing, **known.failures},
        len(wanted),
        len(space.configs),
        time.monotonic() - began,
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """The records that are valid under the conditions here."""

    samples: dict[str, tuple[float, ...]]
    failures: dict[str, Failure]

    @property
    def times(self) -> dict[str, float]:
        return {config: typical(seconds) for config, seconds in self.samples.items()}

    @property
    def sure(self) -> frozenset[str]:
        """The configurations with more than a first look."""
        return frozenset(c for c, seconds in self.samples.items() if len(seconds) >= _ROUND)

    def heats(self, baseline: str) -> tuple[Heat, ...]:
        """The known results as heats of a race: the machine may be faster or slower now, and the baseline shows by how
        much. Each configuration keeps only its newest samples, so that records do not grow without bound."""
        if baseline not in self.sure:
            return ()
        newest = {c: seconds[-_KEPT:] for c, seconds in self.samples.items()}
        looks = {c: seconds for c, seconds in newest.items() if c not in self.sure}
        return (
            Heat({baseline: newest[baseline], **looks}, look=True),
            Heat({c: seconds for c, seconds in newest.items() if c in self.sure}),
        )

    @classmethod
    def of(cls, records: Iterable[Record], here: Conditions) -> _Known:
        fresh = [r for r in records if r.stale(here, time.time()) is None]
        return cls(
            {r.config: r.seconds for r in fresh if r.verdict is Verdict.OK},
            {r.config: Failure(r.verdict, r.reason) for r in fresh if r.verdict is not Verdict.OK},
        )


def _wanted(space: Space, budget: Budget, known: _Known, expected: Mapping[str, float]) -> list[str]:
    """The configurations to measure, the default first; empty when all are known. Failed ones are not tried again.
    Known ones are measured once more, together with new ones, only if they may be the best, or if their look is
    not to be believed, which happens after tuning was ended early."""
    if budget.known:
        return []
    doubts = doubtful(known.samples, known.sure, expected)
    texts = dict.fromkeys([str(space.default), *_chosen([str(c) for c in space.configs], budget)])
    left = [c for c in texts if budget.again or c not in known.failures]
    if budget.again:
        return left
    new = [c for c in left if c not in known.samples or c in doubts]
    if not new:
        return []
    near = survivors({c: (seconds,) * LOOKS for c, seconds in known.times.items()})[:_NEAR]
    return [c for c in left if c == left[0] or c in new or c in near]


def _chosen(configs: Sequence[str], budget: Budget) -> list[str]:
    """The configurations that a budget selects from an ordered space."""
    first = len(configs) if budget.first is None else budget.first
    rest = configs[first:]
    count = min(budget.spread, len(rest))
    return [*configs[:first], *(rest[n * len(rest) // count] for n in range(count))]


def _chunks(configs: Sequence[str]) -> list[Sequence[str]]:
    """Groups of configurations that are built together."""
    found: list[Sequence[str]] = []
    start = 0
    while start < len(configs):
        size = _CHUNKS[min(len(found), len(_CHUNKS) - 1)]
        found.append(configs[start : start + size])
        start += size
    return found


@dataclass(slots=True)
class _Race:
    job: Job
    workers: Workers
    database: Database
    here: Conditions
    deadline: float
    show: Show | None
    total: int
    expected: Mapping[str, float]
    sure: frozenset[str]
    before: tuple[Heat, ...]
    heats: list[Heat] = field(default_factory=list)
    built: dict[str, tuple[str, str]] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    conditions: Conditions | None = None

    @property
    def baseline(self) -> str:
        return self.job.configs[0]

    @property
    def samples(self) -> dict[str, tuple[float, ...]]:
        """The known samples of configurations that have not failed, including those of earlier races."""
        found = united((*self.before, *self.heats), self.baseline) if self.heats else {}
        return {c: seconds for c, seconds in found.items() if c not in self.failures}

    def run(self, wanted: Sequence[str]) -> None:
        """First looks in chunks, then rounds of the remaining ones, at least until the fastest was in a round."""
        self.look(wanted)
        self.keep()
        while samples := self.samples:
            left = next_round(samples, confirmed((*self.before, *self.heats)), self.expected)
            known = leader(samples) in confirmed(self.heats)
            if known and (not left or time.monotonic() >= self.deadline):
                break
            left = left or survivors(samples)
            if not self.do(self.measuring(left, _ROUND)).samples:
                break
            self.keep()

    def look(self, wanted: Sequence[str]) -> None:
        """Build every chunk, and measure each chunk as soon as it is built."""
        others = [c for c in wanted if c != self.baseline]
        chunks = _chunks(others) or [[]]
        pending: dict[Future[JobOutcome], Job] = {}
        for chunk in chunks:
            job = replace(self.job, configs=(self.baseline, *chunk))
            pending[self.workers.submit(job)] = job
        while pending:
            left = max(0.0, self.deadline - time.monotonic())
            done = first_done(pending, left)
            if not done and not self.gave_up(pending):
                continue
            for future in done:
                job = pending.pop(future)
                self.take(self.workers.outcome(job, future), look=True)
                if job.samples:
                    self.keep()
                sound = [c for c in job.configs[1:] if c not in self.failures]
                if not job.samples and self.baseline not in self.failures:
                    look = self.measuring(sound, LOOKS)
                    pending[self.workers.submit(look)] = look

    def gave_up(self, pending: dict[Future[JobOutcome], Job]) -> bool:
        """Drop builds that have not begun, once time is up. True if there is nothing left to wait for."""
        for future in [f for f, job in pending.items() if not job.samples and f.cancel()]:
            del pending[future]
        if pending:
            first_done(pending)
        return not pending

    def measuring(self, configs: Iterable[str], samples: int) -> Job:
        """A job that measures ``configs`` and the baseline."""
        others = [c for c in configs if c != self.baseline]
        return replace(self.job, configs=(self.baseline, *others), samples=samples, built=dict(self.built))

    def do(self, job: Job) -> JobOutcome:
        """Run a job to its end."""
        outcome = self.workers.outcome(job, self.workers.submit(job))
        self.take(outcome)
        return outcome

    def take(self, outcome: JobOutcome, look: bool = False) -> None:
        """Record the results of a job."""
        self.built.update(outcome.built)
        self.failures.update(outcome.failures)
        self.conditions = outcome.conditions or self.conditions
        if outcome.samples:
            self.heats.append(Heat({c: tuple(s) for c, s in outcome.samples.items()}, look))
        if self.show is not None:
            samples = self.samples
            done = len({c for heat in self.heats for c in heat.samples} | set(self.failures))
            best = leader(samples) if samples else ""
            self.show(Progress(done, self.total, best, typical(samples[best]) if samples else 0.0))

    def keep(self) -> None:
        """Write the results to the database, but no look at a configuration with better samples there."""
        conditions = self.conditions or self.here
        now = time.time()
        looked = self.sure - confirmed((*self.before, *self.heats))
        records = [
            Record(self.job.operator, c, Verdict.OK, conditions, now, s)
            for c, s in self.samples.items()
            if c not in looked
        ]
        records += [
            Record(self.job.operator, c, f.verdict, conditions, now, (), f.reason)
            for c, f in self.failures.items()
            if f.lasts
        ]
        self.database.add(records)
