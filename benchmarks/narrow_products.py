"""Products of bf16 and of bytes, compared with `torch.mm` and `torch._int_mm`: 10^9 operations per second, and the time
of eager over taskmap's.

Each product is measured twice: its second operand is a buffer of the module, which an engine may pack beforehand, or an
activation. All sizes are measured in the same rounds. Sums of bytes must equal eager's; errors of bf16 against float64
are at most 1.5 times eager's.

python -m benchmarks.narrow_products [--only bf16 s8s8 u8s8] [--sizes 512 2039 128x768x3072] [--rounds N]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import relative_error
from benchmarks.support.engines import compiled, eager
from benchmarks.support.functions import fresh_module
from benchmarks.support.harness import Protocol, Spread, interleave
from benchmarks.support.report import Check, Report, parser, start

SIZES = ("512", "1024", "2048", "2039", "128x768x768", "128x768x3072", "128x3072x768")
TYPES = {
    "bf16": (torch.bfloat16, torch.bfloat16),
    "s8s8": (torch.int8, torch.int8),
    "u8s8": (torch.uint8, torch.int8),
}
MOST = 1.5
"""The largest error of bf16, as a multiple of eager's."""


def mm(self: Any, a: Tensor, b: Tensor) -> Tensor:
    """The forward of a product of two activations."""
    return torch.mm(a, b)


def mm_held(self: Any, a: Tensor) -> Tensor:
    """The forward of a product with a buffer."""
    return torch.mm(a, self.b)


def int_mm(self: Any, a: Tensor, b: Tensor) -> Tensor:
    """The forward of a product of two activations of bytes."""
    found: Tensor = torch.ops.aten._int_mm(a, b)
    return found


def int_mm_held(self: Any, a: Tensor) -> Tensor:
    """The forward of a product of bytes with a buffer."""
    found: Tensor = torch.ops.aten._int_mm(a, self.b)
    return found


@dataclass(frozen=True, slots=True)
class Case:
    """m × k times k × n in the types of `kind`; the second operand is a buffer if `held`."""

    kind: str
    m: int
    k: int
    n: int
    held: bool

    @property
    def name(self) -> str:
        """As in 'bf16 128x768x3072, held': m, k and n."""
        return f"{self.kind} {self.m}x{self.k}x{self.n}" + (", held" if self.held else "")

    @property
    def operations(self) -> int:
        """Multiplications and additions of one call."""
        return 2 * self.m * self.k * self.n

    def build(self, seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Module and inputs: standard normal, or bytes of their whole range."""
        generator = torch.Generator().manual_seed(seed)
        a, b = (
            _draw(dtype, shape, generator)
            for dtype, shape in zip(TYPES[self.kind], ((self.m, self.k), (self.k, self.n)), strict=True)
        )
        free, held = (mm, mm_held) if self.kind == "bf16" else (int_mm, int_mm_held)
        module = fresh_module(held if self.held else free)
        if not self.held:
            return module, (a, b)
        module.register_buffer("b", b)
        return module, (a,)


def _draw(dtype: torch.dtype, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max + 1, shape, generator=generator, dtype=dtype)


def _check(case: Case, seed: int, result: Tensor) -> None:
    """Raises SystemExit if a result is wrong."""
    module, args = case.build(seed)
    wanted = module(*args)
    if case.kind != "bf16":
        if not torch.equal(result, wanted):
            raise SystemExit(f"{case.name}: the sums are not eager's")
        return
    a, b = (args[0], module.get_buffer("b")) if case.held else args
    exact = a.double() @ b.double()
    mine, theirs = (relative_error((x,), (exact,)) for x in (result, wanted))
    if mine > MOST * theirs:
        raise SystemExit(f"{case.name}: an error of {mine:.1e}, eager's is {theirs:.1e}")


def cases(kinds: list[str], sizes: list[str]) -> list[Case]:
    """Every product that is asked for. A size is one number, or three, as in '128x768x3072'."""
    found = []
    for kind, size, held in product(kinds, sizes, (True, False)):
        given = [int(n) for n in size.split("x")]
        m, k, n = given if len(given) == 3 else given * 3
        found.append(Case(kind, m, k, n, held))
    return found


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 7, ("eager", "taskmap"))
    cli.add_argument("--only", nargs="+", choices=tuple(TYPES), default=list(TYPES))
    cli.add_argument("--sizes", nargs="+", default=list(SIZES))
    Protocol.add_arguments(cli, window=0.1)
    arguments = cli.parse_args(argv)
    conditions = start(arguments)
    engines = {"eager": eager, "taskmap": compiled("taskmap")}
    report = Report("narrow_products", conditions, ("Gop/s", *engines))
    calls: dict[str, Callable[[], object]] = {}
    measured = cases(arguments.only, arguments.sizes)
    with torch.no_grad():
        for case in measured:
            for name, prepare in engines.items():
                module, args = case.build(arguments.seed)
                run = prepare(module, args, {})
                _check(case, arguments.seed, run())
                calls[f"{name}: {case.name}"] = run
        found = interleave(calls, Protocol.of(arguments), label="narrow products").quiet(arguments.accept)
    for case in measured:
        cells = []
        for name in engines:
            key = f"{name}: {case.name}"
            rate = Spread.of(case.operations / w.seconds / 1e9 for w in found.windows if w.name == key)
            over = found.speedup(key, f"eager: {case.name}")
            cells.append(rate.text(0) if name == "eager" else f"{rate.text(0)} x{over.text()}")
            report.data.append({"case": case.name, "engine": name, "gops": asdict(rate), "speedup": asdict(over)})
            if name == "taskmap":
                report.checks.append(Check(f"{case.name}: rate over eager's", over.median, 1.0, at_most=False))
        report.rows.append((case.name, *cells))
    report.data += [asdict(window) for window in found.windows]
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
