"""`taskmap tune model.onnx`: compile a model, measuring configurations of its operators on the way."""

from __future__ import annotations

import argparse

from taskmap.cli.options import folder_of
from taskmap.cli.run.inputs import Wanted, inputs_for
from taskmap.cli.run.onnx import specs_of
from taskmap.cli.targets import chosen
from taskmap.cli.tune.parsers import budget_of
from taskmap.cli.tune.session import report_model
from taskmap.ir.errors import InputError
from taskmap.onnx.model import load_model
from taskmap.options import Options
from taskmap.targets.threads import calls_on


def tune_model(a: argparse.Namespace) -> int:
    """Tune the operators of a model; 1 if it has none that can be tuned."""
    if a.target == "cuda-sim":
        raise InputError(
            "a model cannot be tuned in the simulator",
            why="its times are not a GPU's.",
            hint="taskmap tune matmul --target cuda-sim orders the configurations of an operator by estimates.",
        )
    with calls_on(a.threads):
        target, gpu = chosen(a.target, a.gpu)
        options = Options(
            target=target, gpu=gpu, isa=a.isa, threads=a.threads, tune_seconds=a.seconds, cache_dir=folder_of(a)
        )
        model = load_model(a.model, options)
        choices = None if model.session is None else model.session.choices
        if choices is not None:
            choices.budget = budget_of(a)
        inputs, assumed = inputs_for(specs_of(model.inputs), Wanted(a.input, a.shape, dict(a.range), a.seed))
        model(inputs)
        return report_model(choices, assumed, a.json)
