"""Tensors and attributes of a model file as arrays and Python values, validated before use."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, SparseTensorProto, TensorProto, numpy_helper

from taskmap.graph.importers.onnx.read.elements import numpy_type
from taskmap.ir.errors import ImportGraphError

Array = NDArray[Any]
LARGEST = 1 << 46
"""The largest number of bytes of a tensor: no machine holds more, so the file must be wrong."""


def shown(name: str) -> str:
    """A name of the model for a message: quoted, without control characters, shortened if long."""
    return repr(name if len(name) <= 100 else name[:97] + "...")


def array_of(tensor: TensorProto, folder: Path | None) -> Array:
    """The value of a tensor, with external data stored in ``folder``.

    Raises ImportGraphError for sizes that contradict the data, and for data outside the folder.
    """
    name = shown(tensor.name)
    if any(d < 0 for d in tensor.dims):
        raise ImportGraphError(f"the tensor {name} has a negative size", why=f"its shape is {list(tensor.dims)}")
    count = math.prod(tensor.dims)
    if count > LARGEST:
        raise ImportGraphError(f"the tensor {name} is too large", why=f"its shape is {list(tensor.dims)}")
    try:
        dtype = numpy_type(tensor.data_type)
    except (KeyError, TypeError, ValueError) as error:
        raise ImportGraphError(f"the tensor {name} has the element type {tensor.data_type}", why=str(error)) from error
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external(tensor, folder, dtype, count)
    if tensor.HasField("segment"):
        raise ImportGraphError(f"the tensor {name} is stored in segments")
    try:
        array = np.asarray(numpy_helper.to_array(tensor))
    except Exception as error:  # a damaged file can make the reader raise anything
        raise ImportGraphError(f"the tensor {name} cannot be read", why=f"{type(error).__name__}: {error}") from error
    if array.size != count:
        raise ImportGraphError(f"the tensor {name} has {array.size} elements, but its shape is {list(tensor.dims)}")
    return array


def _external(tensor: TensorProto, folder: Path | None, dtype: np.dtype[Any], count: int) -> Array:
    name = shown(tensor.name)
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ImportGraphError(
            f"the tensor {name} is stored in the file {shown(location)}",
            why="the model was given without a folder.",
            hint="Load the model by its path.",
        )
    path = inside(folder, location, name)
    if tensor.data_type == TensorProto.STRING:
        raise ImportGraphError(f"the tensor {name} of strings is stored in an external file, which is not allowed")
    bits = {4: 4, 2: 2}.get(_bits(dtype), dtype.itemsize * 8)
    needed = -(-count * bits // 8)
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or needed)
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        raise ImportGraphError(f"the data of the tensor {name} cannot be read", why=str(error)) from error
    if offset < 0 or length != needed or offset + length > size:
        raise ImportGraphError(
            f"the data of the tensor {name} do not fit",
            why=f"it needs {needed} bytes, but the model declares {length} at offset {offset}; the file has {size}.",
        )
    if bits < 8:
        small = TensorProto(dims=tensor.dims, data_type=tensor.data_type)
        with path.open("rb") as file:
            file.seek(offset)
            small.raw_data = file.read(length)
        return np.asarray(numpy_helper.to_array(small))
    if count == 0:
        return np.empty(tuple(tensor.dims), dtype)
    mapped = np.memmap(path, dtype=dtype.newbyteorder("<"), mode="c", offset=offset, shape=tuple(tensor.dims))
    return np.asarray(mapped)


def _bits(dtype: np.dtype[Any]) -> int:
    name = dtype.name
    return 4 if name in ("int4", "uint4", "float4_e2m1fn") else 2 if name in ("int2", "uint2") else dtype.itemsize * 8


def inside(folder: Path, location: str, name: str) -> Path:
    """The file ``location`` in ``folder``. Raises ImportGraphError if it is elsewhere, after links are followed."""
    refusal = ImportGraphError(
        f"the data of the tensor {name} lie outside the model's folder",
        why=f"the model places them in {shown(location)}.",
        hint="Only files in the folder of the model, or below it, are read.",
    )
    if not location or os.path.isabs(location) or "\0" in location or "\\" in location:
        raise refusal
    root = folder.resolve()
    path = (root / location).resolve()
    if not path.is_relative_to(root):
        raise refusal
    if not path.is_file():
        raise ImportGraphError(f"the data of the tensor {name} are missing", why=f"there is no file {shown(location)}.")
    return path


def sparse_array(sparse: SparseTensorProto, folder: Path | None) -> Array:
    """A sparse tensor as a dense array. Raises ImportGraphError for indices that do not fit its shape."""
    values, indices = array_of(sparse.values, folder), array_of(sparse.indices, folder)
    shape = tuple(int(d) for d in sparse.dims)
    if any(d < 0 for d in shape) or math.prod(shape) > LARGEST >> 8:
        raise ImportGraphError(f"a sparse tensor has the shape {list(shape)}")
    dense = np.zeros(shape, values.dtype)
    try:
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
    except (IndexError, ValueError) as error:
        raise ImportGraphError("the indices of a sparse tensor do not fit its shape", why=str(error)) from error
    return dense


def graphs_of(attribute: AttributeProto) -> list[GraphProto]:
    """The graphs in an attribute."""
    return [attribute.g] if attribute.type == AttributeProto.GRAPH else list(attribute.graphs)


def attribute_value(attribute: AttributeProto, folder: Path | None) -> Any:
    """The value of an attribute: number, text, array, graph, or a list of one of these."""
    kind = attribute.type
    if kind == AttributeProto.FLOAT:
        return float(attribute.f)
    if kind == AttributeProto.INT:
        return int(attribute.i)
    if kind == AttributeProto.STRING:
        return _text(attribute.s)
    if kind == AttributeProto.TENSOR:
        return attribute.t
    if kind == AttributeProto.SPARSE_TENSOR:
        return attribute.sparse_tensor
    if kind == AttributeProto.GRAPH:
        return attribute.g
    if kind == AttributeProto.FLOATS:
        return [float(v) for v in attribute.floats]
    if kind == AttributeProto.INTS:
        return [int(v) for v in attribute.ints]
    if kind == AttributeProto.STRINGS:
        return [_text(v) for v in attribute.strings]
    if kind == AttributeProto.TYPE_PROTO:
        return attribute.tp
    raise ImportGraphError(f"the attribute {shown(attribute.name)} has the type {kind}, which cannot be read")


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")
