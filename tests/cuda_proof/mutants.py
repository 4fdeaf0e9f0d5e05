"""Generated CUDA C++ broken in known ways, one at a time: a simulator that notices none of them proves nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BARRIER = re.compile(r"\s*tm_(barrier|warp_sync|barrier_sync|cluster_\w+|mbarrier_wait)\(.*\);.*")
_COMMIT = re.compile(r"\s*tm_\w+_commit\(\);.*")
_FENCE = re.compile(r"\s*tm_(fence_proxy_async|fence_mbarrier_init|fence_gpu|wgmma_fence)\(\);.*")
_ARRIVAL = re.compile(r"\s*tm_mbarrier_arrive\w*\(.*\);.*")
_WAIT = re.compile(r"(tm_(?:cp_async|wgmma|tma)_wait(?:_read)?)<(\d+)>")
_MEMORY = re.compile(r"tm_(?:shared|global)<[^>]*>\s+(\w+)")
_ATOMIC = re.compile(r"tm_atomic_(?:add|max)_\w+\((\w+) \+ ([^,;]+), ([^;]+)\);")
_LIMITED = re.compile(r"tm_(?:min|max)<\w+(?: \w+)*>\(")
_SHUFFLE = re.compile(r"(tm_shuffle_xor<\d+>\(.*, )(\d+)\)")
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
        for place in re.finditer(rf"\b{name}\[", line):
            yield "index", f"{line[: place.end()]}1 + {line[place.end() :]}"
        for place in re.finditer(rf"\b{name} \+ ", line):
            yield "index", f"{line[: place.end()]}8 + {line[place.end() :]}"
    if " ^ " in line:
        yield "swizzle", line.replace(" ^ ", " + 0 * ")
    if re.search(r"\bif \(", line):
        yield "predicate", re.sub(r"\bif \(", "if (true || ", line, count=1)
    elif " ? " in line and re.search(r" (<|>|<=|>=|==) ", line):
        yield "predicate", line.replace(" ? ", " || true ? ", 1)
    for limited in _LIMITED.finditer(line):
        yield from _unlimited(line, limited)
    if atomic := _ATOMIC.search(line):
        name, at, value = atomic.groups()
        yield "atomic", line.replace(atomic[0], "0;")
        yield "atomic", line.replace(atomic[0], f"{name}[{at}] = {name}[{at}] + {value};")
    if shuffle := _SHUFFLE.search(line):
        yield "lane", line.replace(shuffle[0], f"{shuffle[1]}{int(shuffle[2]) // 2})")
    if any(name in line for name in names) or re.search(r"\b(slot|stage|step)", line):
        for rest in _REST.finditer(line):
            if rest[1] != "6":
                yield "stage", line[: rest.start()] + f"% {int(rest[1]) - 1 or 1}" + line[rest.end() :]


def _unlimited(line: str, limited: re.Match[str]) -> Iterator[tuple[str, str]]:
    """tm_min(i, n) becomes i, if n is a number."""
    found = arguments(line[limited.end() :])
    if len(found) == 2 and re.fullmatch(r"\d+", found[0]) is None and re.fullmatch(r"\d+", found[1]):
        rest = line[limited.end() :].split(f", {found[1]})", 1)[1]
        yield "limit", f"{line[: limited.start()]}({found[0]}){rest}"


def arguments(inside: str) -> list[str]:
    """The arguments of a call after its opening parenthesis, split at its own commas."""
    found, depth = [""], 0
    for c in inside:
        depth += (c in "(<[") - (c in ")>]")
        if depth < 0:
            break
        if c == "," and depth == 0:
            found.append("")
        else:
            found[-1] += c
    return [a.strip() for a in found]
