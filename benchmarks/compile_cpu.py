"""CPU seconds, of user and system, of a first run of an ONNX file with an empty kernel store: of Python, and of the C
compilers it starts; and its wall time.

CPU seconds change little with other work on the machine; wall time does. A run ends by keeping the compiled model with
its weights for the next run, which counts. The compiler's trial, which runs once per machine, is made beforehand.
"before" is another checkout of taskmap, run in turns with this one. "imports" also runs in turns: the time for Python
to import torch and onnx, which every first run needs.

python -m benchmarks.compile_cpu [--models ...] [--rounds N] [--files FOLDER] [--before CHECKOUT]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.models import MODELS
from benchmarks.onnx_files import exported
from benchmarks.support.harness import Spread
from benchmarks.support.report import Report, parser, start

ROOT = Path(__file__).parent.parent
_PARTS = ("Python", "C", "wall")
LONGEST = 600
"""Seconds after which a process is ended."""
TRIAL = "from taskmap.cli import main\nmain(['env'])\n"
IMPORTS = "import torch, onnx\n"
RUN = "import sys\nfrom taskmap.cli import main\nmain(['run', sys.argv[1], '--warmup', '0', '--repeat', '1'])\n"
COUNTED = """
import atexit, json, resource, sys
def report():
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    print(json.dumps([u.ru_utime + u.ru_stime for u in map(resource.getrusage, kinds)]), file=sys.stderr)
atexit.register(report)
"""


def seconds(program: str, words: list[str], checkout: Path, cache: Path) -> tuple[float, float, float]:
    """CPU seconds of a Python process and of its children, and its wall time. Raises RuntimeError if it fails.

    Bytecode is kept in the folder above ``cache``, regardless of the environment, as for an installed package.
    """
    environment = {**os.environ, "TASKMAP_CACHE_DIR": str(cache), "TQDM_DISABLE": "1", "PYTHONPATH": str(checkout)}
    environment |= {"PYTHONPYCACHEPREFIX": str(cache.parent / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", COUNTED + program, *words],
        cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-500:])
    wall = time.perf_counter() - began
    own, children = json.loads(done.stderr.strip().splitlines()[-1])
    return own, children, wall


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 3, ())
    cli.add_argument("--models", nargs="+", choices=list(MODELS), default=["resnet50", "mobilenet_v2", "bert_base"])
    cli.add_argument("--small", action="store_true", help="the small variants")
    cli.add_argument("--files", type=Path, help="a folder that keeps the exported files")
    cli.add_argument("--before", type=Path, help="another checkout of taskmap, to compare with")
    arguments = cli.parse_args(argv)
    checkouts = {"now": ROOT} | ({"before": arguments.before.resolve()} if arguments.before else {})
    header = ("model, CPU s", *(f"{name}, {part}" for name in checkouts for part in _PARTS), "imports")
    report = Report("compile_cpu", start(arguments), header)
    with tempfile.TemporaryDirectory(prefix="taskmap-bench-") as folder:
        top = Path(folder)
        for name, checkout in checkouts.items():
            (top / name).mkdir()
            seconds(TRIAL, [], checkout, top / name)
        for model in arguments.models:
            file = exported(model, arguments.seed, arguments.small, arguments.files or top / "files")
            found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in (*checkouts, "imports")}
            for number in range(arguments.rounds + 1):
                for name, checkout in checkouts.items():
                    cache = top / f"{name}-{number}"
                    shutil.copytree(top / name, cache)
                    found[name].append(seconds(RUN, [str(file.path)], checkout, cache))
                    shutil.rmtree(cache)
                found["imports"].append(seconds(IMPORTS, [], ROOT, top / "now"))
            times = {
                name: list(zip(*rounds[1:], strict=True)) for name, rounds in found.items()
            }  # the first is warm-up
            cells = [Spread.of(part).text() for name in checkouts for part in times[name]]
            report.rows.append((model, *cells, Spread.of(times["imports"][0]).text()))
            report.data.append({"model": model, **times})
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
