"""All mutants of every GPU template: how many the simulator detects, and why the others change nothing.

python -m benchmarks.cuda_mutations [--only NAME ...]

With --only, an earlier file's results for other templates are kept if their kernels are the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.support.conditions import Conditions
from benchmarks.support.report import RESULTS, Check, Report
from tests.cuda_proof.broken import BREAKABLE
from tests.cuda_proof.mutations import hunt, mutations
from tests.schedules.cuda_running import cuda, source_of

NAME = "cuda_mutations"
HEADER = ("template", "mutants", "equivalent", "caught", "of", "survived")


def main(argv: list[str] | None = None) -> int:
    """The command; 1 if a mutant survived."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--only", nargs="+", choices=list(BREAKABLE), default=list(BREAKABLE))
    cli.add_argument("--threads", type=int, default=2, help="compilations at once")
    cli.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    arguments = cli.parse_args(argv)
    known = earlier(arguments.out / f"{NAME}.json")
    rest = [name for name in BREAKABLE if name not in arguments.only and name in known]
    found = {name: known[name] for name in rest if known[name].get("kernel") == symbol(name)}
    for name in tqdm(arguments.only, disable=None):
        found[name] = hunted(name, arguments.threads)
        report = reported({n: found[n] for n in BREAKABLE if n in found}, arguments.threads)
        report.write(arguments.out)
    print(report)
    return int(any(row["survived"] for row in found.values()))


def earlier(file: Path) -> dict[str, Mapping[str, Any]]:
    """The earlier results for each template; empty without a file."""
    if not file.exists():
        return {}
    return {row["template"]: row for row in json.loads(file.read_text(encoding="utf-8"))["data"]}


def symbol(name: str) -> str:
    """The name of the kernel of a template, which changes with its text."""
    broken = BREAKABLE[name]
    kernel = broken.plan(broken.make(), cuda(broken.isa))
    assert kernel is not None
    return source_of(kernel, broken.isa).symbol


def hunted(name: str, threads: int) -> Mapping[str, Any]:
    """The results for all mutants of a template."""
    broken = BREAKABLE[name]
    task = broken.make()
    kernel = broken.plan(task, cuda(broken.isa))
    assert kernel is not None
    source = source_of(kernel, broken.isa)
    found = hunt(broken.cases(task), kernel, list(mutations(source)), broken.rules, threads)
    return {
        "template": name,
        "kernel": source.symbol,
        "schedule": kernel.note,
        "caught": len(found.caught),
        "changing": len(found.caught) + len(found.survived),
        "kinds": {kind: list(pair) for kind, pair in found.kinds().items()},
        "equivalent": [{"mutant": str(m), "reason": rule.reason} for m, rule in found.equivalent],
        "refused": list(map(str, found.refused)),
        "survived": list(map(str, found.survived)),
    }


def reported(found: Mapping[str, Mapping[str, Any]], threads: int) -> Report:
    """The table, a row for each template, and the share that was caught."""
    report = Report(NAME, Conditions.now(0, threads, 1), HEADER)
    for name, row in found.items():
        equivalent = len(row["equivalent"])
        counts = (row["changing"] + equivalent, equivalent, row["caught"], row["changing"], len(row["survived"]))
        report.rows.append((name, *map(str, counts)))
        report.data.append(dict(row))
        report.notes += [f"survived: {name}: {m}" for m in row["survived"]]
    caught, changing = (sum(row[what] for row in found.values()) for what in ("caught", "changing"))
    report.checks.append(Check("share of changing mutants caught", caught / max(changing, 1), 1.0, at_most=False))
    report.notes.append(f"{caught} of {changing} mutants that change behaviour were caught")
    return report


if __name__ == "__main__":
    sys.exit(main())
