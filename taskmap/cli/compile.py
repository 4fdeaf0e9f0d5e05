"""`taskmap compile model.onnx -o model.taskmap`: an archive that runs without compiling."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from taskmap.archive.conditions import conditions_of, plan_text, shapes_of
from taskmap.archive.file import SUFFIX
from taskmap.archive.manifest import Machine
from taskmap.cli.loading import slowly
from taskmap.cli.model_files import check_model_file
from taskmap.cli.options import cache_dir_option, folder_of, isa_option
from taskmap.cli.output import Bar, command, plain, positive, print_json, seconds, size
from taskmap.cli.shapes import dimension_sizes, shape_option
from taskmap.cli.targets import chosen, target_or_gpu
from taskmap.ir.errors import InputError
from taskmap.options import Options

# --help does not need onnx.
_compile_onnx: Callable[..., Any] = slowly("taskmap.archive.write", "compile_onnx", "onnx")
_load: Callable[..., Any] = slowly("taskmap.graph.importers.onnx", "load", "onnx")
_specs_of: Callable[..., Any] = slowly("taskmap.cli.run.onnx", "specs_of", "onnx")


def main(arguments: Sequence[str]) -> int:
    """Compile the model named by the options."""
    a = parser().parse_args(arguments)
    output = a.output or a.model.with_suffix(SUFFIX)
    if output.resolve() == a.model.resolve():
        raise InputError("the archive would overwrite the model", hint="Name another file: -o model.taskmap")
    check_model_file(a.model)
    target_kind, gpu = chosen(a.target, a.gpu)
    options = Options(
        target=target_kind, gpu=gpu, isa=a.isa, threads=a.threads, tune_seconds=a.tune, cache_dir=folder_of(a)
    )
    began = time.perf_counter()
    progress = _Progress(quiet=a.json)
    try:
        written = _compile_onnx(a.model, output, sizes=_sizes(a), options=options, progress=progress.show)
    finally:
        progress.close()
    _report(a, output, written, time.perf_counter() - began)
    return 0


def parser() -> argparse.ArgumentParser:
    """The options of `taskmap compile`."""
    p = command(
        "compile",
        "Compile an ONNX model into an archive of kernels, weights and plan, which `taskmap run` loads without "
        "compiling.\n"
        "An archive holds native code, for machines like this one or for a GPU, which need not be present: run only\n"
        "those that you trust.",
        "taskmap compile model.onnx -o model.taskmap --shape batch=1,8\n         taskmap run model.taskmap\n"
        "         taskmap compile model.onnx -o model.gpu.taskmap --target sm_90a",
    )
    p.add_argument("model", type=Path, help="the model's file")
    p.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"the archive (the model's name with {SUFFIX})")
    shape_option(p, "each size gets a plan; without this option, one plan serves all sizes if possible")
    target = "cpu, cuda, cuda-sim, or a GPU as for --gpu (cpu)"
    p.add_argument("--target", type=target_or_gpu, default="cpu", metavar="TARGET", help=target)
    p.add_argument("--gpu", help="the GPU's name or instruction set (this machine's GPU, or else sm_80)")
    isa_option(p)
    cache_dir_option(p)
    p.add_argument("--threads", type=positive, help="the number to plan for and to run on")
    p.add_argument("--tune", type=seconds, metavar="SECONDS", help="measure configurations of its operators first")
    return p


def _sizes(a: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """Sizes by dimension. Raises InputError for dimensions that the model lacks."""
    if all(shape.name and not shape.extents for shape in a.shape):
        found: dict[str, tuple[int, ...]] = {}
        for shape in a.shape:
            found[shape.name] = tuple(dict.fromkeys((*found.get(shape.name, ()), *shape.sizes)))
    else:  # an input's shape gives the sizes of the model's dimensions there
        found = dimension_sizes(a.shape, _specs_of(_load(a.model).inputs))
    for name, sizes in found.items():
        if 0 in sizes:
            raise InputError(f"the dimension {name!r} has the size 0", why="a plan needs sizes of at least 1.")
    return found


def _report(a: argparse.Namespace, output: Path, written: Any, took: float) -> None:
    manifest = written.manifest
    content = hashlib.sha256()
    with open(output, "rb") as file:
        while piece := file.read(8 << 20):
            content.update(piece)
    kernels = {s.symbol for p in manifest.plans for s in p.program.steps}
    facts = {
        "archive": str(output),
        "sha256": content.hexdigest(),
        "bytes": written.bytes,
        "kernel_bytes": written.kernel_bytes,
        "weight_bytes": manifest.weight_bytes,
        "kernels": len(kernels),
        "weights": len(manifest.weights),
        "plans": [
            {
                "shapes": shapes_of(manifest, p),
                "conditions": conditions_of(manifest, p),
                "launches": len(p.program.steps),
            }
            for p in manifest.plans
        ],
        "target": {name: getattr(manifest.machine, name) for name in ("kind", "isa", "gpu", "threads")},
        "assumed": dict(written.assumed),
        "seconds": took,
    }
    if a.json:
        print_json(facts)
        return
    for name, n in written.assumed.items():
        print(f"the dimension {plain(name)} is assumed to be {n} (--shape {plain(name)}=...)")
    print(
        f"{plain(str(output))}: {size(written.bytes)}: {len(kernels)} kernels ({size(written.kernel_bytes)}), "
        f"{len(manifest.weights)} weights ({size(manifest.weight_bytes)}), in {took:.1f} s"
    )
    for plan in manifest.plans:
        print(f"plan for {plain(plan_text(manifest, plan))}: {len(plan.program.steps)} launches")
    print(_runs_on(manifest.machine))
    print(f"sha256 {facts['sha256']}")


def _runs_on(machine: Machine) -> str:
    if machine.kind == "cuda":
        return f"for GPUs that run code for {machine.gpu}"
    cpus = f"for CPUs with {machine.isa}, planned for {machine.threads} threads"
    return f"{cpus}, in the simulator of {machine.gpu}" if machine.gpu else cpus


class _Progress:
    """A progress bar for each piece of work; in a pipe, one line when it begins."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._what = ""
        self._bar: Bar | None = None

    def show(self, what: str, done: int, total: int) -> None:
        """``done`` of ``total`` of ``what``."""
        if self._quiet:
            return
        if what != self._what:
            self.close()
            self._what, self._bar = what, Bar(what)
            if not sys.stderr.isatty():
                print(f"taskmap: {what}", file=sys.stderr, flush=True)
        if self._bar is not None and sys.stderr.isatty():
            self._bar.show(done, total)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
