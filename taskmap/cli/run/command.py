"""`taskmap run`: runs an ONNX model, or an archive written by `taskmap compile`; times, compares and profiles it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taskmap.archive.file import is_archive
from taskmap.cli.loading import slowly
from taskmap.cli.model_files import check_model_file
from taskmap.cli.options import cache_dir_option, folder_of, isa_option
from taskmap.cli.output import command, count, positive, seconds, tolerance
from taskmap.cli.run.compare import WAYS
from taskmap.cli.run.inputs import named_file, named_range
from taskmap.cli.shapes import shape_option
from taskmap.cli.targets import GPU_HELP
from taskmap.ir.errors import InputError
from taskmap.ir.util.lazy import lazily
from taskmap.onnx.kept_models import Request, candidates
from taskmap.options import TARGETS

# An archive runs without onnx.
_run_onnx: Callable[..., int] = slowly("taskmap.cli.run.onnx", "run_model", "onnx")
if TYPE_CHECKING:
    from taskmap.cli.run.archive import run_archive as _run_archive
else:
    _run_archive = lazily("taskmap.cli.run.archive", "run_archive")


def main(arguments: Sequence[str]) -> int:
    """Run the model named by the options; 1 if a comparison found a difference."""
    a = parser().parse_args(arguments)
    if is_archive(a.model):
        return _run_archive(a) or 0
    if a.onnx is not None or a.sha256 is not None:
        raise InputError("--onnx and --sha256 are for archives", why=f"{a.model} is not one.")
    check_model_file(a.model)
    request = _request(a)
    for kept in () if request is None else candidates(request):
        status = _run_archive(a, kept)
        if status is not None:
            return status
    return _run_onnx(a, request)


def _request(a: argparse.Namespace) -> Request | None:
    """The request under which this run would be kept; None if it does more than run a model on the CPU."""
    if a.fresh or a.profile or a.layers or a.trace is not None or a.tune is not None:
        return None
    if a.gpu is not None or a.target not in (None, "cpu"):
        return None
    asked = (f"isa={a.isa}", f"threads={a.threads}")
    folder = folder_of(a)
    return Request(a.model, asked, None if folder is None else Path(folder), tuple(s.text for s in a.shape))


def parser() -> argparse.ArgumentParser:
    """The options of `taskmap run`."""
    p = command(
        "run",
        "Run an ONNX model, or an archive written by `taskmap compile`, with inputs from files or random ones.\n"
        "An archive holds native code: run only those that you trust.",
        "taskmap run model.onnx --shape batch=8 --repeat 20 --compare onnxruntime\n"
        "         taskmap run model.taskmap --shape batch=8 --repeat 20",
    )
    model_options(p)
    p.add_argument("--save", type=Path, metavar="FILE.npz", help="write the outputs")
    p.add_argument("--warmup", type=count, default=1, help="untimed runs before the timed ones (1)")
    p.add_argument("--repeat", type=positive, default=1, help="timed runs (1)")
    p.add_argument(
        "--compare", choices=WAYS, help="compare with numpy by the operators' definitions, or with ONNX Runtime"
    )
    layers = "with --compare: compare every node's results, and name the first that differs"
    p.add_argument("--layers", action="store_true", help=layers)
    p.add_argument("--onnx", type=Path, metavar="FILE", help="the model's file, to compare an archive with")
    p.add_argument(
        "--rtol", type=tolerance, default=1e-3, help="tolerance of a comparison, relative to each value (1e-3)"
    )
    p.add_argument("--atol", type=tolerance, default=1e-4, help="absolute tolerance (1e-4)")
    p.add_argument("--profile", action="store_true", help="the time, bytes and operations of every kernel")
    p.add_argument("--trace", type=Path, metavar="FILE", help="with --profile: a Chrome trace of the last run")
    p.add_argument("--tune", type=seconds, metavar="SECONDS", help="measure configurations of its operators first")
    p.add_argument("--fresh", action="store_true", help="read and compile the model, ignoring results of earlier runs")
    p.add_argument("--sha256", metavar="DIGEST", help="run an archive only if its file has this SHA-256")
    return p


def model_options(p: argparse.ArgumentParser) -> None:
    """Add the options for a model, its inputs and the device that runs it."""
    file = "an input as .npy, .pb or raw .bin, or several as .npz or a folder of test data"
    p.add_argument("model", type=Path, help="the model's file")
    p.add_argument("--input", action="append", default=[], type=named_file, metavar="[NAME=]FILE", help=file)
    shape_option(p, "for random inputs; sizes that are not given are 1")
    span = "range of random inputs (-1:1, integers 0:2)"
    p.add_argument("--range", action="append", default=[], type=named_range, metavar="[NAME=]LOW:HIGH", help=span)
    p.add_argument("--seed", type=count, default=0, help="seed of random inputs")
    p.add_argument("--target", choices=TARGETS, help="the device that runs it (cpu; for an archive: its own target)")
    p.add_argument("--gpu", help=GPU_HELP)
    p.add_argument("--threads", type=positive, help="number of CPU threads")
    isa_option(p)
    cache_dir_option(p)
