"""`taskmap explain model.onnx`: what taskmap makes of a model, kernel by kernel, as text and as a page."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from taskmap.archive.file import is_archive
from taskmap.cli.loading import slowly
from taskmap.cli.model_files import check_model_file
from taskmap.cli.output import command
from taskmap.cli.run.command import model_options
from taskmap.ir.errors import InputError

SUFFIX = ".taskmap.html"

# --help does not wait for torch and onnx.
_explain_model: Callable[..., int] = slowly("taskmap.cli.explain_onnx", "explain_model")


def main(arguments: Sequence[str]) -> int:
    """Print the report on a model and write its page; the exit status."""
    a = parser().parse_args(arguments)
    if is_archive(a.model):
        hint = "Explain the ONNX model that it was made of."
        raise InputError(f"{a.model} is an archive, which can be run, but not explained", hint=hint)
    check_model_file(a.model)
    page_path = None if a.no_html else a.html or Path(f"{a.model.stem}{SUFFIX}")
    return _explain_model(a, page_path)


def parser() -> argparse.ArgumentParser:
    """The options of `taskmap explain`."""
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
    return p
