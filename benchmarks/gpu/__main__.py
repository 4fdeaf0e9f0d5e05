"""Checks and measures everything on a GPU, in less than nine minutes, without a network: `make gpu`.

python -m benchmarks.gpu [--out FOLDER] [--seconds 500] [--only SECTION ...] [--resume]

Each part is a process of its own, so that a kernel that crashes ends no other part; the part is begun again behind it.
What the time did not suffice for is named in the part's JSON, and --resume goes on with that. Without a GPU nothing is
done. PyTorch with CUDA, numpy and cuda-bindings suffice; where pytest and hypothesis are installed, tests of the suite
run on the GPU, too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.record import LOST

ROOT = Path(__file__).parents[2]
WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUBLASLT_WORKSPACE_SIZE": "32768"}
"""What PyTorch gives cuBLAS to work in: 32 MiB, as NVIDIA advises for Hopper."""

_MOST_STARTS = 4
_TESTS = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=", "--no-header",
          "--tb=short", "--maxfail=40"]  # fmt: skip
_PART = [sys.executable, "-m"]
_KERNELS = [*_PART, "benchmarks.gpu.kernels", "--section"]


@dataclass(frozen=True, slots=True)
class Part:
    """A command with its share of the time. benches: it takes --seconds, --out and --resume. needs: modules that it
    imports.
    """

    name: str
    command: list[str]
    share: float
    benches: bool = False
    needs: tuple[str, ...] = ()

    @property
    def lacks(self) -> list[str]:
        """What of it is not installed here."""
        return [name for name in self.needs if find_spec(name) is None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part ended: passed, failed, out of time; or skipped, where what it needs is not installed. starts: how
    often it was begun.
    """

    name: str
    status: str
    seconds: float
    starts: int = 1


def parts(workers: int) -> list[Part]:
    """What is done, in order: checks of kernels, instructions and the runtime, then figures."""
    spread = ["-n", str(workers)] if workers > 1 and find_spec("xdist") else []
    on_gpu = [*_TESTS, *spread, "-p", "benchmarks.gpu.plugin"]
    found = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/schedules").glob("test_cuda_*.py"))
    kernels = [path for path in found if "mutants" not in path]  # broken ones would end the process's GPU context
    return [
        Part("corners", [*_PART, "benchmarks.gpu.corners"], 0.12, benches=True),
        Part("instructions", [*_PART, "benchmarks.gpu.instructions"], 0.14, benches=True),
        Part("runtime", [*_PART, "benchmarks.gpu.runtime"], 0.06, benches=True),
        Part("kernels", [*on_gpu, *kernels], 0.08, needs=("pytest", "hypothesis")),
        Part("matmul", [*_KERNELS, "matmul"], 0.12, benches=True),
        Part("attention", [*_KERNELS, "attention"], 0.05, benches=True),
        Part("memory", [*_KERNELS, "memory"], 0.05, benches=True),
        Part("convolution", [*_KERNELS, "convolution"], 0.10, benches=True),
        Part("networks", [*_PART, "benchmarks.gpu.networks"], 0.28, benches=True),
    ]


def run(part: Part, seconds: float, out: Path, cache: str, *, resume: bool = False) -> Outcome:
    """Run a part, again where it says that its GPU's context is lost, and end it with all that it has started when its
    time is over.
    """
    started = time.perf_counter()
    end, starts = started + seconds, 0
    code: int | None = LOST
    print(f"\n== {part.name}, at most {seconds:.0f} s", flush=True)
    while code == LOST and starts < _MOST_STARTS:
        left = end - time.perf_counter()
        command = list(part.command)
        if part.benches:
            command += ["--seconds", f"{0.8 * left:.0f}", "--out", str(out)]
            command += ["--resume"] if resume or starts else []
        code = _ended(command, left, cache)
        starts += 1
    status = "out of time" if code is None else "passed" if code == 0 else "failed"
    return Outcome(part.name, status, time.perf_counter() - started, starts)


def _ended(command: list[str], seconds: float, cache: str) -> int | None:
    """The exit status of a process; None when it had to be ended."""
    environment = {**WORKSPACES, **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment.setdefault("TASKMAP_CACHE_DIR", cache)
    environment["PYTHONUNBUFFERED"] = "1"
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait(max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def gpu_missing() -> str:
    """Why nothing can be done, or nothing."""
    try:
        import torch  # noqa: PLC0415  the message below is for machines without it
    except ImportError as error:
        return f"PyTorch is not installed: {error}"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU"
    return ""


def main(argv: list[str] | None = None) -> int:
    """The command: 0 when all parts passed, or there is no GPU; 1 otherwise."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--out", type=Path, default=ROOT / "gpu-results", help="the folder of the JSON files")
    cli.add_argument("--seconds", type=float, default=500.0, help="of the whole run")
    cli.add_argument("--only", nargs="+", choices=[part.name for part in parts(1)])
    cli.add_argument("--resume", action="store_true", help="go on with what is in the folder, of the same code")
    cli.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="processes of the tests")
    arguments = cli.parse_args(argv)
    missing = gpu_missing()
    if missing:
        print(f"nothing is checked on a GPU: {missing}.")
        return 0
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    chosen = [part for part in parts(arguments.workers) if arguments.only is None or part.name in arguments.only]
    end = time.perf_counter() + arguments.seconds
    outcomes: list[Outcome] = []
    with TemporaryDirectory(prefix="taskmap-gpu-") as cache:
        for number, part in enumerate(chosen):
            left = end - time.perf_counter()
            share = part.share / sum(later.share for later in chosen[number:])
            if part.lacks:
                print(f"\n== {part.name} is skipped: {', '.join(part.lacks)} is not installed", flush=True)
                outcomes.append(Outcome(part.name, "skipped", 0.0))
                continue
            # What earlier parts have left over belongs to the later ones.
            late = Outcome(part.name, "out of time", 0.0)
            outcomes.append(run(part, left * share, out, cache, resume=arguments.resume) if left > 5 else late)
    print("\nsummary")
    for outcome in outcomes:
        print(f"  {outcome.name:14}{outcome.status:12}{outcome.seconds:6.0f} s")
    (out / "gpu.json").write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n", encoding="utf-8")
    return int(any(outcome.status not in ("passed", "skipped") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
