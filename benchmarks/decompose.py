"""Figures of the strategies in examples/strategies, from the simulator: the claims of Fireiron (PACT 2020).

python -m benchmarks.decompose [--out FOLDER] [--check]

lines            of the file, without blank ones
moved, tree      the share of decompositions that move data: moves, sums elsewhere, all steps of their copies (table 2)
moved, kernel    the share of the generated kernel's lines: buffers, moves, barriers, and what waits for them (table 2)
counters         of a product of 128×128×128
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
from tqdm import tqdm

import taskmap
from benchmarks.support.conditions import Conditions
from benchmarks.support.report import RESULTS, Check, Report
from taskmap.decompose import Strategy
from taskmap.ir.printer import print_kernel

NAME = "decompose"
FOLDER = Path(__file__).parents[1] / "examples" / "strategies"
HEADER = ("strategy", "lines", "moved, tree", "moved, kernel", "sectors", "wavefronts", "fewest", "barriers", "error")
ON_CPU = ("cpu_outer_product",)
OTHERS = ("__init__", "cpu_convolution", "epilogues", "softmax_rows", "transpose")
"""Files without a product of their own name."""
COUNTERS = ("global sectors", "shared wavefronts", "shared ideal", "barriers")
SMALL = (128, 128, 4096)
_MOVES = re.compile(r"\.(move|accumulate_in)\(")
_MOVED = re.compile(
    r"^(\w+ = (shared|register|fragment|local)\(|move\(|barrier\("
    r"|(cp_async|mbarrier|tma|fence|warp_sync|wgmma_wait)\w*\()"
)


def strategies() -> dict[str, Callable[..., Strategy]]:
    """The strategies of products, by name."""
    names = sorted(p.stem for p in FOLDER.glob("*.py") if p.stem not in OTHERS)
    found = {name: getattr(import_module(f"examples.strategies.{name}"), name, None) for name in names}
    return {name: f for name, f in found.items() if f is not None}


def moved_of_tree(tree: Strategy) -> float:
    """The share of a tree's decompositions that move data."""
    lines = [line for line in str(tree).splitlines() if "  ." in line]
    moving = sum(line.lstrip().startswith(("Move", "Init")) or _MOVES.search(line) is not None for line in lines)
    return moving / len(lines)


def moved_of_kernel(text: str) -> float:
    """The share of a printed kernel's statements that move data."""
    lines = [line.strip() for line in text.splitlines()[1:] if line.strip()]
    return sum(_MOVED.match(line) is not None for line in lines) / len(lines)


def simulated(tree: Strategy, shape: tuple[int, int, int]) -> tuple[taskmap.Simulation, float]:
    """A run of the simulator on random operands, and the largest error relative to float64."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    kinds = [np.dtype(o.dtype.name.replace("f", "float")) for o in tree.root.operands]
    a, b = rng.standard_normal((m, k)).astype(kinds[0]), rng.standard_normal((k, n)).astype(kinds[1])
    c = np.full((m, n), np.nan, kinds[2])
    found = taskmap.simulate(tree.kernel(), a, b, c, seeds=(0,), policies=("late",), seconds=600.0)
    found.check()
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return found, float(np.abs(c - exact).max() / np.abs(exact).max())


def examined(name: str, strategy: Callable[..., Strategy]) -> dict[str, object]:
    """The figures of one strategy."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    tree = strategy(128, 128, 128)
    found: dict[str, object] = {
        "name": name,
        "lines": sum(bool(line.strip()) for line in text.splitlines()),
        "moved, tree": moved_of_tree(tree),
        "moved, kernel": moved_of_kernel(print_kernel(tree.kernel())),
    }
    if name not in ON_CPU:
        run, error = simulated(tree, (128, 128, 128))
        found |= {counter: run.counters[counter] for counter in COUNTERS} | {"error": error}
    return found


def epilogues() -> tuple[dict[str, object], list[Check]]:
    """Figure 2: the stores of both epilogues, and the bank conflicts of the exchange with and without padding."""
    module = import_module("examples.strategies.epilogues")
    counted: dict[str, Mapping[str, int]] = {}
    for store in (module.straight, module.without_padding, module.by_way_of_shared_memory):
        run, _ = simulated(module.epilogues(128, 128, 64, store), (128, 128, 64))
        counted[store.__name__] = run.counters
    straight, plain, padded = counted.values()
    loads = padded["global sectors"] - 128 * 128 * 2 // 32
    share = (padded["global sectors"] - loads) / (straight["global sectors"] - loads)
    checks = [
        Check("sectors of stores by way of shared memory, of those straight from registers", share, 0.5),
        Check(
            "wavefronts with padding, of those without", padded["shared wavefronts"] / plain["shared wavefronts"], 0.7
        ),
        Check("wavefronts with padding, of the fewest", padded["shared wavefronts"] / padded["shared ideal"], 1.1),
    ]
    return {"name": "epilogues", **{name: {c: x[c] for c in COUNTERS} for name, x in counted.items()}}, checks


def small_tiles(every: Mapping[str, Callable[..., Strategy]]) -> tuple[dict[str, object], list[Check]]:
    """Small tiles on a small product: the roofline's bound of each strategy."""
    runs = {name: simulated(every[name](*SMALL), SMALL)[0] for name in ("mma_small", "mma_large")}
    found: dict[str, object] = {"name": "small tiles"}
    checks = []
    for gpu in ("T4", "H200"):
        bounds = {name: run.roofline(gpu).seconds for name, run in runs.items()}
        found[gpu] = bounds
        gain = bounds["mma_large"] / bounds["mma_small"]
        checks.append(Check(f"bound of mma_large, of that of mma_small, on {gpu}", gain, 2.0, at_most=False))
    return found, checks


def swizzle() -> tuple[dict[str, object], list[Check]]:
    """Shared memory of maxwell with and without swizzled rows."""
    module = import_module("examples.strategies.maxwell")
    counted = {}
    for layout in (module.plain, module.swizzled):
        run, _ = simulated(module.maxwell(128, 128, 32, layout=layout), (128, 128, 32))
        counted[layout.__name__] = run.counters
    plain, swizzled = (x["shared wavefronts"] for x in counted.values())
    check = Check("wavefronts of maxwell with swizzled rows, of those without", swizzled / plain, 1.0)
    return {"name": "swizzle", **{name: {c: x[c] for c in COUNTERS} for name, x in counted.items()}}, [check]


def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0, or 1 if a bound was missed and ``--check`` given."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    cli.add_argument("--check", action="store_true", help="exit with status 1 when a bound is missed")
    arguments = cli.parse_args(argv)
    report = Report(NAME, Conditions.now(0, 1, 1), HEADER)
    every = strategies()
    for name, strategy in tqdm(every.items(), disable=None):
        found = examined(name, strategy)
        report.data.append(found)
        cells = (found.get(column, "-") for column in ("lines", "moved, tree", "moved, kernel", *COUNTERS, "error"))
        report.rows.append((name, *(f"{x:.2g}" if isinstance(x, float) else str(x) for x in cells)))
    shares = [float(str(row["moved, tree"])) for row in report.data]
    report.checks.append(Check("lines of the longest strategy", max(int(str(r["lines"])) for r in report.data), 50))
    report.checks.append(Check("share of decompositions that move data, mean", sum(shares) / len(shares), 0.5, False))
    for row, checks in (epilogues(), swizzle(), small_tiles(every)):
        report.data.append(row)
        report.checks += checks
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
