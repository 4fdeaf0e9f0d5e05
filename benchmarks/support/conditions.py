"""The conditions of a measurement, and how quiet the machine was during it."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Conditions:
    """Everything besides the code that a figure depends on."""

    seed: int
    threads: int
    rounds: int
    torch: str
    python: str
    system: str
    cpu: str
    isa: str
    cores: int
    started: str

    @classmethod
    def now(cls, seed: int, threads: int, rounds: int) -> Conditions:
        """The conditions of this process on this machine."""
        return cls(
            seed=seed,
            threads=threads,
            rounds=rounds,
            torch=torch.__version__,
            python=platform.python_version(),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            cpu=cpu_model(),
            isa=torch.backends.cpu.get_cpu_capability(),
            cores=os.cpu_count() or 1,
            started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )

    def __str__(self) -> str:
        return (
            f"{self.cpu} ({self.cores} cores, {self.isa}), {self.threads} threads, torch {self.torch}, "
            f"{self.rounds} rounds, seed {self.seed}"
        )


def cpu_model() -> str:
    """The processor's name, family and model (a virtual machine often hides the name)."""
    fields = {}
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    for line in text.partition("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    name = fields.get("model name", platform.machine())
    return f"{name} family {fields['cpu family']} model {fields['model']}" if "cpu family" in fields else name


def stolen_ticks() -> tuple[int, int]:
    """Clock ticks that the hypervisor gave to other machines, and all ticks, summed over the cores since boot.

    (0, 0) if the system does not report them.
    """
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return 0, 0
    ticks = [int(word) for word in first.split()[1:9]]  # user nice system idle iowait irq softirq steal
    return ticks[7], sum(ticks)


class StealMeter:
    """The fraction of processor time stolen since the meter was made."""

    def __init__(self) -> None:
        self._start = stolen_ticks()

    def fraction(self) -> float:
        """Stolen time over all time, 0 to 1; 0 if no tick has passed."""
        stolen, total = (now - then for now, then in zip(stolen_ticks(), self._start, strict=True))
        return stolen / total if total else 0.0


class Probe:
    """A short matrix multiplication that shows how busy a shared machine is.

    `best` is the highest rate it has seen, in GFLOP/s: keep one probe for several runs, and a run that falls into a bad
    phase as a whole is known for what it is.
    """

    def __init__(self, size: int = 768, seconds: float = 0.03) -> None:
        generator = torch.Generator().manual_seed(0)
        self._a = torch.randn(size, size, generator=generator)
        self._b = torch.randn(size, size, generator=generator)
        self._out = torch.empty(size, size)
        self._flops = 2 * size**3
        self._seconds = seconds
        self.best = 0.0

    def gflops(self) -> float:
        """The rate reached now, in 10^9 floating-point operations a second."""
        torch.mm(self._a, self._b, out=self._out)
        calls = 0
        start = time.perf_counter()
        while (spent := time.perf_counter() - start) < self._seconds or calls == 0:
            torch.mm(self._a, self._b, out=self._out)
            calls += 1
        rate = self._flops * calls / max(spent, 1e-9) / 1e9
        self.best = max(self.best, rate)
        return rate
