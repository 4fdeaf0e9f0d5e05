"""Measures one architecture at one batch: errors against float64, times beside others, the kernels that lose most."""

from __future__ import annotations

import copy
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import as_tensors, relative_error
from benchmarks.support.conditions import Probe
from benchmarks.support.engines import ENGINES, Run
from benchmarks.support.harness import Measurement, Protocol, interleave
from benchmarks.sweep.entry import Entry, Inputs
from taskmap.report.explain import explain
from taskmap.report.presentation import Report as Explained

MOST = 4.0
"""The error against float64 that is allowed, as a multiple of f32 eager's."""
ROUNDING = torch.finfo(torch.float32).eps
"""The least that eager's error counts as: it may be smaller by luck."""
SHOWN = 3
"""Kernels reported for a model."""


@dataclass(frozen=True, slots=True)
class Case:
    """An architecture at a batch; ``small`` asks for its small variant."""

    entry: Entry
    batch: int
    small: bool = False

    def __str__(self) -> str:
        return f"{self.entry.name}, batch {self.batch}"


def measured(case: Case, engines: list[str], protocol: Protocol, kernels: bool) -> dict[str, Any]:
    """The facts of a case, JSON values only. An engine that fails or is wrong has an "error" entry and no times.

    engines: eager is always measured, and first.
    """
    entry = case.entry
    module, inputs = (
        entry.build(protocol.seed, case.small),
        entry.inputs(protocol.seed, case.batch, case.small),
    )
    parameters = sum(p.numel() for p in module.parameters())
    found: dict[str, Any] = {"name": str(case), "kind": entry.kind, "batch": case.batch, "parameters": parameters}
    with torch.no_grad():
        runs, found["engines"] = prepared(module, inputs, engines)
        found["right"] = "error" not in found["engines"]["taskmap"]
        kept = interleave(runs, protocol, str(case), Probe()).quiet(protocol.accept)
        found["milliseconds"] = {name: asdict(kept.seconds(name)) for name in runs}
        found |= speeds(kept, list(runs))
        if kernels and found["right"]:
            found |= lost(explain(module, *inputs))
    return found


def compile_seconds(case: Case, engines: list[str]) -> dict[str, Any]:
    """The seconds of each engine's first call, or its failure."""
    module, inputs = case.entry.build(0, case.small), case.entry.inputs(0, case.batch, case.small)
    with torch.no_grad():
        _, facts = prepared(module, inputs, engines, check=False)
    return {name: found.get("error", round(found.get("first_call_seconds", 0.0), 1)) for name, found in facts.items()}


def prepared(
    module: nn.Module, inputs: Inputs, engines: list[str], check: bool = True
) -> tuple[dict[str, Run], dict[str, dict[str, Any]]]:
    """The engines that are right, and for each its error and the seconds until its first result. Unless ``check``, an
    engine is right that is near eager."""
    expected = as_tensors(module(*inputs))
    exact = in_float64(module, inputs) if check else None
    reference = expected if exact is None else exact
    bound = 1e-3 if exact is None else MOST * max(relative_error(expected, exact), ROUNDING)
    runs: dict[str, Run] = {}
    facts: dict[str, dict[str, Any]] = {}
    for name in ("eager", *(n for n in engines if n != "eager")):
        begin = time.perf_counter()
        try:
            run = ENGINES[name].prepare(module, inputs, {})
            outputs = as_tensors(run())
            seconds = time.perf_counter() - begin
            error = _error(outputs, reference)
        except Exception as problem:  # an engine's failure is a finding of the table, not the end of it
            facts[name] = {"error": f"{type(problem).__name__}: {problem}".strip().splitlines()[0]}
            continue
        facts[name] = {"first_call_seconds": seconds, "relative_error": error, "allowed": bound}
        if error <= bound:
            runs[name] = run
        else:
            facts[name]["error"] = f"wrong result: relative error {error:.1e}, allowed {bound:.1e}"
    return runs, facts


def _error(outputs: tuple[Tensor, ...], reference: tuple[Tensor, ...]) -> float:
    """`relative_error`; infinities that stand in the same places with the same sign are equal."""
    pairs = list(zip(outputs, reference, strict=True))
    if any(not torch.equal(x.isinf() * x.sign(), r.isinf() * r.sign().to(x.dtype)) for x, r in pairs):
        return float("inf")
    zeroed = [(x.masked_fill(x.isinf(), 0), r.masked_fill(r.isinf(), 0)) for x, r in pairs]
    return relative_error(tuple(x for x, _ in zeroed), tuple(r for _, r in zeroed))


def in_float64(module: nn.Module, inputs: Inputs) -> tuple[Tensor, ...] | None:
    """The results in float64; None where the module works in f32 only, or computes partly in it."""
    wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        results = as_tensors(copy.deepcopy(module).double()(*wide))
    except (RuntimeError, TypeError):
        return None
    finally:
        torch.set_default_dtype(default)
    floats = [r for r in results if r.is_floating_point()]
    return results if all(r.dtype == torch.float64 for r in floats) else None


def speeds(kept: Measurement, names: list[str]) -> dict[str, Any]:
    """The fastest of the other engines, and how many times as fast taskmap is: by median and by the fastest calls."""
    others = [name for name in names if name != "taskmap"]
    if "taskmap" not in names or not others:
        return {}
    best = min(others, key=lambda name: kept.seconds(name).median)
    speed = kept.speedup("taskmap", best)
    return {
        "best_other": best,
        "speed": speed.median,
        "speed_range": [speed.low, speed.high],
        **({"speed_over_eager": kept.speedup("taskmap", "eager").median} if "eager" in others else {}),
        "speed_of_the_fastest_calls": kept.best(best) / kept.best("taskmap"),
    }


def lost(explained: Explained) -> dict[str, Any]:
    """Counts of kernels, and those whose fastest runs lose most seconds against their roofline."""
    often = [g for g in explained.groups if not g.once and g.time.fastest is not None]
    rows: list[dict[str, Any]] = []
    for group in often:
        least, fastest = explained.least(group), group.time.fastest
        if least is None or not fastest:
            continue
        text = group.roles.anchor or ", ".join((*group.roles.prologue, *group.roles.fused, *group.roles.epilogue)[:4])
        over = max(fastest - least, 0.0) * group.time.calls
        rows.append({
            "operators": text, "line": group.line.place, "schedule": group.code.schedule, "roofline": least / fastest,
            "seconds": fastest * group.time.calls, "lost_seconds": over, "operations": group.work.operations,
            "bytes": group.work.bytes,
        })  # fmt: skip
    rows.sort(key=lambda row: -row["lost_seconds"])
    return {
        "graphs": len(explained.graphs),
        "kernels": len(often),
        "externs": sorted({e.target for e in explained.externs}),
        "fallbacks": [g.fallback for g in explained.graphs if g.fallback],
        "seconds_in_kernels": explained.seconds,
        "furthest": rows[:SHOWN],
    }
