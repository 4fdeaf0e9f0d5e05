"""float32 matrix multiplication through each engine, compared with `torch.mm`: GFLOP/s, and the time of eager over
an engine's.

All sizes and engines are measured in the same rounds, so that 2039 may be compared with 2048. `mm` has two activations;
`linear` has a weight that is a parameter, which an engine may pack beforehand.

python -m benchmarks.matmul [--engines ...] [--rounds N]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models import relative_error
from benchmarks.support.engines import Run, choose
from benchmarks.support.functions import fresh_module
from benchmarks.support.harness import Protocol, Spread, interleave
from benchmarks.support.report import Check, Report, parser, start


def mm(self: Any, a: Tensor, b: Tensor) -> Tensor:
    """The forward of a product of two matrices."""
    return torch.mm(a, b)


def bmm(self: Any, a: Tensor, b: Tensor) -> Tensor:
    """The forward of a product of two batches of matrices."""
    return torch.bmm(a, b)


def linear(self: Any, a: Tensor) -> Tensor:
    """The forward of a product with a parameter, stored transposed as PyTorch's linear layers do."""
    return functional.linear(a, self.weight)


@dataclass(frozen=True, slots=True)
class Case:
    """(batch, m, k) times (batch, k, n); no batch where it is 0; the second operand is a parameter if `linear`."""

    batch: int
    m: int
    k: int
    n: int
    linear: bool = False

    @property
    def name(self) -> str:
        """As in 'mm 128x768x3072': m, k and n."""
        kind = "linear" if self.linear else "bmm" if self.batch else "mm"
        size = f"{self.m}x{self.k}x{self.n}"
        return f"{kind} {self.batch}x({size})" if self.batch else f"{kind} {size}"

    @property
    def flops(self) -> int:
        """Multiplications and additions of one call."""
        return 2 * max(self.batch, 1) * self.m * self.k * self.n

    def build(self, seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Module and inputs: standard normal, a parameter scaled by 1/sqrt(k)."""
        generator = torch.Generator().manual_seed(seed)
        lead = (self.batch,) if self.batch else ()
        a = torch.randn(*lead, self.m, self.k, generator=generator)
        if self.linear:
            return fresh_module(linear, {"weight": torch.randn(self.n, self.k, generator=generator) / self.k**0.5}), (
                a,
            )
        b = torch.randn(*lead, self.k, self.n, generator=generator)
        return fresh_module(bmm if self.batch else mm), (a, b)


BERT = ((128, 768, 768), (128, 768, 3072), (128, 3072, 768))
EVEN, ODD = Case(0, 2048, 2048, 2048), Case(0, 2039, 2039, 2039)
CASES = (
    *(Case(0, size, size, size) for size in (512, 1024)),
    EVEN,
    ODD,
    *(Case(0, *shape) for shape in BERT),
    Case(12, 128, 64, 128),
    Case(12, 128, 128, 64),
    *(Case(0, *shape, linear=True) for shape in BERT),
)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 7, ("eager", "taskmap"))
    Protocol.add_arguments(cli, window=0.15)
    arguments = cli.parse_args(argv)
    conditions = start(arguments)
    engines, notes = choose(["eager", *(n for n in arguments.engines if n != "eager")])
    names = [engine.name for engine in engines]
    report = Report("matmul", conditions, ("GFLOP/s", *names), notes=notes)
    calls: dict[str, Callable[[], object]] = {}
    with torch.no_grad():
        for case in CASES:
            for engine in engines:
                module, args = case.build(arguments.seed)
                reference = module(*args)
                run: Run = engine.prepare(module, args, {})
                error = relative_error((run(),), (reference,))
                if error > 1e-5:
                    raise SystemExit(f"{case.name}: {engine.name} differs from eager by {error:.1e}")
                calls[f"{engine.name}: {case.name}"] = run
    measured = interleave(calls, Protocol.of(arguments), label="matmul").quiet(arguments.accept)
    for case in CASES:
        cells = []
        for name in names:
            key = f"{name}: {case.name}"
            rate = Spread.of(case.flops / w.seconds / 1e9 for w in measured.windows if w.name == key)
            over = measured.speedup(key, f"eager: {case.name}")
            cells.append(rate.text(0) if name == "eager" else f"{rate.text(0)} x{over.text()}")
            report.data.append({"case": case.name, "engine": name, "gflops": asdict(rate), "speedup": asdict(over)})
            if name == "taskmap" and not case.linear:
                report.checks.append(Check(f"{case.name}: rate over torch's", over.median, 0.9, at_most=False))
        report.rows.append((case.name, *cells))
    for name in names:
        pair = measured.speedup(f"{name}: {ODD.name}", f"{name}: {EVEN.name}")
        scale = ODD.flops / EVEN.flops
        value = pair.median * scale
        report.notes.append(f"{name}: rate at {ODD.m} over rate at {EVEN.m}: {pair.text(scale=scale)}")
        if name == "taskmap":
            report.checks.append(Check(f"rate at {ODD.m} over rate at {EVEN.m}", value, 0.95, at_most=False))
    report.data += [asdict(window) for window in measured.windows]
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
