"""The proof of a kernel without a GPU: NVRTC accepts its text for every architecture that it was generated for, and in
the simulator it agrees with float64 in every order of threads, with copies landing late or early."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from taskmap.backend.counters import Counters
from taskmap.backend.cuda.compile import SUFFIX, CudaBinary, compile_cuda
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.cuda.toolchain import find_cuda_toolchain
from taskmap.backend.sim.building import build_kernels
from taskmap.backend.sim.run import Policy
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import KernelResourceError, TaskmapError
from taskmap.ir.nodes import Kernel
from tests.cuda_proof.reference import Exact, exact
from tests.cuda_proof.subjects import Subject
from tests.schedules.cuda_running import cuda, simulated, source_of

ARCHITECTURES = ("sm_80", "sm_90a")
RUNS: tuple[tuple[Policy, int], ...] = (("late", 0), ("early", 1), ("late", 7), ("early", 7))
"""The time at which copies land, and the order of threads: ascending, descending, and one random."""
SOME_RUNS = (RUNS[0], RUNS[3])
"""Each time and a fixed and a random order, once."""

_TOGETHER = 6
"""Kernels compiled for the host as one text."""


@dataclass(slots=True)
class Corner:
    """One kernel of a subject: the configuration, and for each architecture its source and its machine code; or
    (``spilled``) the reasons why its registers do not suffice."""

    subject: Subject
    config: str
    kernel: Kernel
    sources: dict[str, CudaSource] = field(default_factory=dict)
    error: float = 0.0
    runs: int = 0
    binaries: dict[str, CudaBinary] = field(default_factory=dict)
    spilled: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.subject} [{self.config}]"


def corners(
    subject: Subject, architectures: Sequence[str] = ARCHITECTURES, configs: Collection[str] | None = None
) -> list[Corner]:
    """The kernels of a subject, those of different architectures with the same note as one; ``configs``: only these."""
    found: dict[str, Corner] = {}
    for isa in architectures:
        for config, choice in subject.corners(cuda(isa)).items():
            if configs is not None and config not in configs:
                continue
            kernel = choice.make()
            corner = found.setdefault(f"{config} {kernel.note}", Corner(subject, config, kernel))
            corner.sources[isa] = source_of(kernel, isa)
    return list(found.values())


def body(source: CudaSource) -> str:
    """The text of a kernel without the names of its architecture and of itself."""
    return source.text.replace(source.isa, "").replace(source.symbol, "")


class Proof:
    """Proves corners: compiles their texts side by side, each text once, and runs them one after the other."""

    def __init__(self, jobs: int = 2, *, native: bool = True, runs: Sequence[tuple[Policy, int]] = RUNS) -> None:
        self._runs = runs
        self._store, self._cubins = KernelStore(), KernelStore(suffix=SUFFIX)
        self._pool = ThreadPoolExecutor(jobs)
        self._native = native
        self._exact: dict[int, Exact] = {}

    def prove(self, every: Sequence[Corner]) -> None:
        """Fills in the results of each corner."""
        binaries = [
            (c, isa, self._pool.submit(self.compile, source, isa))
            for c in every
            for isa, source in c.sources.items()
            if self._native
        ]
        texts = list({s.symbol: s for c in every for s in self.distinct(c).values()}.values())
        units = [texts[n : n + _TOGETHER] for n in range(0, len(texts), _TOGETHER)]
        for built in [self._pool.submit(build_kernels, unit, self._store) for unit in units]:
            built.result()
        for c in every:
            self.simulate(c)
        for c, isa, binary in binaries:
            try:
                c.binaries[isa] = binary.result()
            except TaskmapError as error:
                if isinstance(error, KernelResourceError) and "runs out of registers" in error.what:
                    c.spilled[isa] = str(error)
                else:
                    c.failures.append(f"NVRTC for {isa}: {error}")

    def compile(self, source: CudaSource, isa: str) -> CudaBinary:
        """The machine code of a source, which must not spill registers."""
        return compile_cuda([source], find_cuda_toolchain(isa), self._cubins, Counters(), jobs=1)[source.symbol]

    def distinct(self, c: Corner) -> dict[str, CudaSource]:
        """The sources of a corner whose texts differ."""
        return {body(s): s for s in c.sources.values()}

    def simulate(self, c: Corner) -> None:
        """Run the corner in all ways."""
        case = c.subject.case
        reference = self._exact.setdefault(id(case), exact(case))
        for source in self.distinct(c).values():
            for policy, seed in self._runs:
                try:
                    results = simulated(case, c.kernel, source, seed, policy)
                except (TaskmapError, AssertionError) as error:
                    c.failures.append(f"{policy}, order {seed}: {error}")
                    break
                c.runs += 1
                c.error = max(c.error, reference.error(results, c.subject.limits))
        if c.error > 1:
            c.failures.append(f"the result is off by {c.error:.3g} of what is allowed")

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)
