"""`taskmap explain`, after its options: run the model, print the report, write the page."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from taskmap.cli.options import folder_of
from taskmap.cli.output import plain, print_json
from taskmap.cli.run.facts import saying_assumed
from taskmap.cli.run.inputs import Wanted, inputs_for
from taskmap.cli.run.onnx import specs_of
from taskmap.cli.targets import chosen
from taskmap.onnx.model import load_model
from taskmap.options import Options
from taskmap.report.explain import explain_onnx
from taskmap.targets.threads import calls_on


def explain_model(a: argparse.Namespace, page: Path | None) -> int:
    """Explain the model given by the options; returns the exit status. page: its path; None writes no page."""
    with calls_on(a.threads):
        return _explain(a, page)


def _explain(a: argparse.Namespace, page: Path | None) -> int:
    target, gpu = chosen(a.target, a.gpu)
    options = Options(target=target, gpu=gpu, isa=a.isa, threads=a.threads, profile=True, cache_dir=folder_of(a))
    model = load_model(a.model, options)
    inputs, assumed = inputs_for(specs_of(model.inputs), Wanted(a.input, a.shape, dict(a.range), a.seed))
    with saying_assumed(assumed):
        report = explain_onnx(model, inputs, a.model.name)
    if page is not None:
        report.save_html(page)
    if a.json:
        where = None if page is None else str(page)
        print_json({**json.loads(report.to_json()), "assumed": dict(assumed), "html": where})
        return 0
    for name, n in assumed.items():
        print(f"the dimension {plain(name)} is assumed to be {n} (--shape {plain(name)}=...)")
    print(report)
    if page is not None:
        print(f"\nthe page is {page}")
    return 0
