"""Random PyTorch programs: compiled must equal eager in values, types, layouts, aliases, writes and gradients.

    python -m benchmarks.torch_fuzz --count 20000 --seed 0 --target cpu --resume

Each failure is reduced to the smallest program that fails in the same way and written as a script. The counts go to
a file after every twenty programs; --resume goes on from there. Of the verdicts, "rounding" is a difference that noise
of a few units in the last place explains, "refused by eager" a program that eager does not run either, and "PyTorch's
own" one that the backend aot_eager gets wrong in the same way.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from benchmarks.torch_fuzz.check import Verdict
from benchmarks.torch_fuzz.program import Program, script
from benchmarks.torch_fuzz.reduce import reduce
from benchmarks.torch_fuzz.worker import Worker

RECORD = "benchmarks/results/torch_fuzz.json"
EVERY = 20
MOST_OWN, OWN_LETTERS = 20, 300
"""Verdicts "PyTorch's own" that the record tells, and letters of each."""


def fuzz(first: int, count: int, worker: Worker, failures: Path | None, record: dict[str, Any]) -> None:
    """Checks ``count`` programs; the outcome of each is added to ``record``."""
    verdicts: Counter[str] = Counter(record["verdicts"])
    begun, before = time.monotonic(), record["seconds"]
    for seed in range(first, first + count):
        program = worker.generate(seed)
        verdict = worker.check(program) if program is not None else Verdict("no program")
        verdicts[verdict.kind] += 1
        if verdict.kind == "PyTorch's own" and len(record["own"]) < MOST_OWN:
            record["own"].append([seed, verdict.evidence[:OWN_LETTERS]])
        if program is not None and verdict.failed:
            record["failures"].append([seed, verdict.kind, verdict.evidence.splitlines()[0][:200]])
            _tell(program, verdict, worker, failures)
        record.update(verdicts=dict(verdicts), next_seed=seed + 1, count=record["count"] + 1)
        record["seconds"] = round(before + time.monotonic() - begun, 1)


def _tell(program: Program, verdict: Verdict, worker: Worker, failures: Path | None) -> None:
    print(f"seed {program.seed}: {verdict.kind}: {verdict.evidence[:300]}", flush=True)
    if failures is None:
        return
    small, found = reduce(program, verdict, worker.check)
    failures.mkdir(parents=True, exist_ok=True)
    path = failures / f"{worker.target}-{program.seed}-{verdict.kind}.py"
    path.write_text(script(small, worker.target, f"{found.kind}: {found.evidence}"), encoding="utf-8")
    print("\n".join(f"    {line}" for line in small.text.splitlines() if line), flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--target", choices=("cpu", "cuda-sim", "cuda"), default="cpu")
    parser.add_argument("--resume", action="store_true", help="go on after the last program that the record has")
    parser.add_argument("--record", type=Path, default=Path(RECORD), help="a file for the counts, by target")
    parser.add_argument("--failures", type=Path, default=Path("torch-fuzz-failures"), help="a folder for the scripts")
    args = parser.parse_args(argv)
    records: dict[str, Any] = json.loads(args.record.read_text(encoding="utf-8")) if args.record.exists() else {}
    if not args.resume or args.target not in records:
        records[args.target] = {
            "torch": torch.__version__,
            "first_seed": args.seed,
            "next_seed": args.seed,
            "count": 0,
            "seconds": 0.0,
            "verdicts": {},
            "failures": [],
        }
    record = records[args.target]
    record.setdefault("own", [])
    worker = Worker(args.target)
    end = record["first_seed"] + args.count
    try:
        while record["next_seed"] < end:
            fuzz(record["next_seed"], min(EVERY, end - record["next_seed"]), worker, args.failures, record)
            args.record.parent.mkdir(parents=True, exist_ok=True)
            args.record.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
            rate = record["count"] / max(record["seconds"], 1e-9)
            print(f"{record['count']} programs, {rate:.2f} per second: {record['verdicts']}", flush=True)
    finally:
        worker.close()
    return 1 if record["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
