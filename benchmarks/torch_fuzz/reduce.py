"""The smallest program that fails in the same way: greedy, one simplification at a time, until none applies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from benchmarks.torch_fuzz.check import Verdict
from benchmarks.torch_fuzz.program import Input, Program

Fails = Callable[[Program], bool]
MOST_TRIES = 120
T = TypeVar("T")


def reduce(program: Program, verdict: Verdict, check: Callable[[Program], Verdict]) -> tuple[Program, Verdict]:
    """A program of the same kind of failure from which nothing can be taken, and its verdict."""
    tries = 0
    progress = True
    while progress and tries < MOST_TRIES:
        progress = False
        for smaller in simpler(program):
            tries += 1
            found = check(smaller)
            if found.kind == verdict.kind and _alike(found, verdict):
                program, verdict, progress = smaller, found, True
                break
            if tries >= MOST_TRIES:
                break
    return program, verdict


def _alike(a: Verdict, b: Verdict) -> bool:
    """Two verdicts are alike if their errors have the same class."""
    if a.kind != "error":
        return True
    return _class(a) == _class(b)


def _class(verdict: Verdict) -> str:
    return verdict.evidence.split(": ", 2)[1] if ": " in verdict.evidence else ""


def simpler(program: Program) -> Iterator[Program]:
    """Programs that are smaller by one step, the largest steps first."""
    for k in reversed(range(len(program.results))):
        if len(program.results) > 1:
            yield _clean(replace(program, results=_without(program.results, k)))
    for k in reversed(range(len(program.lines))):
        yield from _without_line(program, k)
    if program.grad:
        yield replace(program, grad=False)
    if program.dynamic or program.mark:
        yield replace(program, dynamic=None, mark=())
    for k in reversed(range(len(program.calls))):
        if len(program.calls) > 1:
            yield replace(program, calls=_without(program.calls, k))
    for k in reversed(range(len(program.inputs))):
        if len(program.inputs) > 1:
            used = any(re.search(rf"\b{program.inputs[k].name}\b", t) for t in (*program.lines, *program.results))
            if not used:
                yield replace(program, inputs=_without(program.inputs, k))
    for k, one in enumerate(program.inputs):
        for text in _plainer(one.text):
            yield replace(program, inputs=(*program.inputs[:k], Input(one.name, text), *program.inputs[k + 1 :]))
    for k, line in enumerate(program.lines):
        for text in _plainer_line(line):
            yield replace(program, lines=(*program.lines[:k], text, *program.lines[k + 1 :]))
    for k, sizes in enumerate(program.calls):
        for smaller in _fewer(sizes):
            yield replace(program, calls=(*program.calls[:k], smaller, *program.calls[k + 1 :]))


def _without(values: tuple[T, ...], k: int) -> tuple[T, ...]:
    return values[:k] + values[k + 1 :]


def _without_line(program: Program, k: int) -> Iterator[Program]:
    """Without a line; what used its result uses a value that the line was made of."""
    line, rest = program.lines[k], _without(program.lines, k)
    made = re.match(r"^((?:v\d+(?:, )?)+) = (.*)$", line)
    if made is None:
        yield _clean(replace(program, lines=rest))
        return
    names = made[1].split(", ")
    later = " ".join([*program.lines[k + 1 :], *program.results])
    if not any(re.search(rf"\b{n}\b", later) for n in names):
        yield replace(program, lines=rest)
        return
    for source in dict.fromkeys(re.findall(r"\b[vx]\d+\b", made[2])):
        renamed = [re.sub(rf"\b({'|'.join(names)})\b", source, text) for text in program.lines[k + 1 :]]
        results = tuple(source if r in names else r for r in program.results)
        yield _clean(replace(program, lines=(*program.lines[:k], *renamed), results=results))
    if len(names) == 1:  # or an argument of its own
        fresh = f"x{1 + max(int(i.name[1:]) for i in program.inputs)}"
        for text in ("numbers(1, (a, b, ), torch.float32)", "numbers(1, (a, ), torch.float32)"):
            renamed = [re.sub(rf"\b{names[0]}\b", fresh, line) for line in program.lines[k + 1 :]]
            results = tuple(fresh if r in names else r for r in program.results)
            lines = (*program.lines[:k], *renamed)
            yield _clean(replace(program, lines=lines, results=results, inputs=(*program.inputs, Input(fresh, text))))


def _clean(program: Program) -> Program:
    """The program without unused assignments."""
    lines: list[str] = []
    used = " ".join(program.results)
    for line in reversed(program.lines):
        made = re.match(r"^((?:v\d+(?:, )?)+) = (.*)$", line)
        writes = re.search(r"_\(|inplace", line)
        if made and not writes and not any(re.search(rf"\b{n}\b", used) for n in made[1].split(", ")):
            continue
        lines.insert(0, line)
        used += f" {line}"
    return replace(program, lines=tuple(lines))


def _plainer(text: str) -> Iterator[str]:
    """Simpler forms of an input: no view, no special values, f32, fewer axes."""
    made = re.match(r"^numbers\((\d+), (\(.*?\)), (torch\.\w+)(, -?\d+)?\)(.*)$", text)
    if made is None:
        return
    seed, shape, dtype, special, after = made.groups()
    special = special or ""
    grad = ".requires_grad_()" if "requires_grad_" in after else ""
    if after != grad:
        yield f"numbers({seed}, {shape}, {dtype}{special}){grad}"
    if grad:
        yield f"numbers({seed}, {shape}, {dtype}{special}){after.replace(grad, '')}"
    if special:
        yield f"numbers({seed}, {shape}, {dtype}){after}"
    if dtype != "torch.float32":
        yield f"numbers({seed}, {shape}, torch.float32{special}){after}"
    axes = re.findall(r"[^(), ][^,()]*", shape)
    for k in range(len(axes)):
        if after == grad:
            fewer = "".join(f"{n}, " for n in _without(tuple(axes), k))
            yield f"numbers({seed}, ({fewer}), {dtype}{special}){after}"


def _plainer_line(line: str) -> Iterator[str]:
    """An expression without one of its calls of methods at the end, or without parentheses around."""
    made = re.match(r"^(v\d+) = (.*)$", line)
    if made is None:
        return
    shorter = re.sub(r"\.\w+\([^()]*\)$", "", made[2])
    if shorter != made[2]:
        yield f"{made[1]} = {shorter}"


def _fewer(sizes: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    for k, n in enumerate(sizes):
        for smaller in sorted({1, 2, n // 2, n - 1}):
            if 0 < smaller < n:
                yield (*sizes[:k], smaller, *sizes[k + 1 :])  # type: ignore[misc]
