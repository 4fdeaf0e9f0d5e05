"""Fits the cost model's rates to a run's measurements, and lists the defaults that would change; needs no GPU.

python -m benchmarks.gpu.refit [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.estimates import RATES, Fit, Seen, refit
from benchmarks.gpu.sections import SECTIONS
from taskmap.backend.cuda.driver import DeviceInfo
from taskmap.ir.target import GpuTarget, cuda_target
from taskmap.options import Options
from taskmap.targets.choose import gpu_target

NAME = "gpu_refit.json"


def measured_target(conditions: dict[str, Any]) -> GpuTarget:
    """The GPU of a record's conditions."""
    major, minor = map(int, str(conditions["capability"]).split("."))
    info = DeviceInfo(0, conditions["device"], (major, minor), conditions["multiprocessors"], 0)
    found = gpu_target(Options(), info)
    return gpu_target(Options(), DeviceInfo(0, info.name, info.capability, info.multiprocessors,
                                            cuda_target(found.isa).shared_per_block))  # fmt: skip


def measured(out: Path) -> tuple[GpuTarget | None, list[Seen]]:
    """The GPU, and the cases of all sections that were measured and are right."""
    seen: list[Seen] = []
    target = None
    for section, cases in SECTIONS.items():
        path = out / f"gpu_{section}.json"
        if not path.exists():
            continue
        record = json.loads(path.read_text(encoding="utf-8"))
        took = {row["name"]: row["timings"]["taskmap"]["median"]
                for row in record["rows"] if row["right"] and "timings" in row}  # fmt: skip
        known = (case for case in cases() if case.strategy is None)  # the model estimates templates
        seen += [Seen(case, took[case.name]) for case in known if case.name in took]
        if record["runs"] and "capability" in record["runs"][-1]:
            target = measured_target(record["runs"][-1])
    return target, seen


def fitted(out: Path) -> Fit | None:
    """The fit to the folder's measurements, written beside them; None if there are none."""
    target, seen = measured(out)
    fit = refit(seen, target) if target is not None else None
    if fit is not None:
        record = asdict(fit) | {"rates": {r: [getattr(fit.target, r), getattr(fit.fitted, r)] for r in RATES}}
        (out / NAME).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return fit


def main(argv: list[str] | None = None) -> int:
    """The command: 0, or 1 if nothing was measured."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--out", type=Path, default=Path("gpu-results"))
    fit = fitted(cli.parse_args(argv).out)
    print("\n".join(fit.lines()) if fit is not None else "nothing was measured that the cost model could be fitted to")
    return int(fit is None)


if __name__ == "__main__":
    sys.exit(main())
