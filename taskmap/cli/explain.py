"""`taskmap explain model.onnx`: what taskmap makes of a model, kernel by kernel, as text and as a page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from taskmap.cli.output import command, plain, print_json
from taskmap.cli.run import model_options
from taskmap.cli.run_inputs import Wanted, inputs_for
from taskmap.cli.run_onnx import specs_of
from taskmap.explaining import explain_onnx
from taskmap.onnx_model import load_model
from taskmap.options import Options

SUFFIX = ".taskmap.html"


def main(arguments: Sequence[str]) -> int:
    """Print the report on a model and write its page; the exit status."""
    p = command(
        "explain",
        "What taskmap makes of an ONNX model: its kernels, what each fuses and why not more, how it is scheduled, how\n"
        "long it takes and could take. Prints that, and writes a page with all of it and the kernels' text.",
        "taskmap explain model.onnx --shape batch=8 --html model.html",
    )
    model_options(p)
    written = p.add_mutually_exclusive_group()
    page = f"where the page is written (MODEL{SUFFIX} in the current folder)"
    written.add_argument("--html", type=Path, metavar="FILE", help=page)
    written.add_argument("--no-html", action="store_true", help="write no page")
    a = p.parse_args(arguments)
    with ExitStack() as stack:
        if a.threads is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(a.threads)
        return _explain(a)


def _explain(a: argparse.Namespace) -> int:
    model = load_model(a.model, Options(target=a.target, threads=a.threads, profile=True))
    inputs, assumed = inputs_for(specs_of(model.inputs), Wanted(a.input, dict(a.shape), dict(a.range), a.seed))
    report = explain_onnx(model, inputs, a.model.name)
    path = None
    if not a.no_html:
        path = report.save_html(a.html or Path(f"{a.model.stem}{SUFFIX}"))
    if a.json:
        print_json({**json.loads(report.to_json()), "assumed": dict(assumed), "html": path and str(path)})
        return 0
    for name, n in assumed.items():
        print(f"the dimension {plain(name)} is taken to be {n} (--shape {plain(name)}=...)")
    print(report)
    if path is not None:
        print(f"\nthe page is {path}")
    return 0
