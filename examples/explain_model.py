"""Explains how taskmap compiles a model: which operators became which kernel, and the time of each.

python examples/explain_model.py [--model bert_base] [--full] [--table] [--json report.json] [--threads 2]
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the model zoo stands beside this folder

import taskmap
from benchmarks.models import MODELS
from benchmarks.models.plain import PLAIN


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--model", choices=list(MODELS), default="bert_base")
    cli.add_argument("--full", action="store_true", help="the full-size model; else a small one of the same operators")
    cli.add_argument("--table", action="store_true", help="one line for each group in place of the ledger")
    cli.add_argument("--json", type=Path, help="also write the report's data to this file")
    cli.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = cli.parse_args(argv)
    torch.set_num_threads(arguments.threads)

    spec = MODELS[arguments.model]
    if arguments.model in PLAIN and find_spec("transformers") is None:
        spec = PLAIN[arguments.model]  # the same network in plain PyTorch
    model, args, kwargs = spec.build(small=not arguments.full)
    with torch.no_grad():
        report = taskmap.explain(model, *args, **kwargs)
    print(report.table() if arguments.table else report)

    print("\nThe same as data. Where the time goes, by kind of group:")
    kinds: dict[str, float] = {}
    for group in report.groups:
        kinds[group.kind] = kinds.get(group.kind, 0.0) + (group.time.share or 0.0)
    for kind, share in sorted(kinds.items(), key=lambda item: -item[1]):
        print(f"  {kind:12} {share:6.1%}")
    for extern in report.externs:
        print(f"  extern       {extern.time.share or 0.0:6.1%}  {extern}")

    if arguments.json is not None:
        arguments.json.write_text(report.to_json(indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
