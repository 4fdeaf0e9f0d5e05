"""What every target whose kernels are CUDA C++ has in common: a GPU, one that is not here, the simulator."""

from __future__ import annotations

from collections.abc import Mapping

from taskmap.backend.cuda.codegen import generate
from taskmap.backend.cuda.compile import CudaCompiler
from taskmap.backend.cuda.cuda_source import CudaSource
from taskmap.graph.nodes import Graph
from taskmap.graph.passes.weight_packing import weights_channels_last
from taskmap.ir.errors import TaskmapError
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import Target
from taskmap.targets.platform import VECTOR_BYTES, Show, Source


class GpuCode:
    """The part of a ``Platform`` that does not depend on where kernels run: graphs are planned alike everywhere."""

    __slots__ = ()

    target: Target

    @property
    def suffix(self) -> str:
        """The ending of files that hold the source of kernels."""
        return ".cu"

    @property
    def alignment(self) -> int | None:
        """Bytes of which the address of every tensor is a multiple: those of the widest access."""
        return VECTOR_BYTES

    def arranged(self, graph: Graph) -> Graph:
        """The graph with the channels of weights last; other weights are read as the model has them."""
        return weights_channels_last(graph)

    def generate(self, kernel: Kernel) -> CudaSource:
        """The CUDA C++ of a lowered kernel."""
        return generate(kernel, self.target)


class CompiledKernels:
    """The part of a ``Builder`` that compiles by NVRTC, whatever becomes of the binaries."""

    __slots__ = ()

    compiler: CudaCompiler

    def __len__(self) -> int:
        """The number of kernels wanted so far."""
        return len(self.compiler)

    def add(self, source: Source) -> None:
        """A kernel is wanted."""
        assert isinstance(source, CudaSource)
        self.compiler.add(source)

    def refused(self, show: Show) -> Mapping[str, TaskmapError]:
        """By symbol, why kernels spill registers, or their tensor instructions wait for each other."""
        return self.compiler.refused(show)

    def close(self) -> None:
        """Give up what has not been compiled."""
        self.compiler.close()
