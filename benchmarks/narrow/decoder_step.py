"""One token through a decoder of 12 layers, 896 wide, with a cache of 256 positions, against eager and Inductor with
freezing, and beside the memory bandwidth of the same rounds: milliseconds, the part of the bandwidth that taskmap uses,
and the time of the fastest other engine over taskmap's.

Weights of bf16, of bytes with a scale for each row, and of four bits in groups of 32. With these, the other engines run
PyTorch's own product (`_weight_int4pack_mm_for_cpu`); bytes are written as torchao writes them. The bandwidth is that
of reading 256 MiB: the better of a sum and of a product with a vector. Errors count against float64, taskmap's at most
1.5 times eager's. Each kind of weights is measured in a process of its own; the results file is written anew after
each, and ``--resume`` keeps what it holds from the same conditions. About two minutes a kind.

python -m benchmarks.narrow.decoder_step [--kinds bf16 int8 int4] [--small] [--resume] [--rounds N]
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.models import as_tensors
from benchmarks.narrow import decoder
from benchmarks.narrow.compared import Entrant, compared
from benchmarks.narrow.each_case import measure_each
from benchmarks.support.engines import ENGINES
from benchmarks.support.harness import Protocol
from benchmarks.support.report import Check, Report, parser, start

ENGINE_NAMES = ("eager", "taskmap", "inductor-freezing")
CACHE = 256
LEAST, FASTER = 0.8, 1.2
"""The bounds on the part of the bandwidth, and on how many times as fast as the fastest other engine."""
_READ, _COLUMNS = 256 << 20, 4096
"""Bytes of the matrix of floats that shows the bandwidth, and its columns."""


def measured(kind: str, small: bool, engines: list[str], protocol: Protocol, threads: int) -> dict[str, Any]:
    """The facts of one kind of weights."""
    torch.set_num_threads(threads)
    torch.manual_seed(protocol.seed)
    with torch.no_grad():
        step = (decoder.DecoderStep(kind, 2, 128, 4, 2, 256) if small else decoder.DecoderStep(kind)).eval()
        args = step.inputs(CACHE)
        wide = decoder.replaced(copy.deepcopy(step), decoder.exact_linear).double()
        exact = as_tensors(wide(*(a.double() for a in args)))
        del wide
        theirs = decoder.replaced(copy.deepcopy(step), _packed) if kind == "int4" else step
        size = decoder.bytes_read(step, args)
        memory, vector = torch.ones(_READ // 4 // _COLUMNS, _COLUMNS), torch.ones(_COLUMNS)
        reads: dict[str, Callable[[], object]] = {"sum": memory.sum, "product": partial(torch.mv, memory, vector)}
        entrants = [Entrant(name, step if name == "taskmap" else theirs, args) for name in engines]
        found = compared(entrants, exact, protocol, reads)
    bandwidth = max(_READ / found["seconds"][name]["median"] for name in reads)
    found |= {"bytes": size, "bandwidth": bandwidth}
    if "taskmap" in found["seconds"]:
        found["share"] = size / found["seconds"]["taskmap"]["median"] / bandwidth
    return found


def _packed(layer: torch.nn.Module) -> torch.nn.Module:
    assert isinstance(layer, decoder.Nibbles)
    return decoder.PackedNibbles(layer)


def row(found: dict[str, Any], engines: list[str]) -> tuple[str, ...]:
    """The line of the table; of a failure, its reason."""
    if "failure" in found:
        return (found["name"], *[""] * (len(engines) + 3), found["failure"][:90])
    times = found["seconds"]
    cells = (f"{times[n]['median'] * 1e3:.2f}" if n in times else "failed" for n in engines)
    share = f"{found['share']:.0%}" if "share" in found else ""
    rates = (f"{found['bytes'] / 1e6:.0f}", f"{found['bandwidth'] / 1e9:.1f}", share)
    return (found["name"], *cells, *rates, f"x{found['speed']:.2f}" if "speed" in found else "")


def sum_up(report: Report) -> None:
    """The checks of each kind."""
    found: list[dict[str, Any]] = report.data
    for f in found:
        report.checks += [
            Check(f"{f['name']}: part of the memory bandwidth", f.get("share", float("nan")), LEAST, at_most=False),
            Check(f"{f['name']}: speed", f.get("speed", float("nan")), FASTER, at_most=False),
        ]


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 7, ENGINE_NAMES)
    cli.add_argument("--kinds", nargs="+", choices=list(decoder.KINDS), default=list(decoder.KINDS))
    cli.add_argument("--small", action="store_true", help="a small decoder, for a quick look")
    cli.add_argument("--resume", action="store_true", help="go on with a results file of the same conditions")
    Protocol.add_arguments(cli, window=0.4)
    arguments = cli.parse_args(argv)
    engines = ["eager", *(n for n in arguments.engines if n != "eager" and not ENGINES[n].missing())]
    header = ("weights, ms", *engines, "MB", "GB/s", "of it", "speed")
    report = Report("decoder_step", start(arguments), header)
    report.notes.append("small variant" if arguments.small else "published sizes")
    rounds, threads = Protocol.of(arguments), arguments.threads
    cases = [(kind, partial(measured, kind, arguments.small, engines, rounds, threads)) for kind in arguments.kinds]
    measure_each(report, arguments, engines, cases, row)
    sum_up(report)
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
