"""GPU kernels broken in known ways, one mistake at a time: those of mutants.py and more of the asynchronous protocols;
and the rules for mistakes that change nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim.building import build_kernel
from taskmap.ir.errors import CompilerFailedError, InputError, SimulationError
from taskmap.ir.nodes import Kernel
from tests.cuda_proof.mutants import arguments, mutants
from tests.cuda_proof.proving import RUNS
from tests.cuda_proof.reference import exact
from tests.cuda_proof.subjects import LIMITS
from tests.schedules.cuda_running import simulated
from tests.schedules.running import Case

_CONDITION = re.compile(r"if \((.*)\) |(?:, | = )([^,;?=]+) \?")
_STEPS = 20_000_000
"""Steps after which a mutant counts as hanging, on a machine of any speed; no kernel here takes a tenth of them."""

_CALL = re.compile(r"(\s*)(tm_\w+)(<[^;]*?>)?\((.*)\);")
_DROPPED = {
    "tm_cp_async": "copy", "tm_tma_load": "copy", "tm_cp_async_wait": "wait gone", "tm_wgmma_wait": "wait gone",
    "tm_setmaxnreg": "registers",
}  # fmt: skip
_CHANGED = {  # of an argument of these: by how much it is changed
    "tm_mbarrier_init": ("count", ("1", "-1")),
    "tm_mbarrier_arrive_expect_tx": ("bytes", ("16", "-16")),
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """A kernel with one mistake, in a line of its text (0: in its parameters). before: the original text; part: the
    disabled part of it, if it is a condition."""

    kind: str
    line: int
    source: CudaSource
    before: str = ""
    part: str = ""

    def __str__(self) -> str:
        after = self.source.text.splitlines()[self.line - 1].strip() if self.line else str(self.source.maps)
        what = f" without {self.part}" if self.part else ""
        return f"{self.kind}{what}, line {self.line}: {self.before.strip()} -> {after or '(nothing)'}"


def mutations(source: CudaSource) -> Iterator[Mutation]:
    """Every mistake of every kind in every line, and in the boxes of TMA."""
    lines = source.text.splitlines()
    for m in mutants(source.text):
        line = lines[m.line - 1]
        condition = _CONDITION.search(line) if m.kind == "predicate" else None
        part = (condition[1] or condition[2]) if condition else ""
        yield Mutation(m.kind, m.line, replace(source, text=m.text), line, part)
    for number, line in enumerate(lines):
        for kind, changed in _protocol(line):
            yield _with(source, lines, number, kind, changed)
        for part, changed in _conditions(line):
            yield replace(_with(source, lines, number, "condition", changed), part=part)
        if number + 1 < len(lines) and _is_wait(line) and lines[number + 1].strip() == "tm_barrier();":
            swapped = [*lines[:number], lines[number + 1], line, *lines[number + 2 :]]
            yield Mutation("order", number + 1, replace(source, text="\n".join(swapped) + "\n"), line)
    for n, box in enumerate(source.maps):
        maps = (*source.maps[:n], replace(box, swizzle=0), *source.maps[n + 1 :])
        yield Mutation("swizzle", 0, replace(source, maps=maps), str(box))


def _with(source: CudaSource, lines: Sequence[str], number: int, kind: str, changed: str) -> Mutation:
    text = "\n".join([*lines[:number], changed, *lines[number + 1 :]]) + "\n"
    return Mutation(kind, number + 1, replace(source, text=text), lines[number])


def _is_wait(line: str) -> bool:
    return line.lstrip().startswith("tm_cp_async_wait<")


def _protocol(line: str) -> Iterator[tuple[str, str]]:
    call = _CALL.fullmatch(line)
    if call is None:
        return
    space, name, template, inside = call[1], call[2], call[3] or "", call[4]
    for prefix, kind in _DROPPED.items():
        wanted = name.startswith(prefix) and not name.endswith(("_commit", "_wait"))
        if name == prefix or (wanted and prefix not in ("tm_cp_async_wait", "tm_wgmma_wait")):
            yield kind, ""
    *given, last = arguments(inside)
    if name == "tm_mbarrier_wait":
        yield "parity", f"{space}{name}{template}({', '.join(given)}, 1 - ({last}));"
    if name in _CHANGED:
        kind, steps = _CHANGED[name]
        for step in steps:
            if int(last) + int(step) > 0:
                yield kind, f"{space}{name}{template}({', '.join(given)}, {int(last) + int(step)});"
    if name.startswith("tm_ldmatrix"):
        other = name.replace("_trans", "") if "_trans" in name else f"{name}_trans"
        yield "transposition", line.replace(f"{name}(", f"{other}(")
    if name.startswith("tm_wgmma_m"):
        yield "swizzle", line.replace("descriptor<128>", "descriptor<64>", 1)
        yield "swizzle", line.replace("1024)", "512)", 1)
        yield "copy", ""
    if name.startswith("tm_mma_"):
        yield "copy", ""


def _conditions(line: str) -> Iterator[tuple[str, str]]:
    """(one part of a conjunction, the line without it), for every part."""
    for whole in re.finditer(r"(?:if \(|, | = )([^,;?=]+ && [^,;?=]+?)(?=\) | \?)", line):
        parts = whole[1].split(" && ")
        for part in parts:
            if part.count("(") != part.count(")"):
                continue
            rest = " && ".join(p for p in parts if p is not part)
            yield part, f"{line[: whole.start(1)]}{rest}{line[whole.end(1) :]}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Mutants that change nothing: of ``kind``, if ``line`` matches the original text, ``then`` the line after it, and
    the disabled condition is all of ``part``. reason: why."""

    kind: str
    line: str
    reason: str
    part: str = ".*"
    then: str = ""

    def covers(self, m: Mutation) -> bool:
        """True if the rule applies to a mutant."""
        place = re.search(self.line, m.before)
        after = "\n".join(m.source.text.splitlines()[m.line : m.line + 1])
        fits = re.search(self.then, after) is not None and re.fullmatch(self.part, m.part) is not None
        return m.kind == self.kind and place is not None and fits


