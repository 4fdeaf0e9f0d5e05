"""Mutants of every GPU template, all of them: how many the simulator notices, and why the others change nothing.

python -m benchmarks.cuda_mutations [--only NAME ...]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from benchmarks.conditions import Conditions
from benchmarks.report import RESULTS, Check, Report
from tests.cuda_proof.broken import BREAKABLE
from tests.cuda_proof.mutations import hunt, mutations
from tests.schedules.cuda_running import cuda, source_of


def main(argv: list[str] | None = None) -> int:
    """The command; 1 where a mutant survived."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--only", nargs="+", choices=list(BREAKABLE), default=list(BREAKABLE))
    cli.add_argument("--threads", type=int, default=2, help="compilations at once")
    cli.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    arguments = cli.parse_args(argv)
    header = ("template", "mutants", "equivalent", "caught", "of", "survived")
    report = Report("cuda_mutations", Conditions.now(0, arguments.threads, 1), header)
    caught = changing = 0
    for name in tqdm(arguments.only, disable=None):
        broken = BREAKABLE[name]
        task = broken.make()
        kernel = broken.plan(task, cuda(broken.isa))
        assert kernel is not None
        found = hunt(
            broken.cases(task), kernel, list(mutations(source_of(kernel, broken.isa))), broken.rules, arguments.threads
        )
        own = len(found.caught) + len(found.survived)
        caught, changing = caught + len(found.caught), changing + own
        counts = (own + len(found.equivalent), len(found.equivalent), len(found.caught), own, len(found.survived))
        report.rows.append((name, *map(str, counts)))
        report.data.append({
            "template": name,
            "schedule": kernel.note,
            "caught": len(found.caught),
            "changing": own,
            "kinds": {kind: list(pair) for kind, pair in found.kinds().items()},
            "equivalent": [{"mutant": str(m), "reason": rule.reason} for m, rule in found.equivalent],
            "refused": list(map(str, found.refused)),
            "survived": list(map(str, found.survived)),
        })  # fmt: skip
        report.notes += [f"survived: {name}: {m}" for m in found.survived]
    report.checks.append(Check("share of changing mutants caught", caught / max(changing, 1), 1.0, at_most=False))
    report.notes.append(f"{caught} of {changing} mutants that change behaviour were caught")
    print(report)
    print(f"written to {report.write(arguments.out)}")
    return int(caught < changing)


if __name__ == "__main__":
    sys.exit(main())
