"""Common to all targets with CUDA C++ kernels: a GPU, a GPU that is not present, the simulator."""

from __future__ import annotations

from collections.abc import Mapping

from taskmap.backend.cuda.codegen import generate
from taskmap.backend.cuda.compile import CudaCompiler
from taskmap.backend.cuda.source import CudaSource
from taskmap.graph.passes import GraphPass
from taskmap.graph.passes.weight_packing import WEIGHTS_CHANNELS_LAST
from taskmap.ir.errors import TaskmapError
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import Target
from taskmap.targets.platform import VECTOR_BYTES, Show, Source


class GpuCode:
    """The part of a ``Platform`` that does not depend on where kernels run: all plan graphs alike."""

    __slots__ = ()

    target: Target

    @property
    def suffix(self) -> str:
        """The suffix of files with kernel sources."""
        return ".cu"

    @property
    def alignment(self) -> int | None:
        """The address of every tensor is a multiple of this many bytes: the size of the widest access."""
        return VECTOR_BYTES

    @property
    def graph_passes(self) -> tuple[GraphPass, ...]:
        """The channels of weights become their last dimension; other weights are read as the model has them."""
        return (WEIGHTS_CHANNELS_LAST,)

    def generate(self, kernel: Kernel) -> CudaSource:
        """The CUDA C++ of a lowered kernel."""
        return generate(kernel, self.target)


class CompiledKernels:
    """The part of a ``Builder`` that compiles with NVRTC, whatever the binaries are used for."""

    __slots__ = ()

    compiler: CudaCompiler

    def __len__(self) -> int:
        """The number of kernels wanted so far."""
        return len(self.compiler)

    def add(self, source: Source) -> None:
        """Request a kernel."""
        assert isinstance(source, CudaSource)
        self.compiler.add(source)

    def refused(self, show: Show) -> Mapping[str, TaskmapError]:
        """By symbol, the reasons of refusals: a kernel spills registers, or its wgmma instructions are serialised."""
        return self.compiler.refused(show)

    def close(self) -> None:
        """Drop pending compilations."""
        self.compiler.close()
