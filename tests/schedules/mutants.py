"""Generated CUDA C++ broken in known ways, one at a time: a simulator that notices nothing proves nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from taskmap.backend.cuda.cuda_source import CudaSource
from taskmap.backend.sim.run import Policy
from taskmap.ir.errors import CompilerFailedError, SimulationError
from taskmap.ir.nodes import Kernel
from tests.schedules.cuda_running import simulated
from tests.schedules.running import Case, compare_outputs

_BARRIER = re.compile(r"\s*tm_(barrier|warp_sync|barrier_sync|cluster_arrive|cluster_wait|mbarrier_wait)\(.*\);.*")
_COMMIT = re.compile(r"\s*tm_\w+_commit\(\);.*")
_FENCE = re.compile(r"\s*tm_(fence_proxy_async|fence_mbarrier_init|wgmma_fence)\(\);.*")
_ARRIVAL = re.compile(r"\s*tm_mbarrier_arrive\w*\(.*\);.*")
_WAIT = re.compile(r"(tm_(?:cp_async|wgmma|tma)_wait(?:_read)?)<(\d+)>")
_MEMORY = re.compile(r"tm_(?:shared|global)<[^>]*>\s+(\w+)")
_REST = re.compile(r"% ([2-6])(?=\D)")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A kernel with one mistake; line: of its text, counted from 1."""

    kind: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind} in line {self.line}: {self.text.splitlines()[self.line - 1].strip() or '(nothing)'}"


def mutants(text: str) -> Iterator[Mutant]:
    """Every mistake of every kind, in every line of a kernel's body."""
    lines = text.splitlines()
    names = sorted(set(_MEMORY.findall(text)), key=len, reverse=True)
    first = next(i for i, line in enumerate(lines) if line == "{")
    for i in range(first + 1, len(lines)):
        for kind, changed in _changes(lines[i], names):
            yield Mutant(kind, i + 1, "\n".join([*lines[:i], changed, *lines[i + 1 :]]) + "\n")


def _changes(line: str, names: list[str]) -> Iterator[tuple[str, str]]:
    kinds = (("barrier", _BARRIER), ("commit", _COMMIT), ("fence", _FENCE), ("arrival", _ARRIVAL))
    for kind, pattern in kinds:
        if pattern.fullmatch(line):
            yield kind, ""
    if wait := _WAIT.search(line):
        yield "wait", line.replace(wait[0], f"{wait[1]}<{int(wait[2]) + 1}>")
    if "tm_shared_at" in line or line.lstrip().startswith("//"):
        return
    for name in names:
        if re.search(rf"\b{name}\[", line):
            yield "index", re.sub(rf"\b{name}\[", f"{name}[1 + ", line, count=1)
        elif re.search(rf"\b{name} \+ ", line):
            yield "index", re.sub(rf"\b{name} \+ ", f"{name} + 8 + ", line, count=1)
    if " ^ " in line:
        yield "swizzle", line.replace(" ^ ", " + 0 * ")
    if re.search(r"\bif \(", line):
        yield "predicate", re.sub(r"\bif \(", "if (true || ", line, count=1)
    elif " ? " in line and re.search(r" (<|>|<=|>=|==) ", line):
        yield "predicate", line.replace(" ? ", " || true ? ", 1)
    if any(name in line for name in names) or re.search(r"\b(slot|stage|step)", line):
        for rest in _REST.finditer(line):
            if rest[1] != "6":
                yield "stage", line[: rest.start()] + f"% {int(rest[1]) - 1 or 1}" + line[rest.end() :]


@dataclass(slots=True)
class Tally:
    """How many mutants were caught, by kind, and which were not."""

    caught: dict[str, int]
    total: dict[str, int]
    missed: list[Mutant]

    def __str__(self) -> str:
        counts = ", ".join(f"{kind} {self.caught.get(kind, 0)}/{n}" for kind, n in sorted(self.total.items()))
        return f"{sum(self.caught.values())} of {sum(self.total.values())} mutants caught ({counts})"


def hunt(cases: Sequence[Case], kernel: Kernel, source: CudaSource, tolerance: Mapping[str, float], each: int) -> Tally:
    """Run mutants of a kernel, of each kind up to ``each``, evenly chosen. cases: of one task, on different arrays."""
    by_kind: dict[str, list[Mutant]] = {}
    for mutant in mutants(source.text):
        by_kind.setdefault(mutant.kind, []).append(mutant)
    tally = Tally({}, {}, [])
    for kind, found in by_kind.items():
        for number in range(min(each, len(found))):
            mutant = found[number * len(found) // min(each, len(found))]
            caught = is_caught(cases, kernel, replace(source, text=mutant.text), tolerance)
            if caught is None:
                continue
            tally.total[kind] = tally.total.get(kind, 0) + 1
            if caught:
                tally.caught[kind] = tally.caught.get(kind, 0) + 1
            else:
                tally.missed.append(mutant)
    return tally


_RUNS: tuple[tuple[int, Policy], ...] = ((0, "late"), (1, "early"), (2, "late"))


def is_caught(cases: Sequence[Case], kernel: Kernel, source: CudaSource, tolerance: Mapping[str, float]) -> bool | None:
    """Whether a mistake is noticed: a problem, or a wrong result, in some order of threads, with late or early copies.

    None where the text does not compile, which is noticed before.
    """
    for case, (seed, policy) in zip(cases, _RUNS, strict=True):
        try:
            compare_outputs(case, simulated(case, kernel, source, seed, policy), tolerance)
        except CompilerFailedError:
            return None
        except (SimulationError, AssertionError):
            return True
    return False
