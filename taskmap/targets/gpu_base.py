"""Common to all targets with CUDA C++ kernels: a GPU, a GPU that is not present, the simulator."""

from __future__ import annotations

from taskmap.backend.cuda.codegen import generate
from taskmap.backend.cuda.source import CudaSource
from taskmap.graph.passes import GraphPass
from taskmap.graph.passes.few_channels import FILL_CHANNELS
from taskmap.graph.passes.weight_packing import WEIGHTS_CHANNELS_LAST
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import GpuTarget
from taskmap.targets.platform import VECTOR_BYTES


class GpuCode:
    """The part of a ``Platform`` that does not depend on where kernels run: all plan graphs alike."""

    __slots__ = ()

    target: GpuTarget

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
        """Few channels become a vector; the channels of weights become their last dimension, and other weights are read
        as the model has them."""
        return (FILL_CHANNELS, WEIGHTS_CHANNELS_LAST)

    def generate(self, kernel: Kernel) -> CudaSource:
        """The CUDA C++ of a lowered kernel."""
        return generate(kernel, self.target)
