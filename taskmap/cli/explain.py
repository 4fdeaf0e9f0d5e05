"""`taskmap explain model.onnx`: what taskmap makes of a model, kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.cli.output import command
from taskmap.cli.run import model_options, run_model


def main(arguments: Sequence[str]) -> int:
    """Print the report on a model; its exit status."""
    parser = command(
        "explain",
        "What taskmap makes of an ONNX model: its kernels, what each fuses and how it is scheduled, and what it takes.",
        "taskmap explain model.onnx --shape batch=8",
    )
    model_options(parser)
    parser.set_defaults(
        profile=True, repeat=15, warmup=1, compare=None, save=None, rtol=0.0, atol=0.0, tune=None, trace=None
    )
    return run_model(parser.parse_args(arguments))
