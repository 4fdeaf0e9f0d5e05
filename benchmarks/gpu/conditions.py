"""What a figure of a GPU depends on beside the code."""

from __future__ import annotations

import platform
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from taskmap.backend.cuda.nvrtc import nvrtc_version

_ASKED = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "temperature.gpu")


@dataclass(frozen=True, slots=True)
class GpuConditions:
    """The machine and its state when a run began."""

    device: str
    capability: str
    multiprocessors: int
    memory_bytes: int
    torch: str
    cuda: str
    nvrtc: str
    python: str
    system: str
    state: dict[str, str]
    inputs: str
    method: str
    seed: int
    started: str

    @classmethod
    def now(cls, seed: int) -> GpuConditions:
        """Of this process's GPU."""
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return cls(
            device=properties.name,
            capability=f"{properties.major}.{properties.minor}",
            multiprocessors=properties.multi_processor_count,
            memory_bytes=properties.total_memory,
            torch=torch.__version__,
            cuda=str(torch.version.cuda),
            nvrtc=".".join(map(str, nvrtc_version())),
            python=platform.python_version(),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            state=gpu_state(),
            inputs="standard normal; several sets, together larger than the L2 cache",
            method="CUDA graphs of up to 64 calls, replayed for windows of 30 ms; engines take turns in random order",
            seed=seed,
            started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def gpu_state() -> dict[str, str]:
    """Driver, clocks, power and temperature now, where nvidia-smi says them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader", "--id=0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [value.strip() for value in answer.stdout.strip().split(",")]
    return dict(zip(_ASKED, values, strict=True)) if len(values) == len(_ASKED) else {}
