"""Flags for a compiler that is wrong: the first rung with which every sample is right."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from taskmap.backend.cpu.toolchain import Family, Safer, Toolchain
from taskmap.ir.target import Target
from taskmap.trust.corpus import Sample, samples
from taskmap.trust.trial import faults
from taskmap.trust.verdict import Climb, Fault, Flags, Outcome, UntriedError

# What vectorises statements is the least loss: kernels are written in vectors. What vectorises loops is the next.
RUNGS: dict[Family, tuple[Flags, ...]] = {
    "gcc": ((), ("-fno-tree-slp-vectorize",), ("-fno-tree-vectorize",), ("-O2", "-fno-tree-vectorize"), ("-O1",)),
    "clang": (
        *((), ("-fno-slp-vectorize",), ("-fno-slp-vectorize", "-fno-vectorize")),
        *(("-O2", "-fno-slp-vectorize", "-fno-vectorize"), ("-O1",)),
    ),
}


_FIRST = 5


def climb(toolchain: Toolchain, target: Target) -> Outcome:
    """Try ``toolchain`` with kernels for ``target``: those with integers, those without, each on a ladder of its own.

    Raises UntriedError when no rung compiles the samples.
    """
    with ThreadPoolExecutor(2, "taskmap-trust") as pool:
        running: list[Future[Climb]] = []
        count = 0
        for integers in (True, False):  # the first are compiled while the others are being generated
            tried = list(samples(target, integers=integers))
            running.append(pool.submit(_climb, toolchain, tried, integers))
            count += len(tried)
        return Outcome(running[0].result(), running[1].result(), count)


def _climb(toolchain: Toolchain, tried: Sequence[Sample], integers: bool) -> Climb:
    wrong: list[tuple[Flags, tuple[Fault, ...]]] = []
    refusal: UntriedError | None = None
    for flags in RUNGS[toolchain.family]:
        try:
            found = _faults(tried, replace(toolchain, safer=Safer(flags, flags)), integers)
        except UntriedError as error:
            refusal = refusal or error
            found = [Fault("the compiler", f"refuses them: {error}")]
        if not found:
            return Climb(flags, tuple(wrong))
        wrong.append((flags, tuple(found)))
    if refusal is not None and all(fault.kernel == "the compiler" for _, found in wrong for fault in found):
        raise refusal
    return Climb(None, tuple(wrong))


def _faults(tried: Sequence[Sample], toolchain: Toolchain, integers: bool) -> list[Fault]:
    """The faults of the first few samples, which are the likeliest; where these are right, of the others."""
    return faults(tried[:_FIRST], toolchain, integers=integers) or faults(tried[_FIRST:], toolchain, integers=integers)
