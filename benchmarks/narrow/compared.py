"""Measures one network of narrow types under several engines: errors against float64, times in the same rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import as_tensors, relative_error
from benchmarks.support.conditions import Probe
from benchmarks.support.engines import ENGINES, Run
from benchmarks.support.harness import Protocol, interleave
from benchmarks.sweep.measure import speeds

MOST, OTHERS = 1.5, 4.0
"""The error against float64 that taskmap and the other engines may have, as a multiple of eager's."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """An engine by name, and the module and arguments that it is given."""

    engine: str
    module: nn.Module
    args: tuple[Tensor, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def compared(
    entrants: Sequence[Entrant],
    exact: tuple[Tensor, ...],
    protocol: Protocol,
    others: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, Any]:
    """The facts of a case, JSON values only: the first entrant is eager. An engine that fails or is wrong has an
    "error" entry and no times. ``exact``: the results in float64; ``others``: further calls, measured in the same
    rounds."""
    runs: dict[str, Run] = {}
    facts: dict[str, dict[str, Any]] = {}
    with torch.no_grad():
        for entrant in entrants:
            begin = time.perf_counter()
            try:
                run = ENGINES[entrant.engine].prepare(entrant.module, entrant.args, entrant.kwargs)
                error = relative_error(as_tensors(run()), exact)
            except Exception as problem:  # an engine's failure is a finding of the table, not the end of it
                facts[entrant.engine] = {"error": f"{type(problem).__name__}: {problem}".strip().splitlines()[0]}
                continue
            allowed = (MOST if entrant.engine == "taskmap" else OTHERS) * facts.get("eager", {}).get(
                "relative_error", error
            )
            seconds = time.perf_counter() - begin
            facts[entrant.engine] = {"first_call_seconds": seconds, "relative_error": error, "allowed": allowed}
            if error <= allowed:
                runs[entrant.engine] = run
            else:
                facts[entrant.engine]["error"] = f"wrong result: relative error {error:.1e}, allowed {allowed:.1e}"
        kept = interleave({**runs, **(others or {})}, protocol, probe=Probe()).quiet(protocol.accept)
    found: dict[str, Any] = {"engines": facts, "right": "error" not in facts["taskmap"]}
    found["seconds"] = {name: asdict(kept.seconds(name)) for name in (*runs, *(others or ()))}
    return found | speeds(kept, list(runs))
