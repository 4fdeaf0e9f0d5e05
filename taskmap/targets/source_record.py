"""Sources of kernels as plain data, and back: JSON values only, and reading them executes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskmap.backend.cuda.cuda_source import CudaSource
from taskmap.backend.cuda.tensor_map import MapParameter
from taskmap.backend.store.key import KernelSource
from taskmap.ir.construct import binary, index
from taskmap.ir.nodes import Binary, Const, Dim, Var
from taskmap.ir.types import dtype_named

Source = KernelSource | CudaSource
"""A kernel's text, with the facts needed to call it."""


def record_of(source: Source) -> dict[str, Any]:
    """The fields of a source. Raises ValueError for a source that cannot be represented."""
    if isinstance(source, KernelSource):
        return {
            "symbol": source.symbol,
            "text": source.text,
            "prelude": source.prelude if isinstance(source.prelude, str) else list(source.prelude),
            "needs_error": source.needs_error,
        }
    return {
        "symbol": source.symbol,
        "text": source.text,
        "families": list(source.families),
        "needs_error": source.needs_error,
        "grid": [_size_record(d, source.dims) for d in source.grid],
        "threads": source.threads,
        "shared_bytes": source.shared_bytes,
        "dims": [v.name for v in source.dims],
        "cluster": list(source.cluster),
        "isa": source.isa,
        "allow": list(source.allow),
        "maps": [_map_record(m, source.dims) for m in source.maps],
        "workspace": list(source.workspace),
        "counters": list(source.counters),
    }


def source_from(record: Mapping[str, Any]) -> Source:
    """The source of a record. Raises KeyError, TypeError or ValueError for an invalid record."""
    if "grid" not in record:
        prelude = record["prelude"]
        return KernelSource(
            symbol=record["symbol"],
            text=record["text"],
            prelude=prelude if isinstance(prelude, str) else tuple(prelude),
            needs_error=record["needs_error"],
        )
    dims = tuple(Var(name) for name in record["dims"])
    x, y, z = record["cluster"]
    return CudaSource(
        symbol=record["symbol"],
        text=record["text"],
        families=tuple(record["families"]),
        needs_error=record["needs_error"],
        grid=tuple(_size_from(d, dims) for d in record["grid"]),
        threads=record["threads"],
        shared_bytes=record["shared_bytes"],
        dims=dims,
        cluster=(x, y, z),
        isa=record["isa"],
        allow=tuple(record["allow"]),
        maps=tuple(_map_from(m, dims) for m in record["maps"]),
        workspace=tuple(record["workspace"]),
        counters=tuple(record["counters"]),
    )


def _size_record(size: Dim, dims: Sequence[Var]) -> Any:
    """A number; {"size": i} for the i-th symbolic size; [op, a, b]."""
    match size:
        case int():
            return size
        case Const(value=value):
            return int(value)
        case Var():
            return {"size": list(dims).index(size)}
        case Binary(op=op, a=a, b=b):
            return [op, _size_record(a, dims), _size_record(b, dims)]
        case _:
            raise ValueError(f"the size {size!r} cannot be written down")


def _size_from(record: Any, dims: Sequence[Var]) -> Dim:
    match record:
        case int():
            return record
        case {"size": int(i)}:
            return dims[i]
        case [str(op), a, b]:
            return binary(op, index(_size_from(a, dims)), index(_size_from(b, dims)))
        case _:
            raise ValueError(f"{record!r} is not a size")


def _map_record(m: MapParameter, dims: Sequence[Var]) -> dict[str, Any]:
    return {
        "buffer": m.buffer,
        "dtype": m.dtype.name,
        "shape": [_size_record(d, dims) for d in m.shape],
        "strides": [_size_record(d, dims) for d in m.strides],
        "box": list(m.box),
        "swizzle": m.swizzle,
        "offset": _size_record(m.offset, dims),
    }


def _map_from(record: Mapping[str, Any], dims: Sequence[Var]) -> MapParameter:
    return MapParameter(
        buffer=record["buffer"],
        dtype=dtype_named(record["dtype"]),
        shape=tuple(_size_from(d, dims) for d in record["shape"]),
        strides=tuple(_size_from(d, dims) for d in record["strides"]),
        box=tuple(record["box"]),
        swizzle=record["swizzle"],
        offset=_size_from(record["offset"], dims),
    )
