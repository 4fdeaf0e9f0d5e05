"""Counts the networks with open sizes that are one graph for all sizes, and checks their values at two sizes.

Values are compared with ONNX Runtime's. Nothing is compiled unless `--compile` asks for it: the graphs are evaluated by
their definitions. The table names the node that prevents one graph. `--only` chooses networks.

python -m benchmarks.dynamic [--compile] [--only NAME ...] [--files FOLDER] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dynamic import language, sequences, vision
from benchmarks.dynamic.case import Case
from benchmarks.support.report import RESULTS, table
from taskmap.graph.importers.onnx import load
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import OnnxModel, load_model

CASES: tuple[Case, ...] = (*vision.CASES, *sequences.CASES, *language.CASES)
WRONG = 1e-4
"""A difference above this, relative to the largest element, is wrong."""


def counted(case: Case, folder: Path, compiled: bool) -> dict[str, Any]:
    """The results for a network: graphs, those that a second size needed, the largest error, what prevents one."""
    path = case.export(folder)
    model = load_model(path) if compiled else OnnxModel(load(path), by_definition)
    session = import_module("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    error, made = 0.0, []
    for second in (False, True):
        given = case.feeds(second)
        theirs = session.run(None, dict(zip(names, given, strict=True)))
        error = max(error, *(difference(a, b) for a, b in zip(model(*given), theirs, strict=True)))
        made.append(model.graphs[0])
    return {
        "name": case.name,
        "graphs": made[0],
        "more": made[1] - made[0],
        "error": error,
        "one": made[1] == made[0] and not model.refusals,
        "prevented_by": [str(r) for r in model.refusals],
    }


def difference(a: Any, b: Any) -> float:
    """The largest difference relative to the largest element; infinite if shapes differ."""
    if a.shape != b.shape:
        return float("inf")
    scale = float(np.abs(b).max(initial=0)) or 1.0
    return float(np.abs(a.astype(np.float64) - b).max(initial=0)) / scale


def main(argv: list[str] | None = None) -> int:
    """The command: 1 if a value is wrong."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--compile", action="store_true")
    cli.add_argument("--only", nargs="+", choices=[c.name for c in CASES])
    cli.add_argument("--files", type=Path)
    cli.add_argument("--out", type=Path, default=RESULTS)
    a = cli.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        files = a.files or Path(folder)
        found = [counted(c, files, a.compile) for c in CASES if a.only is None or c.name in a.only]
    rows = [
        (f["name"], "yes" if f["one"] else "no", str(f["graphs"]), str(f["more"]), f"{f['error']:.1e}",
         "; ".join(f["prevented_by"]))
        for f in found
    ]  # fmt: skip
    print(table(("network", "one graph", "graphs", "more for a second size", "error", "prevented by"), rows))
    print(f"{sum(f['one'] for f in found)} of {len(found)} networks are one graph for all sizes")
    if a.only is None:
        a.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"compiled": a.compile, "networks": found}, indent=1)
        (a.out / "dynamic.json").write_text(text + "\n")
    return int(any(not f["error"] <= WRONG for f in found))


if __name__ == "__main__":
    sys.exit(main())
