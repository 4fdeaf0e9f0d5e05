"""Figures of our Hopper kernels from the assembler, without a GPU: instructions, also of their main loops, registers,
and the bytes that all blocks request from memory and its caches.

python -m benchmarks.gpu_static [--before FILE]

``--before``: the output of this command for another version; by default, the one that the last file compared with.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.gpu.sass import count, instructions, listing, loop_with, sass
from benchmarks.support.conditions import Conditions
from benchmarks.support.report import RESULTS, Report
from taskmap.backend.counters import Counters
from taskmap.backend.cuda.codegen import generate
from taskmap.backend.cuda.compile import SUFFIX, compile_cuda
from taskmap.backend.cuda.resources import Resources
from taskmap.backend.cuda.toolchain import find_cuda_toolchain
from taskmap.backend.store.objects import KernelStore
from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations, softmax
from taskmap.graph.ops.attention import attention
from taskmap.graph.ops.pointwise import pointwise
from taskmap.ir.construct import call
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import cuda_target
from taskmap.ir.types import f16
from taskmap.schedules import schedule
from tests.schedules.graph_tasks import fused, matrix_product, tensor

__all__ = [
    "CASES",
    "Assembled",
    "Case",
    "assembled",
    "attending",
    "count",
    "instructions",
    "listing",
    "loop_with",
    "multiplying",
]
NAME, ISA = "gpu_static", "sm_90a"
HEADER = ("kernel", "instructions", "before", "loop", "before", "registers", "before", "MB", "before")
FIGURES = ("instructions", "loop", "registers", "bytes")


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel; loop: words of the instructions by which its main loop is known, none for one without a loop. bytes: of
    the kernel, what its blocks ask for together."""

    name: str
    make: Callable[[], Node]
    bytes: Callable[[Kernel], float]
    loop: tuple[str, ...] = ()


def number(kernel: Kernel, word: str, default: int = 1) -> int:
    """A number in the kernel's note, such as split=43."""
    found = re.search(rf"\b{word}=(\d+)", kernel.note)
    return default if found is None else int(found[1])


def half(*shape: int) -> Node:
    """An input of f16."""
    return tensor(*shape, dtype=f16)


def attending(name: str, heads: int, shared: int, queries: int, keys: int, depth: int, causal: bool = False) -> Case:
    """Every block asks for all keys and values of its head, or for its part of them; a causal one for half."""

    def make() -> Node:
        k, v = half(1, shared, keys, depth), half(1, shared, keys, depth)
        return attention(half(1, heads, queries, depth), k, v, causal=causal)

    def asked(kernel: Kernel) -> float:
        assert kernel.launch is not None
        blocks = prod(n for n in kernel.launch.grid if isinstance(n, int)) / number(kernel, "split")
        return 4 * depth * (heads * queries + blocks * keys * (0.5 if causal else 1))

    return Case(name, make, asked, ("MUFU.EX2", "MMA"))


def multiplying(size: int) -> Case:
    """Every tile asks for its rows and its columns."""

    def asked(kernel: Kernel) -> float:
        found = re.search(r"tile=(\d+)x(\d+)", kernel.note)
        assert found is not None
        m, n = int(found[1]), int(found[2])
        return 2 * (-(-size // m) * -(-size // n) * (m + n) * size + size * size)

    return Case(f"product {size}", lambda: matrix_product("plain", size, size, size, f16), asked, ("HGMMA",))


def once(count: int) -> Callable[[Kernel], float]:
    """Elements of f16 that are read and written once."""
    return lambda kernel: 4 * count


CASES = (
    attending("attention 4096, d128", 16, 16, 4096, 4096, 128),
    attending("causal attention 4096, d128", 16, 16, 4096, 4096, 128, causal=True),
    attending("attention 4096, d64", 64, 64, 4096, 4096, 64),
    attending("decode, 32/8 heads, 4096 keys", 32, 8, 1, 4096, 128),
    attending("decode, 32/32 heads, 4096 keys", 32, 32, 1, 4096, 128),
    Case("softmax 16384x4096", lambda: softmax.softmax(half(16384, 4096), 1), once(1 << 26)),
    Case("silu", lambda: activations.silu(half(1 << 22)), once(1 << 22)),
    *(
        Case(n, lambda n=n: pointwise(n, (half(1 << 22),), partial(call, n)), once(1 << 22))  # type: ignore[misc]  # a default of a lambda has no type
        for n in ("sigmoid", "tanh")
    ),
    *map(multiplying, (1024, 4096, 8192)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Assembled:
    """A kernel, its CUDA C++, its assembly, and its resources."""

    kernel: Kernel
    source: str
    text: str
    resources: Resources


def assembled(case: Case | str, store: KernelStore | None = None) -> Assembled:
    """The kernel of a case, or of one of CASES by name, assembled. Needs NVRTC and nvdisasm, no GPU."""
    if isinstance(case, str):
        case = next(c for c in CASES if c.name == case)
    target = cuda_target(ISA)
    kernel = schedule(fused([case.make()]), target)
    source = generate(lower(kernel, target=target), target)
    made = compile_cuda([source], find_cuda_toolchain(ISA), store or KernelStore(suffix=SUFFIX), Counters(), jobs=1)[
        source.symbol
    ]
    return Assembled(kernel, source.text, sass(made.image), made.resources)


def examined(case: Case, store: KernelStore) -> dict[str, Any]:
    """The figures of a kernel."""
    made = assembled(case, store)
    return {
        "kernel": case.name,
        "schedule": made.kernel.note.splitlines()[0],
        "grid": list(made.kernel.launch.grid) if made.kernel.launch else [],
        "instructions": len(listing(made.text)),
        "loop": loop_with(made.text, *case.loop).shortest if case.loop else None,
        "registers": made.resources.registers,
        "bytes": case.bytes(made.kernel),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--before", type=Path, help="figures of another version")
    cli.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    arguments = cli.parse_args(argv)
    before = earlier(arguments.before, arguments.out / f"{NAME}.json")
    store = KernelStore(suffix=SUFFIX)
    report = Report(NAME, Conditions.now(0, 1, 1), HEADER)
    for case in tqdm(CASES, disable=None):
        found = examined(case, store)
        known = before.get(case.name, {})
        report.data.append({**found, "before": known or None})
        cells = [f"{_shown(found, f)},{_shown(known, f)}" for f in FIGURES]
        report.rows.append((case.name, *",".join(cells).split(",")))
    print(report)
    print(f"written to {report.write(arguments.out)}")
    return 0


def earlier(given: Path | None, last: Path) -> dict[str, dict[str, Any]]:
    """The figures to compare with, by kernel; empty without a file."""
    if given is not None:
        rows = json.loads(given.read_text(encoding="utf-8"))["data"]
        return {r["kernel"]: {k: v for k, v in r.items() if k != "before"} for r in rows}
    if not last.exists():
        return {}
    return {r["kernel"]: r["before"] for r in json.loads(last.read_text(encoding="utf-8"))["data"] if r["before"]}


def _shown(row: dict[str, Any], figure: str) -> str:
    value = row.get(figure)
    if value is None:
        return "-"
    return f"{value / 1e6:.1f}" if figure == "bytes" else str(value)


if __name__ == "__main__":
    sys.exit(main())
