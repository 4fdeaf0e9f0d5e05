"""Many architectures with random weights in f32 against eager; with --peers also Inductor (freezing) and ONNX Runtime.

Engines are interleaved. An error counts against float64, at most four times eager's. "speed" is the time of the fastest
other engine over taskmap's, a median over rounds with its range. For each model: the three kernels that lose most time
against their roofline. The results file is written anew after each case; ``--resume`` keeps what it holds from the same
conditions. ``--telling`` takes thirty architectures that show most cliffs; ``--compile-only`` fills the caches of all
engines, so that a run in a quiet hour does little else than measure. About 40 minutes of eager and taskmap, several
hours with --peers.

python -m benchmarks sweep [--only NAME ...] [--telling] [--kinds ...] [--batches 1 8] [--peers] [--small] [--resume]
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from typing import Any

import torch

from benchmarks.support.engines import ENGINES
from benchmarks.support.harness import Protocol, geometric_mean
from benchmarks.support.report import Check, Report, earlier, parser, start
from benchmarks.sweep.apart import apart
from benchmarks.sweep.entries import ENTRIES
from benchmarks.sweep.measure import Case, compile_seconds, measured

PEERS = ("inductor-freezing", "onnxruntime")
WORST, MEAN = 0.95, 1.25
"""The bounds on how many times as fast as the fastest other engine: of every case, and of the geometric mean."""
LONGEST = 900
"""Seconds of work after which a case is given up."""
TELLING = (
    "resnet50", "mobilenet_v1", "mobilenet_v2", "mobilenet_v3", "efficientnet_b0", "shufflenet_v2", "squeezenet1.1",
    "densenet121", "poolformer_s12", "convnext_tiny", "unet", "segformer_b0", "yolo_n", "dcgan", "espcn", "vit_b_16",
    "swin_tiny", "mlp_mixer", "bert_base", "distilbert", "gpt2", "llama", "decoder_step", "mamba2_small",
    "whisper_tiny_encoder", "deepspeech2", "lstm_512", "gat", "dlrm", "patchtst",
)  # fmt: skip
"""One or two architectures for each kind of work: convolutions, attention, small products, recurrences, gathers."""


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 5, ("taskmap",))
    cli.add_argument("--only", nargs="+", default=[], help="architectures of these names, or that hold one as a word")
    cli.add_argument("--telling", action="store_true", help=f"{len(TELLING)} architectures of all kinds")
    cli.add_argument("--compile-only", action="store_true", help="call every engine once, to fill its caches")
    cli.add_argument("--kinds", nargs="+", default=[], help="architectures of these kinds only")
    cli.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    cli.add_argument("--peers", action="store_true", help="also against " + " and ".join(PEERS))
    cli.add_argument("--small", action="store_true", help="small variants, for a quick look")
    cli.add_argument("--no-kernels", action="store_true", help="without the kernels furthest from their roofline")
    cli.add_argument("--resume", action="store_true", help="go on with a results file of the same conditions")
    Protocol.add_arguments(cli, window=0.2)
    cli.set_defaults(patience=10.0)
    arguments = cli.parse_args(argv)
    report = Report("sweep", start(arguments), ())
    engines = [*arguments.engines, *(PEERS if arguments.peers else ())]
    engines = [name for name in ("taskmap", *dict.fromkeys(engines)) if not ENGINES[name].missing()]
    engines = list(dict.fromkeys(engines))
    report.header = _header(engines)
    report.notes.append("small variants" if arguments.small else "published sizes")
    protocol = Protocol.of(arguments, pause=0.3 if "onnxruntime" in engines else 0.02)
    kept = earlier(arguments.out / "sweep.json", report.conditions) if arguments.resume else {}
    for module in ("torch._dynamo", "transformers", "taskmap.torch_backend"):
        import_module(module)  # once, before the forks
    cases = chosen(arguments)
    if arguments.compile_only:
        for case in cases:
            print(case, apart(partial(_compiled, case, engines, arguments.threads), LONGEST), flush=True)
        return 0
    kept = {name: found for name, found in kept.items() if set(engines) <= set(found["engines"])}
    for case in (*(c for c in cases if str(c) in kept), *(c for c in cases if str(c) not in kept)):
        found = kept.get(str(case))  # first those that are known: a run that is stopped again loses none of them
        if found is None:
            work = partial(_in_child, case, engines, protocol, not arguments.no_kernels, arguments.threads)
            found = {"name": str(case), "kind": case.entry.kind, "batch": case.batch, "right": False}
            found |= apart(work, LONGEST)
        report.enter(found, row(found, engines), arguments.out)
    sum_up(report)
    return report.finish(arguments)


def chosen(arguments: Any) -> list[Case]:
    """The cases that the command line asks for. A name stands for itself alone, another word for all names with it."""
    words = (*arguments.only, *(TELLING if arguments.telling else ()))
    entries = [
        e
        for e in ENTRIES.values()
        if (not words or any(w == e.name if w in ENTRIES else w in e.name for w in words))
        and (not arguments.kinds or e.kind in arguments.kinds)
    ]
    return [Case(entry, batch, arguments.small) for entry in entries for batch in arguments.batches]


def _compiled(case: Case, engines: list[str], threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    return compile_seconds(case, engines)


def _in_child(case: Case, engines: list[str], protocol: Protocol, kernels: bool, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    return measured(case, engines, protocol, kernels)


def _header(engines: list[str]) -> tuple[str, ...]:
    times = (f"{name}, ms" for name in ("eager", *engines))
    return ("architecture", "kind", *times, "speed", "compile, s", "error", "kernels", "loses most")


def row(found: dict[str, Any], engines: list[str]) -> tuple[str, ...]:
    """The line of the table; of a failure, its reason."""
    problem = found.get("failure") or found["engines"]["taskmap"].get("error")
    if problem:
        return (found["name"], found["kind"], *[""] * (len(engines) + 1), "", "", "", "", problem[:90])
    times = found["milliseconds"]
    facts = found["engines"]["taskmap"]
    worst = (found.get("furthest") or [None])[0]
    return (
        found["name"],
        found["kind"],
        *(f"{times[n]['median'] * 1e3:.2f}" if n in times else "failed" for n in ("eager", *engines)),
        f"x{found['speed']:.2f}",
        f"{facts['first_call_seconds']:.1f}",
        f"{facts['relative_error']:.1e}",
        str(found.get("kernels", "")),
        f"{worst['lost_seconds'] * 1e3:.2f} ms at {worst['roofline']:.0%}: {worst['operators'][:60]}" if worst else "",
    )


def sum_up(report: Report) -> None:
    """The checks: all results are right, and the speeds; notes on what is wrong or outside of the compiled graph."""
    found: list[dict[str, Any]] = report.data
    wrong = [f for f in found if not f["right"]]
    for f in wrong:
        report.notes.append(f"{f['name']}: {f.get('failure') or f['engines']['taskmap']['error']}")
    for f in found:
        outside = [*f.get("externs", ()), *f.get("fallbacks", ())]
        if outside or f.get("graphs", 1) > 1:
            report.notes.append(
                f"{f['name']}: {f['graphs']} graphs, outside of them: {', '.join(outside) or 'nothing'}"
            )
    report.checks.append(Check("architectures that are wrong or refused", len(wrong), 0))
    rates = [f["speed"] for f in found if f["right"] and "speed" in f]
    if rates:
        report.checks.append(Check("speed, geometric mean", geometric_mean(rates), MEAN, at_most=False))
        report.checks.append(Check("speed, slowest", min(rates), WORST, at_most=False))
        level = sum(rate >= 1 for rate in rates) / len(rates)
        report.checks.append(Check("part of the cases at least as fast as the others", level, 0.9, at_most=False))


if __name__ == "__main__":
    sys.exit(main())
