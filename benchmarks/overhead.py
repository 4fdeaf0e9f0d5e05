"""Cost of one call of a compiled model with one operator on a small input: microseconds, and the ratio to Inductor's.

python -m benchmarks.overhead [--engines ...] [--rounds N]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from benchmarks.support.engines import choose
from benchmarks.support.functions import fresh_module
from benchmarks.support.harness import Protocol, interleave
from benchmarks.support.report import Check, Report, parser, start


def relu(self: Any, x: Tensor) -> Tensor:
    """The forward of a model with no parameters."""
    return torch.relu(x)


def scale(self: Any, x: Tensor) -> Tensor:
    """The forward of a model with one parameter."""
    scaled: Tensor = x * self.weight
    return scaled


def add(self: Any, x: Tensor, y: Tensor) -> Tensor:
    """The forward of a model with two inputs."""
    return x + y


OPERATORS: dict[str, tuple[Callable[..., Tensor], int]] = {"relu": (relu, 1), "scale": (scale, 1), "add": (add, 2)}
"""By name: forward, and number of inputs."""


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 9, ("eager", "taskmap", "inductor"))
    cli.add_argument("--width", type=int, default=16, help="elements of the input")
    Protocol.add_arguments(cli, window=0.1)
    arguments = cli.parse_args(argv)
    conditions = start(arguments)
    engines, notes = choose(arguments.engines)
    names = [engine.name for engine in engines]
    report = Report("overhead", conditions, ("operator, us a call", *names), notes=notes)
    torch.manual_seed(arguments.seed)
    for operator, (forward, inputs) in OPERATORS.items():
        args = tuple(torch.randn(arguments.width) for _ in range(inputs))
        weight = torch.randn(arguments.width)
        calls = {e.name: e.prepare(fresh_module(forward, {"weight": weight}), args, {}) for e in engines}
        measured = interleave(calls, Protocol.of(arguments), label=operator).quiet(arguments.accept)
        report.rows.append((operator, *(measured.seconds(name).text(2, scale=1e6) for name in names)))
        report.data.append({"operator": operator, "windows": [asdict(window) for window in measured.windows]})
        if "taskmap" in names and "inductor" in names:
            over = measured.speedup("inductor", "taskmap").median  # taskmap's time over inductor's
            report.checks.append(Check(f"{operator}: overhead of taskmap over inductor's", over, 1.5))
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
