"""Reports on a model: `taskmap.explain`, and `explain_onnx` for an ONNX model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from taskmap.backend.program.executable import TimedRun
from taskmap.compile.session import Compilation, Fallback, Session, new_session
from taskmap.ir.errors import InputError
from taskmap.options import Options
from taskmap.report.collect import Recorded, account
from taskmap.report.kernels import with_kernels
from taskmap.report.presentation import Report
from taskmap.report.records import HostReport
from taskmap.report.text import THESE_SIZES
from taskmap.targets.torch_devices import device_among
from taskmap.torch_backend import compile_captured
from taskmap.util.private_compile import private_compile, reachable, unchanged

if TYPE_CHECKING:
    from taskmap.onnx.model import OnnxModel

RUNS = 15
FEWEST_RUNS = 3
SECONDS = 4.0
"""Limits on measuring: RUNS runs, or fewer (at least FEWEST_RUNS) once they took this long."""


def explain(
    model: Callable[..., Any], *args: Any, options: Mapping[str, object] | None = None, **kwargs: Any
) -> Report:
    """A report on `torch.compile(model, backend="taskmap", options=options)` called with these arguments.

    The model, a module or a function, is compiled as it would be here (inference under no_grad, else training) and run
    several times, every kernel timed by itself; in training also with the gradients of all its results. Nothing else
    changes: earlier compilations, buffers, arguments, ``grad`` and random numbers stay as they are. To explain a model
    with an argument called options, pass a function that calls it. Raises InvalidOptionError, InputError when
    ``model`` cannot be called, and the errors of calling it.
    """
    function = getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", None) or model
    if not callable(function):
        raise InputError(
            f"cannot explain {type(model).__name__}", hint="Pass a module or a function, then its arguments."
        )
    chosen = replace(Options.from_user(None, options), profile=True, cuda_graphs=False)
    session = new_session(chosen, device_among(reachable(function, (args, kwargs))))
    record: list[Compilation | Fallback] = []
    session.record = record
    backend = partial(compile_captured, session=session)
    with unchanged(function, (args, kwargs)), private_compile(function, backend) as compiled:
        leaves = [t for t in reachable(function, (args, kwargs)) if t.requires_grad and t.is_leaf]
        measured = _measure(lambda: _run(partial(compiled, *args, **kwargs), leaves), record)
    return _report(measured, session, getattr(function, "__name__", type(function).__name__))


def explain_onnx(model: OnnxModel, inputs: Mapping[str, Any], name: str = "") -> Report:
    """A report on an ONNX model that was loaded with the option ``profile``, called with these inputs.

    name: its name in the report. Raises InputError for a model that was loaded without the option, and the errors of
    calling it.
    """
    session = model.session
    if session is None or not session.options.profile:
        raise InputError("the model was loaded without a profile", hint="Load it with Options(profile=True).")
    record: list[Compilation | Fallback] = []
    session.record = record
    measured = _measure(lambda: model(inputs), record)
    report = _report(measured, session, name)
    if model.refusals:
        said = "; ".join(map(str, model.refusals))
        report = replace(report, conditions=(*report.conditions, (THESE_SIZES, said)))
    between = tuple(HostReport(h.operator, h.node, h.reason) for h in model.on_host if h.between)
    if not model.on_host:
        return report
    said = "; ".join(f"{h}{', between graphs' if h.between else ''}" for h in model.on_host)
    return replace(report, host=between, conditions=(*report.conditions, ("on the host", said)))


def _report(measured: _Measured, session: Session, name: str) -> Report:
    threads = session.options.threads or torch.get_num_threads()
    report = account(measured.graphs, str(session.target), threads, measured.runs)
    return with_kernels(report, measured.graphs, session, name)


def _run(call: Callable[[], Any], leaves: Sequence[torch.Tensor]) -> None:
    """Calls the model and, if its results have gradients, computes those of ``leaves`` and discards them."""
    results = [t for t in tree_leaves(call()) if isinstance(t, torch.Tensor) and t.requires_grad]
    if results and leaves:
        torch.autograd.grad(results, leaves, [torch.ones_like(t) for t in results], allow_unused=True)


@dataclass(frozen=True, slots=True)
class _Measured:
    graphs: list[Recorded]
    runs: int


def _measure(run: Callable[[], object], record: list[Compilation | Fallback]) -> _Measured:
    """Compiles, warms up and measures; returns every graph then in ``record``, with its timed runs."""
    run()
    prepared = {compilation: compilation.take_runs()[1] for compilation in _compilations(record)}
    run()
    for compilation in _compilations(record):
        compilation.take_runs()
    taken: dict[Compilation, list[TimedRun]] = {}
    began = time.perf_counter()
    done = 0
    while done < RUNS and (done < FEWEST_RUNS or time.perf_counter() - began < SECONDS):
        run()
        done += 1
        for compilation in _compilations(record):
            taken.setdefault(compilation, []).extend(compilation.take_runs()[0])
    return _Measured([_recorded(graph, prepared, taken, done) for graph in record], done)


def _recorded(
    graph: Compilation | Fallback,
    prepared: Mapping[Compilation, Sequence[TimedRun]],
    taken: Mapping[Compilation, Sequence[TimedRun]],
    runs: int,
) -> Recorded:
    if isinstance(graph, Fallback):
        return Recorded(graph)
    main = tuple(taken.get(graph, ()))
    return Recorded(graph, main, tuple(prepared.get(graph, ())), len(main) / runs)


def _compilations(record: Iterable[Compilation | Fallback]) -> list[Compilation]:
    return [graph for graph in record if isinstance(graph, Compilation)]
