"""Training steps of small networks: eager mode, Inductor and taskmap in interleaved rounds.

A step is forward, backward and an update by SGD. Gradients are compared with eager mode's in float64, for several draws
of inputs, because the gradient of a relu jumps where its input is about 0; not where dropout draws numbers.

python -m benchmarks training [--only "language model*" ...] [--rounds N] [--threads N]
"""

from __future__ import annotations

import copy
import gc
import statistics
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models.spec import relative_error
from benchmarks.support.conditions import Probe
from benchmarks.support.harness import Protocol, geometric_mean, interleave
from benchmarks.support.report import Check, Report, parser, start
from benchmarks.training.networks import NETWORKS

ENGINES = ("eager", "inductor", "taskmap")
LEAST = 1.0
"""The speed relative to the better of eager mode and Inductor, at least."""
DRAWS = 5
"""The draws of inputs whose median error counts."""
MOST_ERROR = 4.0
"""The error of gradients over eager mode's, at most."""

Tensors = tuple[Tensor, ...]


def loss_of(network: Callable[..., Tensor], inputs: Tensors) -> Tensor:
    """A number to minimise: the network's own, or the mean square of its result."""
    result = network(*inputs)
    return result if result.dim() == 0 else result.square().mean()


def measured(name: str, protocol: Protocol, seed: int, probe: Probe) -> dict[str, Any]:
    """One network: seconds to the first step's end, milliseconds of a step, errors of gradients."""
    torch.manual_seed(seed)
    module, inputs = NETWORKS[name]()
    draws = [inputs, *(NETWORKS[name]()[1] for _ in range(DRAWS - 1))]
    wide = copy.deepcopy(module).double()
    exact = [_gradients(wide, tuple(x.double() if x.is_floating_point() else x for x in d), wide) for d in draws]
    steps: dict[str, Callable[[], object]] = {}
    compiling, errors = dict[str, float](), dict[str, float]()
    for engine in ENGINES:
        torch._dynamo.reset()
        own = copy.deepcopy(module)
        run = own if engine == "eager" else torch.compile(own, backend=engine)
        begin = time.perf_counter()
        _gradients(own, inputs, run)
        compiling[engine] = time.perf_counter() - begin
        errors[engine] = statistics.median(
            relative_error(_gradients(own, d, run), e) for d, e in zip(draws, exact, strict=True)
        )
        steps[engine] = _step(own, run, inputs)
    random = any(isinstance(m, nn.Dropout) and m.p for m in module.modules())
    kept = interleave(steps, protocol, name, probe).quiet(protocol.accept)
    best = min(("eager", "inductor"), key=lambda engine: kept.seconds(engine).median)
    return {
        "name": name,
        "milliseconds": {engine: 1e3 * kept.seconds(engine).median for engine in ENGINES},
        "speed": kept.speedup("taskmap", best).median,
        "best": best,
        "seconds_to_first_step": compiling,
        "error_over_eager": None if random else errors["taskmap"] / max(errors["eager"], 1e-12),
    }


def _gradients(module: nn.Module, inputs: Tensors, run: Callable[..., Tensor]) -> Tensors:
    module.zero_grad()
    loss_of(run, inputs).backward()  # type: ignore[no-untyped-call]
    return tuple(p.grad.detach().clone() for p in module.parameters() if p.grad is not None)


def _step(module: nn.Module, run: Callable[..., Tensor], inputs: Tensors) -> Callable[[], object]:
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-5)

    @torch.enable_grad()  # the harness turns it off
    def step() -> None:
        optimiser.zero_grad()
        loss_of(run, inputs).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    error = found["error_over_eager"]
    first = " / ".join(f"{found['seconds_to_first_step'][engine]:.1f}" for engine in ENGINES[1:])
    times = (f"{found['milliseconds'][engine]:.1f}" for engine in ENGINES)
    return (found["name"], *times, f"x{found['speed']:.2f}", first, "-" if error is None else f"{error:.2f}")


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 7, ENGINES)
    cli.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="networks, with * and ?")
    Protocol.add_arguments(cli, window=0.4)
    cli.set_defaults(patience=10.0)
    arguments = cli.parse_args(argv)
    header = ("network", *(f"{e}, ms" for e in ENGINES), "speed", "first step, s", "error / eager's")
    report = Report("training", start(arguments), header)
    protocol, probe = Protocol.of(arguments, pause=0.05), Probe()
    for name in NETWORKS:
        if any(fnmatchcase(name, pattern) for pattern in arguments.only):
            found = measured(name, protocol, arguments.seed, probe)
            report.enter(found, _row(found), arguments.out)
            gc.collect()
    data: list[dict[str, Any]] = report.data
    if data:
        speeds = [f["speed"] for f in data]
        errors = [f["error_over_eager"] for f in data if f["error_over_eager"] is not None]
        report.checks.append(Check("speed, geometric mean", geometric_mean(speeds), LEAST, at_most=False))
        report.checks.append(Check("speed, the least", min(speeds), LEAST, at_most=False))
        report.checks.append(Check("error over eager's, the most", max(errors, default=0.0), MOST_ERROR))
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
