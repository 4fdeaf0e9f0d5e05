"""Everything besides the code that a GPU figure depends on."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from taskmap.backend.cuda.driver import open_driver
from taskmap.backend.cuda.nvrtc import nvrtc_version

ROOT = Path(__file__).parents[2]
_cudnn_version: Callable[[], int | None] = torch.backends.cudnn.version  # which carries no types
_ASKED = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "temperature.gpu")


@dataclass(frozen=True, slots=True)
class GpuConditions:
    """The machine and its state when a run began, before its clocks rose. code: a digest of taskmap's sources."""

    device: str
    capability: str
    multiprocessors: int
    memory_bytes: int
    torch: str
    cuda: str
    driver: str
    cudnn: str
    nvrtc: str
    triton: str
    python: str
    system: str
    code: str
    state: dict[str, str]
    workspaces: dict[str, str]
    inputs: str
    method: str
    seed: int
    started: str

    @classmethod
    def now(cls, seed: int, inputs: str, method: str) -> GpuConditions:
        """The conditions of this process's GPU."""
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return cls(
            device=properties.name,
            capability=f"{properties.major}.{properties.minor}",
            multiprocessors=properties.multi_processor_count,
            memory_bytes=properties.total_memory,
            torch=torch.__version__,
            cuda=str(torch.version.cuda),
            driver=f"CUDA {open_driver().version}",
            cudnn=str(_cudnn_version()),
            nvrtc=".".join(map(str, nvrtc_version())),
            triton=_version("triton"),
            python=platform.python_version(),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            code=code_digest(),
            state=gpu_state(),
            workspaces={name: value for name, value in os.environ.items() if name.startswith("CUBLAS")},
            inputs=inputs,
            method=method,
            seed=seed,
            started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )

    def to_dict(self) -> dict[str, Any]:
        """The conditions as JSON data."""
        return asdict(self)


def gpu_state() -> dict[str, str]:
    """Driver, clocks, power and temperature now, as reported by nvidia-smi."""
    return state_while(lambda: time.sleep(0.01))


def state_while(work: Callable[[], object], seconds: float = 20.0) -> dict[str, str]:
    """The same while ``work``, which waits for the GPU, is repeated: the clocks of the measurement."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader", "--id=0"]
    try:
        asked = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return {}
    end = time.perf_counter() + seconds
    with asked:
        while asked.poll() is None:
            if time.perf_counter() > end:
                asked.kill()
            work()
        answer = asked.stdout.read() if asked.stdout else ""
    values = [value.strip() for value in answer.strip().split(",")]
    return dict(zip(_ASKED, values, strict=True)) if len(values) == len(_ASKED) else {}


@lru_cache(maxsize=1)
def code_digest() -> str:
    """A digest of all of taskmap's sources that can change a figure."""
    digest = hashlib.sha256()
    for room in ("ir", "graph", "schedules", "backend", "taskmap", "benchmarks/gpu", "benchmarks/models"):
        for path in sorted((ROOT / room).rglob("*.*")):
            if path.suffix in (".py", ".cuh", ".h", ".c"):
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _version(package: str) -> str:
    if find_spec(package) is None:
        return "not installed"
    return str(getattr(__import__(package), "__version__", "unknown"))
