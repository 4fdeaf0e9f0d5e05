"""`taskmap explain model.onnx`: how a model is compiled, kernel by kernel, as text and as a page."""

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

# --help does not load torch and onnx.
_explain_model: Callable[..., int] = slowly("taskmap.cli.explain_onnx", "explain_model")


def main(arguments: Sequence[str]) -> int:
    """Print the report on a model and write its page; returns the exit status."""
    a = parser().parse_args(arguments)
    if is_archive(a.model):
        hint = "Explain the ONNX model that it was made from."
        raise InputError(f"{a.model} is an archive, which can be run but not explained", hint=hint)
    check_model_file(a.model)
    page_path = None if a.no_html else a.html or Path(f"{a.model.stem}{SUFFIX}")
    return _explain_model(a, page_path)


def parser() -> argparse.ArgumentParser:
    """The options of `taskmap explain`."""
    p = command(
        "explain",
        "Show how an ONNX model is compiled: its kernels, what each fuses, why it does not fuse more,\n"
        "its schedule, its time and the least time possible. Prints a report, and writes a page with all of it\n"
        "and the kernels' text.",
        "taskmap explain model.onnx --shape batch=8 --html model.html",
    )
    model_options(p)
    written = p.add_mutually_exclusive_group()
    page = f"the page to write (MODEL{SUFFIX} in the current folder)"
    written.add_argument("--html", type=Path, metavar="FILE", help=page)
    written.add_argument("--no-html", action="store_true", help="write no page")
    return p
