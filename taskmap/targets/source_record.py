"""Sources of kernels as plain data, and back: JSON values only, and reading them executes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from taskmap.backend.cuda.source import ALLOWANCES, CudaSource
from taskmap.backend.cuda.tensor_map import MapParameter
from taskmap.backend.store.key import KernelSource
from taskmap.ir.nodes import Var
from taskmap.ir.types import ALL_DTYPES, OPERAND_DTYPES, dtype_named
from taskmap.ir.util.codec import FLAG, TEXT, Codec, Json, many, one_of, record, text, whole
from taskmap.util.size_codec import size_codec

Source = KernelSource | CudaSource
"""A kernel's text, with the facts needed to call it."""

_MOST_SHARED = 1 << 20
_MOST_BLOCKS = 16  # of a cluster
_MOST_RANK = 5  # of a tensor map
_SWIZZLES = (0, 32, 64, 128)
_NAMES: Codec[str] = one_of([t.name for t in (*ALL_DTYPES, *OPERAND_DTYPES)])
_DTYPE = Codec(lambda dtype: dtype.name, lambda j: dtype_named(_NAMES.read(j)))
_OWN = many(whole(0, 1 << 46))
_CLUSTER = (
    many(whole(1, _MOST_BLOCKS + 1))
    .where(lambda sizes: len(sizes) == 3, "three numbers")
    .where(lambda sizes: prod(sizes) <= _MOST_BLOCKS, f"at most {_MOST_BLOCKS} blocks")
)
_CODE = text(1 << 28)
_DEFINITIONS = many(_CODE)
_PRELUDE: Codec[str | tuple[str, ...]] = Codec(
    lambda prelude: prelude if isinstance(prelude, str) else list(prelude),
    lambda j: _CODE.read(j) if isinstance(j.value, str) else _DEFINITIONS.read(j),
)
_CPU = record(KernelSource, symbol=TEXT, text=_CODE, prelude=_PRELUDE, needs_error=FLAG)
_DIMS: Codec[tuple[Var, ...]] = Codec(lambda dims: [v.name for v in dims], lambda j: j.each(lambda n: Var(n.text())))


def _write(source: Source) -> dict[str, Any]:
    codec = _CPU if isinstance(source, KernelSource) else _gpu(source.dims)
    written: dict[str, Any] = codec.write(source)  # type: ignore[arg-type]  # the codec of this very kind
    return written


def _read(j: Json) -> Source:
    return _gpu(_DIMS.read(j.field("dims"))).read(j) if j.has("grid") else _CPU.read(j)


SOURCE: Codec[Source] = Codec(_write, _read)
"""A source. Writing one raises UnsupportedError for a size that cannot be represented."""


def launch_fields(dims: Sequence[Var]) -> dict[str, Codec[Any]]:
    """The fields of a CudaSource that its launches read. ``dims``: its symbolic sizes."""
    size = size_codec({f"n{i}": var for i, var in enumerate(dims)})
    tensor_map = record(
        MapParameter,
        buffer=whole(0, 1 << 12),
        type=_DTYPE.of("dtype"),
        shape=many(size),
        strides=many(size),
        offset=size,
        box=many(whole(1, 257)),
        swizzle=whole().where(lambda n: n in _SWIZZLES, f"one of {', '.join(map(str, _SWIZZLES))}"),
    ).where(_is_tensor_map, f"a tensor map of up to {_MOST_RANK} dimensions")
    return {
        "error": FLAG.of("needs_error"),
        "grid": many(size).where(lambda grid: 1 <= len(grid) <= 3, "one to three sizes"),
        "threads": whole(1, 1025),
        "shared_bytes": whole(0, _MOST_SHARED),
        "cluster": _CLUSTER,
        "workspace": _OWN,
        "counters": _OWN,
        "maps": many(tensor_map),
    }


def _gpu(dims: Sequence[Var]) -> Codec[CudaSource]:
    return record(
        CudaSource,
        symbol=TEXT,
        text=_CODE,
        families=many(TEXT),
        isa=TEXT,
        allow=many(one_of(ALLOWANCES)),
        dims=Codec(_DIMS.write, lambda _: tuple(dims)),
        **launch_fields(dims),
    )


def _is_tensor_map(m: MapParameter) -> bool:
    return 1 <= len(m.box) <= _MOST_RANK and len(m.shape) == len(m.strides) == len(m.box)
