"""Single operators: eager mode and taskmap, and Inductor if asked, in interleaved rounds, forward and with gradients.

Operators that draw random numbers are timed and not compared. The error is the norm of the difference to the result
in float64, over that of the result; of gradients, those of the sum of squares.

python -m benchmarks operators [--only "sum of*" ...] [--dtype bf16] [--engines eager inductor taskmap] [--rounds N]
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from benchmarks.models import as_tensors
from benchmarks.models.spec import relative_error
from benchmarks.operators.case import Case
from benchmarks.operators.elementwise import ELEMENTWISE
from benchmarks.operators.images import IMAGES
from benchmarks.operators.movement import MOVEMENT
from benchmarks.operators.products import PRODUCTS
from benchmarks.operators.reductions import REDUCTIONS
from benchmarks.support.conditions import Probe
from benchmarks.support.harness import Protocol, geometric_mean, interleave
from benchmarks.support.report import Check, Report, parser, start

ENGINES = ("eager", "taskmap")
FAMILIES = {
    "elementwise": ELEMENTWISE,
    "reductions": REDUCTIONS,
    "movement": MOVEMENT,
    "images": IMAGES,
    "products": PRODUCTS,
}
RANDOM = ("dropout", "rand", "randn")
LEAST = 0.8
"""The speed relative to the better of the others, at least."""
MOST_ERROR = 4.0
"""The error over eager mode's, at most."""
NARROW = {"bf16": torch.bfloat16, "f16": torch.float16}
ROUNDING = {torch.float64: 2.2e-16, torch.float32: 1e-7, torch.float16: 1e-4, torch.bfloat16: 1e-3}
"""An error of eager mode's below this counts as this: about the rounding of results in the narrowest of the types, for
16 bits somewhat below it, so that an error of rounding is compared with eager mode's own."""

Run = Callable[..., tuple[Tensor, ...]]


def _forward(function: Callable[..., Any]) -> Run:
    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return as_tensors(function(*inputs))

    return run


def _backward(function: Callable[..., Any]) -> Run:
    """Gradients of the inputs that have any."""

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            loss = sum(y.square().sum() for y in as_tensors(function(*inputs)) if y.requires_grad)
            wanted = tuple(x for x in inputs if x.requires_grad)
            return torch.autograd.grad(loss, wanted)  # type: ignore[arg-type]

    return run


def _wide(x: Tensor) -> Tensor:
    made = x.detach().double() if x.is_floating_point() else x
    return made.requires_grad_(x.requires_grad)


def _error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest error; infinite where one is a NaN or an infinity and the other is not the same."""
    worst = 0.0
    for f, e in zip(found, exact, strict=True):
        if e.is_floating_point():
            finite = e.isfinite()
            if not torch.equal(f.double()[~finite].nan_to_num(), e[~finite].nan_to_num()):
                return math.inf
            here = relative_error((f.double()[finite],), (e[finite],)) if finite.any() else 0.0
            worst = max(worst, math.inf if math.isnan(here) else here)
    return worst


def measured(name: str, case: Case, backward: bool, engines: Sequence[str], protocol: Protocol, probe: Probe) -> Any:
    """One case in one direction."""
    torch.manual_seed(protocol.seed)
    inputs = case.inputs()
    if backward:
        inputs = tuple(x.requires_grad_() if x.is_floating_point() else x for x in inputs)
    direction = _backward if backward else _forward
    try:
        exact = direction(case.function)(*(_wide(x) for x in inputs))
    except RuntimeError:  # an operator that f64 lacks
        exact = None
    dtypes = {x.dtype for x in inputs if x.is_floating_point()} or {torch.float32}
    calls, errors = dict[str, Callable[[], object]](), dict[str, float]()
    for engine in engines:
        torch._dynamo.reset()
        run = direction(case.function if engine == "eager" else torch.compile(case.function, backend=engine))
        found = run(*inputs)
        known = exact is not None and not name.startswith(RANDOM)
        errors[engine] = _error(found, exact) if known else 0.0  # type: ignore[arg-type]
        calls[engine] = lambda run=run: run(*inputs)  # type: ignore[misc]
    kept = interleave(calls, protocol, name, probe).quiet(protocol.accept)
    best = min((e for e in engines if e != "taskmap"), key=lambda engine: kept.seconds(engine).median)
    return {
        "name": name + ", backward" * backward,
        "milliseconds": {engine: 1e3 * kept.seconds(engine).median for engine in engines},
        "speed": kept.speedup("taskmap", best).median,
        "best": best,
        "error_over_eager": errors["taskmap"] / max(errors["eager"], max(map(ROUNDING.__getitem__, dtypes))),
    }


def _chosen(patterns: Sequence[str]) -> Iterator[tuple[str, Case, bool]]:
    for family, cases in FAMILIES.items():
        for name, case in cases.items():
            if any(fnmatchcase(name, p) or family == p for p in patterns):
                yield from ((name, case, backward) for backward in (False, True)[: 1 + case.backward])


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 5, ENGINES)
    cli.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="operators, with * and ?, or families")
    cli.add_argument("--dtype", choices=("f32", *NARROW), default="f32", help="the type of operands of f32")
    Protocol.add_arguments(cli, window=0.05)
    cli.set_defaults(patience=2.0)
    arguments = cli.parse_args(argv)
    engines = arguments.engines
    dtype = NARROW.get(arguments.dtype)
    columns = ("operator", *(f"{e}, ms" for e in engines), "speed", "error")
    report = Report(f"operators_{arguments.dtype}" if dtype else "operators", start(arguments), columns)
    protocol, probe = Protocol.of(arguments, pause=0.005), Probe()
    for name, case, backward in _chosen(arguments.only):
        if dtype and not case.narrows:
            continue
        try:
            found = measured(name, case.of_type(dtype) if dtype else case, backward, engines, protocol, probe)
        except Exception as e:
            report.notes.append(f"{name}{', backward' * backward}: {type(e).__name__}: {str(e).splitlines()[0]}")
            print(report.notes[-1], file=sys.stderr)
            continue
        times = (f"{found['milliseconds'][engine]:.3f}" for engine in engines)
        row = (found["name"], *times, f"x{found['speed']:.2f}", f"{found['error_over_eager']:.2f}")
        report.enter(found, row, arguments.out)
        gc.collect()
    data: list[dict[str, Any]] = report.data
    if data:
        speeds = [f["speed"] for f in data]
        report.checks.append(Check("speed, geometric mean", geometric_mean(speeds), 1.0, at_most=False))
        report.checks.append(Check("speed, the least", min(speeds), LEAST, at_most=False))
        report.checks.append(
            Check("error over eager's, the most", max(f["error_over_eager"] for f in data), MOST_ERROR)
        )
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
