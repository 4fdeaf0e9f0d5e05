"""One compilation in a process of its own: builds a model, runs it under one engine, prints the results as JSON.

For `compile_time` and `memory`, whose figures belong to a whole process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import MODELS
from benchmarks.support.engines import ENGINES

CACHES = ("TASKMAP_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")
"""Environment variables that name the folders in which an engine keeps what it compiled."""


def spawn(model: str, engine: str, seed: int, threads: int, cache: Path, small: bool = False) -> dict[str, Any]:
    """Runs this module with `cache` as the only place for compiled code, and returns its results.

    A failure is an entry "error" with the last line that the process wrote.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TQDM_DISABLE": "1"}
    environment |= {variable: str(cache / variable.lower()) for variable in CACHES}
    command = [
        sys.executable,
        "-m",
        "benchmarks.support.child",
        model,
        engine,
        "--seed",
        str(seed),
        "--threads",
        str(threads),
    ]
    done = subprocess.run(
        command + ["--small"] * small,
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1] if lines else f"exit status {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def peak() -> float:
    """The largest resident set of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Prints one line of JSON: seconds of the first and of later calls, and peak memory (MiB) before and after them."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("model", choices=list(MODELS))
    cli.add_argument("engine", choices=list(ENGINES))
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument("--threads", type=int, default=2)
    cli.add_argument("--small", action="store_true")
    arguments = cli.parse_args()
    torch.set_num_threads(arguments.threads)
    module, args, kwargs = MODELS[arguments.model].build(arguments.seed, arguments.small)
    with torch.no_grad():
        built = peak()
        begin = time.perf_counter()
        run = ENGINES[arguments.engine].prepare(module, args, kwargs)
        run()
        first = time.perf_counter() - begin
        later = []
        for _ in range(3):
            begin = time.perf_counter()
            run()
            later.append(time.perf_counter() - begin)
    found = {
        "first_call_seconds": first,
        "later_call_seconds": min(later),
        "built_mib": built,
        "peak_mib": peak(),
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
