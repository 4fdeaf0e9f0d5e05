"""Flags for a compiler that generates wrong code: the first rung with which every sample is right."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from taskmap.backend.cpu.toolchain import Family, Safer, Toolchain
from taskmap.ir.target import Target
from taskmap.ir.util.waiting import each_done
from taskmap.trust.corpus import Sample, samples
from taskmap.trust.trial import faults
from taskmap.trust.verdict import Climb, Fault, Flags, Outcome, UntriedError

# Turning off statement vectorisation costs least, as kernels are written in vectors; loop vectorisation comes next.
RUNGS: dict[Family, tuple[Flags, ...]] = {
    "gcc": ((), ("-fno-tree-slp-vectorize",), ("-fno-tree-vectorize",), ("-O2", "-fno-tree-vectorize"), ("-O1",)),
    "clang": (
        *((), ("-fno-slp-vectorize",), ("-fno-slp-vectorize", "-fno-vectorize")),
        *(("-O2", "-fno-slp-vectorize", "-fno-vectorize"), ("-O1",)),
    ),
}


_SUSPECTS = 5
"""Kernels with integers that compilers are known to compile wrongly with the usual flags."""


def climb(toolchain: Toolchain, target: Target) -> Outcome:
    """Try ``toolchain`` with kernels for ``target``: with integers and without, each on its own ladder.

    Raises UntriedError when no rung compiles the samples, not even those without f16, which older compilers lack.
    """
    with ThreadPoolExecutor(2, "taskmap-trust") as pool:
        running: list[Future[Climb]] = []
        for integers in (True, False):  # the first batch compiles while the second is generated
            running.append(pool.submit(_climb, toolchain, list(samples(target, integers=integers)), integers))
        for _ in each_done(running):
            pass
        return Outcome(running[0].result(), running[1].result())


def _climb(toolchain: Toolchain, tried: Sequence[Sample], integers: bool) -> Climb:
    try:
        return _highest(toolchain, tried, integers)
    except UntriedError:
        others = [sample for sample in tried if not sample.has_halves]
        if len(others) == len(tried):
            raise
        return replace(_highest(toolchain, others, integers), halves=False)


def _highest(toolchain: Toolchain, tried: Sequence[Sample], integers: bool) -> Climb:
    """The first rung with which all samples are right. Raises UntriedError when no rung compiles them."""
    wrong: list[tuple[Flags, tuple[Fault, ...]]] = []
    refusals: list[UntriedError] = []
    for flags in RUNGS[toolchain.family]:
        try:
            found = _faults(tried, replace(toolchain, safer=Safer(flags, flags)), integers)
        except UntriedError as error:
            refusals.append(error)
            if "error:" in str(error):  # an error in the source, which no flags fix
                break
            found = [Fault("the compiler", f"fails: {error}")]
        if not found:
            return Climb(flags, len(tried), True, tuple(wrong))
        wrong.append((flags, tuple(found)))
    if len(refusals) > len(wrong) or len(refusals) == len(RUNGS[toolchain.family]):
        raise refusals[0]
    return Climb(None, len(tried), True, tuple(wrong))


def _faults(tried: Sequence[Sample], toolchain: Toolchain, integers: bool) -> list[Fault]:
    """The faults of the suspects alone, if they have any; else of all others at once, because each translation unit
    costs a prelude and a process."""
    alone = _SUSPECTS if integers and toolchain.safer == Safer() else 0
    return faults(tried[:alone], toolchain, integers=integers) or faults(tried[alone:], toolchain, integers=integers)
