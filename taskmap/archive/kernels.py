"""GPU launch parameters as stored in an archive's manifest: geometry, scratch memory, tensor maps.

A kernel's symbolic sizes are called n0, n1, ... in the order of its parameters. Reading gives a CudaSource without
text: nothing from an archive is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from taskmap.archive.json import Json
from taskmap.archive.sizes import record_of, size_from
from taskmap.backend.cuda.cuda_source import CudaSource
from taskmap.backend.cuda.tensor_map import MapParameter
from taskmap.backend.program.structure import Launch, Program
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.types import ALL_DTYPES, OPERAND_DTYPES, dtype_named

_MOST_THREADS = 1024
_MOST_SHARED = 1 << 20
_MOST_BLOCKS = 16  # of a cluster
_MOST_RANK = 5  # of a tensor map
_MOST_OWN = 1 << 46
_SWIZZLES = (0, 32, 64, 128)
_TYPES = tuple(t.name for t in (*ALL_DTYPES, *OPERAND_DTYPES))


def kernel_record(source: CudaSource) -> dict[str, Any]:
    """The launches of a kernel as JSON. Raises UnsupportedError for a size that cannot be represented."""
    names = {var: f"n{i}" for i, var in enumerate(source.dims)}

    def sizes(dims: Sequence[Dim]) -> list[Any]:
        return [record_of(d, names) for d in dims]

    return {
        "symbol": source.symbol,
        "sizes": len(source.dims),
        "error": source.needs_error,
        "grid": sizes(source.grid),
        "threads": source.threads,
        "shared_bytes": source.shared_bytes,
        "cluster": list(source.cluster),
        "workspace": list(source.workspace),
        "counters": list(source.counters),
        "maps": [
            {"buffer": m.buffer, "type": m.dtype.name, "shape": sizes(m.shape), "strides": sizes(m.strides),
             "offset": record_of(m.offset, names), "box": list(m.box), "swizzle": m.swizzle}
            for m in source.maps
        ],
    }  # fmt: skip


def kernel_from(j: Json, isa: str) -> CudaSource:
    """A kernel of the manifest. Raises ValueError for an invalid one."""
    dims = tuple(Var(f"n{i}") for i in range(j.field("sizes").number(0, 1 << 12)))
    names = {var.name: var for var in dims}
    grid = _sizes(j.field("grid"), names)
    if not 1 <= len(grid) <= 3:
        raise j.field("grid").wrong("one to three sizes")
    x, y, z = _three(j.field("cluster"))
    if prod((x, y, z)) > _MOST_BLOCKS:
        raise j.field("cluster").wrong(f"at most {_MOST_BLOCKS} blocks")
    try:
        return CudaSource(
            symbol=j.field("symbol").text(),
            text="",
            families=(),
            needs_error=j.field("error").flag(),
            grid=grid,
            threads=j.field("threads").number(1, _MOST_THREADS + 1),
            shared_bytes=j.field("shared_bytes").number(0, _MOST_SHARED),
            dims=dims,
            cluster=(x, y, z),
            isa=isa,
            maps=j.field("maps").each(lambda m: _map(m, names)),
            workspace=j.field("workspace").each(_own),
            counters=j.field("counters").each(_own),
        )
    except ValueError as error:
        raise ValueError(f"{j.path}: {error}") from error


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


def _map(j: Json, names: Mapping[str, Var]) -> MapParameter:
    shape, strides = (_sizes(j.field(n), names) for n in ("shape", "strides"))
    box = j.field("box").each(lambda n: n.number(1, 257))
    if not 1 <= len(box) <= _MOST_RANK or not len(shape) == len(strides) == len(box):
        raise j.wrong(f"a tensor map of up to {_MOST_RANK} dimensions")
    swizzle = j.field("swizzle").number()
    if swizzle not in _SWIZZLES:
        raise j.field("swizzle").wrong(f"one of {', '.join(map(str, _SWIZZLES))}")
    dtype, offset = dtype_named(j.field("type").one_of(_TYPES)), size_from(j.field("offset").value, names)
    return MapParameter(j.field("buffer").number(0, 1 << 12), dtype, shape, strides, box, swizzle, offset)


def _own(j: Json) -> int:
    return j.number(0, _MOST_OWN)


def _sizes(j: Json, names: Mapping[str, Var]) -> tuple[Dim, ...]:
    return j.each(lambda s: size_from(s.value, names))


def _three(j: Json) -> tuple[int, int, int]:
    sizes = j.each(lambda n: n.number(1, _MOST_BLOCKS + 1))
    if len(sizes) != 3:
        raise j.wrong("three numbers")
    return sizes[0], sizes[1], sizes[2]
