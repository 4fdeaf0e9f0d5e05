"""GPU launch parameters as stored in an archive's manifest: geometry, scratch memory, tensor maps.

A kernel's symbolic sizes are called n0, n1, ... in the order of its parameters. Reading gives a CudaSource without
text: nothing from an archive is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.program.structure import Launch, Program
from taskmap.ir.nodes import Var
from taskmap.ir.util.codec import TEXT, Codec, Json, record
from taskmap.targets.source_record import launch_fields


def kernel_codec(isa: str) -> Codec[CudaSource]:
    """The launches of a kernel, written for ``isa``. Raises UnsupportedError for a size that cannot be represented."""

    def fields(dims: Sequence[Var]) -> dict[str, Codec[Any]]:
        return {"symbol": TEXT, "sizes": Codec(len, lambda _: tuple(dims)).of("dims"), **launch_fields(dims)}

    def read(j: Json) -> CudaSource:
        dims = [Var(f"n{i}") for i in range(j.field("sizes").number(0, 1 << 12))]
        return record(_kernel, **fields(dims)).read(j)

    def _kernel(**given: Any) -> CudaSource:
        return CudaSource(text="", families=(), isa=isa, **given)

    return Codec(lambda source: record(_kernel, **fields(source.dims)).write(source), read)


def check_launches(kernels: Mapping[str, CudaSource], program: Program) -> None:
    """Raises ValueError for a launch whose arguments do not match the kernel's parameters."""
    for step in program.steps:
        assert isinstance(step, Launch)
        kernel = kernels.get(step.symbol)
        if kernel is None:
            raise ValueError(f"the manifest does not describe the launch of {step.symbol}.")
        mapped = max((m.buffer + 1 for m in kernel.maps), default=0)
        if len(step.dims) != len(kernel.dims) or step.needs_error != kernel.needs_error or mapped > len(step.buffers):
            raise ValueError(f"a step launches {step.symbol} with arguments that it does not take.")
