"""Compilations in flows whose calls differ, compared with Inductor and with a backend that compiles nothing.

Two counts for each: *captured*, the graphs that TorchDynamo captured (its counter unique_graphs), of which each one
after the first calls is a recompilation; *compiled*, the graphs that the compiler got from AOTAutograd (forward,
backward, inference). aot_eager runs the same captured graphs in eager mode, and puts no condition on them: what it
counts is what the flow asks for. Every result is compared with eager's.

python -m benchmarks.recompilations [--flows ...] [--engines ...]
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from tqdm import tqdm

from benchmarks.support.engines import torch_backend
from benchmarks.support.flows import FLOWS, Flow
from benchmarks.support.report import Check, Report, parser, start
from taskmap.util.metrics import metrics

ENGINES = ("taskmap", "inductor", "aot_eager")


@dataclass(frozen=True, slots=True)
class Count:
    """Graphs captured by TorchDynamo, graphs given to the compiler, and why a result is wrong ("": it is right)."""

    captured: int
    compiled: int
    wrong: str = ""

    def __str__(self) -> str:
        return self.wrong or f"{self.captured} / {self.compiled}"


def count(flow: Flow, engine: str, seed: int = 0) -> Count:
    """The compilations of one flow under one engine."""
    torch.manual_seed(seed)
    wanted = flow(lambda function, **_: function)
    torch._dynamo.reset()
    counters.clear()
    made: list[int] = []
    backend = _backend(engine, made)
    before = metrics()
    torch.manual_seed(seed)
    # What AOTAutograd keeps on disk from another flow is still a graph that this flow asks to compile.
    kept = import_module("torch._functorch.config").patch(enable_autograd_cache=False)
    with warnings.catch_warnings(), kept:
        warnings.simplefilter("ignore")
        found = flow(partial(torch.compile, backend=backend))
    after = metrics()
    compiled = after.graphs + after.fallbacks - before.graphs - before.fallbacks if engine == "taskmap" else len(made)
    return Count(int(counters["stats"]["unique_graphs"]), compiled, _difference(found, wanted))


def _backend(engine: str, made: list[int]) -> Any:
    """The engine's backend, which enters each graph that it compiles in ``made``."""
    if engine == "taskmap":
        return torch_backend("taskmap")
    if engine == "aot_eager":
        compiler = _counted(lambda gm, _: gm.forward, made)
        partition = import_module("torch._functorch.partitioners").min_cut_rematerialization_partition
        return aot_autograd(fw_compiler=compiler, partition_fn=partition)
    inductor = import_module("torch._inductor.compile_fx")

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return inductor.compile_fx(gm, inputs, inner_compile=_counted(inductor.compile_fx_inner, made))

    return backend


def _counted(compiler: Callable[..., Any], made: list[int]) -> Callable[..., Any]:
    def compile_one(*args: Any, **kwargs: Any) -> Any:
        made.append(1)
        return compiler(*args, **kwargs)

    return compile_one


def _difference(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> str:
    try:
        torch.testing.assert_close(list(found), list(wanted), rtol=2e-3, atol=2e-4)
    except AssertionError as error:
        return f"wrong: {str(error).splitlines()[0]}"
    return ""


def main(argv: list[str] | None = None) -> int:
    """The command; `--rounds` is accepted for uniformity: counts do not vary."""
    cli = parser(__doc__ or "", 1, ENGINES)
    cli.add_argument("--flows", nargs="+", choices=list(FLOWS), default=list(FLOWS))
    arguments = cli.parse_args(argv)
    conditions = start(arguments)
    header = ("flow (captured / compiled)", *arguments.engines)
    report = Report("recompilations", conditions, header)
    worst = [0, 0]
    for name in tqdm(arguments.flows, desc="recompilations", leave=False, disable=None):
        counts = {engine: count(FLOWS[name], engine, arguments.seed) for engine in arguments.engines}
        report.rows.append((name, *map(str, counts.values())))
        report.data.append({"flow": name, **{e: [c.captured, c.compiled, c.wrong] for e, c in counts.items()}})
        ours, theirs = counts.get("taskmap"), counts.get("inductor")
        if ours is None:
            continue
        worst[1] += bool(ours.wrong)
        if theirs is not None:
            more = max(ours.captured - theirs.captured, ours.compiled - theirs.compiled)
            worst[0] = max(worst[0], more)
            if more > 0:
                report.notes.append(f"{name}: {more} more than Inductor")
    report.checks.append(Check("most compilations beyond Inductor's in a flow", worst[0], 0))
    report.checks.append(Check("flows with a wrong result", worst[1], 0))
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