@dataclass(slots=True)
class Hunted:
    """The results for the mutants of one kernel. refused: no compiler accepts it; equivalent: survived by a rule."""

    caught: list[Mutation] = field(default_factory=list)
    refused: list[Mutation] = field(default_factory=list)
    equivalent: list[tuple[Mutation, Rule]] = field(default_factory=list)
    survived: list[Mutation] = field(default_factory=list)

    def kinds(self) -> dict[str, tuple[int, int]]:
        """For each kind the number caught, of those that change something."""
        found: dict[str, tuple[int, int]] = {}
        for caught, part in ((1, self.caught), (0, self.survived)):
            for m in part:
                before = found.get(m.kind, (0, 0))
                found[m.kind] = (before[0] + caught, before[1] + 1)
        return dict(sorted(found.items()))


def hunt(
    cases: Sequence[Case], kernel: Kernel, every: Sequence[Mutation], rules: Sequence[Rule] = (), jobs: int = 2
) -> Hunted:
    """Runs mutants in all ways until one notices. cases: of one task, on different arrays, one for each way."""
    references = [exact(c) for c in cases]

    def is_noticed(source: CudaSource) -> bool:
        for case, reference, (policy, seed) in zip(cases, references, RUNS, strict=True):
            try:
                if reference.error(simulated(case, kernel, source, seed, policy, _STEPS), LIMITS) > 1:
                    return True
            except (SimulationError, InputError, AssertionError):
                return True
        return False

    found = Hunted()
    with ThreadPoolExecutor(jobs) as pool:
        for m, built in [(m, pool.submit(build_kernel, m.source)) for m in every]:
            try:
                built.result()
            except CompilerFailedError:
                found.refused.append(m)
                continue
            rule = next((r for r in rules if r.covers(m)), None)
            if is_noticed(m.source):
                found.caught.append(m)
            elif rule is not None:
                found.equivalent.append((m, rule))
            else:
                found.survived.append(m)
    return found
