"""Runs all benchmarks, each in a process of its own, and summarises which bounds were met.

python -m benchmarks [--only latency accuracy ...] [--seed N] [--threads N] [--out FOLDER] [--check]
python -m benchmarks NAME [OPTIONS ...]      one benchmark, with its own options, as `python -m benchmarks.NAME`
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from benchmarks.support.report import RESULTS, Check

ALL = ("accuracy", "latency", "compile_time", "matmul", "overhead", "memory", "tuning", "recompilations")


def outcome(path: Path) -> list[Check]:
    """The checks that a benchmark wrote."""
    found = json.loads(path.read_text())["checks"]
    missing = float("nan")  # is written as null
    return [
        Check(entry["name"], missing if entry["value"] is None else entry["value"], entry["bound"], entry["at_most"])
        for entry in found
    ]


def one(name: str, options: list[str]) -> int:
    """Runs the benchmark ``name`` in this process. Exits if there is none of that name."""
    module = next((m for m in (f"benchmarks.{name}.__main__", f"benchmarks.{name}") if _exists(m)), None)
    if module is None or not hasattr(import_module(module), "main"):
        raise SystemExit(f"there is no benchmark {name!r}; see the files of this folder")
    status: int = import_module(module).main(options)
    return status


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a part of the path is no package
        return False


def main(argv: list[str] | None = None) -> int:
    """The command: 0, or 1 if a benchmark failed to run or, with `--check`, missed a bound."""
    words = sys.argv[1:] if argv is None else argv
    if words and not words[0].startswith("-"):
        return one(words[0], words[1:])
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    cli.add_argument("--only", nargs="+", choices=ALL, default=list(ALL))
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument("--threads", type=int, default=2)
    cli.add_argument("--out", type=Path, default=RESULTS)
    cli.add_argument("--check", action="store_true", help="exit with status 1 when a bound is missed")
    arguments = cli.parse_args(words)
    common = ["--seed", str(arguments.seed), "--threads", str(arguments.threads), "--out", str(arguments.out.resolve())]
    broken, summary = [], []
    for name in arguments.only:
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", *common], cwd=Path(__file__).parent.parent, check=False
        )
        if done.returncode != 0:
            broken.append(name)
            continue
        summary += [(name, check) for check in outcome(arguments.out / f"{name}.json")]
    print("summary")
    for name, check in summary:
        print(f"  {name:<13}{check}")
    for name in broken:
        print(f"  {name:<13}did not finish")
    met = sum(check.met for _, check in summary)
    print(f"  {met} of {len(summary)} bounds met, {len(broken)} of {len(arguments.only)} benchmarks did not finish")
    return int(bool(broken) or (arguments.check and met < len(summary)))


if __name__ == "__main__":
    sys.exit(main())
