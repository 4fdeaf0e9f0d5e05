"""Networks in bf16, batch 1, against eager bf16, Inductor with freezing and OpenVINO computing in bf16: milliseconds,
and the time of the fastest other engine over taskmap's.

The weights are those of the float32 networks, rounded. An error counts against float64 with the same weights, at most
1.5 times eager's. Each network is measured in a process of its own, all engines in the same rounds; the results file is
written anew after each, and ``--resume`` keeps what it holds from the same conditions. About three minutes a network,
most of them spent by the other engines' compilers.

python -m benchmarks.narrow.networks [--models ...] [--engines ...] [--small] [--resume] [--rounds N]
"""

from __future__ import annotations

import copy
import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.models import MODELS, as_tensors, to_float64
from benchmarks.narrow.compared import Entrant, compared
from benchmarks.narrow.each_case import check_speeds, measure_each
from benchmarks.support.engines import ENGINES
from benchmarks.support.harness import Protocol
from benchmarks.support.report import Report, parser, start

NETWORKS = ("bert_base", "vit_b_16", "gpt2", "llama", "resnet50", "mobilenet_v2")
ENGINE_NAMES = ("eager", "taskmap", "inductor-freezing", "openvino-bf16")
WORST, MEAN = 1.0, 1.1
"""The bounds on how many times as fast as the fastest other engine: of every network, and of the geometric mean."""


def measured(name: str, small: bool, engines: list[str], protocol: Protocol, threads: int) -> dict[str, Any]:
    """The facts of one network."""
    torch.set_num_threads(threads)
    module, args, kwargs = MODELS[name].build(protocol.seed, small)
    module = module.bfloat16()
    narrow = tuple(_narrowed(a) for a in args)
    with torch.no_grad():
        wide, wide_args = to_float64(module, narrow)
        exact = as_tensors(wide(*wide_args, **kwargs))
        del wide
    floats = Entrant("openvino-bf16", copy.deepcopy(module).float(), args, kwargs)  # it rounds by itself
    entrants = [floats if name == floats.engine else Entrant(name, module, narrow, kwargs) for name in engines]
    return compared(entrants, exact, protocol)


def _narrowed(a: Tensor) -> Tensor:
    return a.bfloat16() if a.is_floating_point() else a


def row(found: dict[str, Any], engines: list[str]) -> tuple[str, ...]:
    """The line of the table; of a failure, its reason."""
    if "failure" in found:
        return (found["name"], *[""] * len(engines), found["failure"][:90])
    times = found["seconds"]
    cells = (f"{times[n]['median'] * 1e3:.1f}" if n in times else "failed" for n in engines)
    return (found["name"], *cells, f"x{found['speed']:.2f}" if "speed" in found else "")


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 7, ENGINE_NAMES)
    cli.add_argument("--models", nargs="+", choices=list(MODELS), default=list(NETWORKS))
    cli.add_argument("--small", action="store_true", help="small variants, for a quick look")
    cli.add_argument("--resume", action="store_true", help="go on with a results file of the same conditions")
    Protocol.add_arguments(cli, window=0.4)
    arguments = cli.parse_args(argv)
    engines = ["eager", *(n for n in arguments.engines if n != "eager" and not ENGINES[n].missing())]
    protocol = Protocol.of(arguments, pause=0.3 if any(ENGINES[n].own_threads for n in engines) else 0.02)
    report = Report("narrow_networks", start(arguments), ("network, ms", *engines, "speed"))
    report.notes.append("small variants" if arguments.small else "published sizes")
    cases = [(n, partial(measured, n, arguments.small, engines, protocol, arguments.threads)) for n in arguments.models]
    measure_each(report, arguments, engines, cases, row)
    check_speeds(report, "networks", MEAN, WORST)
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
