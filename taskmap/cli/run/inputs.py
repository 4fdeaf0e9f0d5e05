"""The inputs of `taskmap run`: arrays from files, or random ones."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taskmap.cli.shapes import Shape, dimension_sizes, one_size
from taskmap.ir.errors import InputError
from taskmap.ir.util.lazy import lazily

Array = NDArray[Any]
_MOST_BYTES = 1 << 33
_SUFFIXES = ".npy, .npz, .pb (a TensorProto) or .bin (raw), or a folder of test data (input_0.pb, ...)"
_TEST_INPUT = re.compile(r"input_([0-9]{1,4})\.pb")
# An archive runs without onnx.
if TYPE_CHECKING:
    from onnx import load_tensor_from_string as _load_tensor
    from onnx.numpy_helper import to_array as _to_array
else:
    _load_tensor = lazily("onnx", "load_tensor_from_string")
    _to_array = lazily("onnx.numpy_helper", "to_array")


@dataclass(frozen=True, slots=True)
class InputSpec:
    """The known facts of an input: dtype, None if it is not a tensor of numbers; shape, None if its rank is
    unknown; an unknown size has a name or is empty."""

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int | str | None, ...] | None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """The range of random values, from ``low`` to below ``high``."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options on inputs: files by name ("" is the next input), shapes, ranges by name ("" is all others),
    and the seed of random values."""

    files: Sequence[tuple[str, Path]]
    shapes: Sequence[Shape]
    ranges: Mapping[str, Range]
    seed: int


def inputs_for(ports: Sequence[InputSpec], wanted: Wanted) -> tuple[dict[str, Array], dict[str, int]]:
    """An array for every input, and the sizes that were assumed for dimensions without a given size.

    Raises InputError for input that cannot be read, belongs to another input, or is too large.
    """
    names = [p.name for p in ports]
    _check_names("range", [n for n in wanted.ranges if n], names)
    sizes = one_size(dimension_sizes(wanted.shapes, ports))
    given = _from_files(ports, wanted, sizes)
    for port in ports:
        array = given.get(port.name)
        if array is not None and port.shape is not None:
            pairs = zip(port.shape, array.shape, strict=False)
            sizes.update({dim: n for dim, n in pairs if isinstance(dim, str) and dim not in sizes})
    assumed: dict[str, int] = {}
    missing = [p for p in ports if p.name not in given and not p.optional]
    if not missing:
        return given, assumed  # without the import of numpy.random
    draw = np.random.default_rng(wanted.seed)
    for port in missing:
        span = wanted.ranges.get(port.name, wanted.ranges.get(""))
        given[port.name] = _random(port, _shape(port, sizes, assumed), span, draw)
    return given, assumed


def named_file(text: str) -> tuple[str, Path]:
    """NAME=FILE or FILE, for argparse."""
    name, equals, path = text.partition("=")
    return (name, Path(path)) if equals else ("", Path(text))


def named_range(text: str) -> tuple[str, Range]:
    """INPUT=LOW:HIGH or LOW:HIGH, for argparse."""
    name, _, span = text.rpartition("=")
    try:
        low, high = (float(end) for end in span.split(":"))
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise argparse.ArgumentTypeError(f"{text!r} is not LOW:HIGH with LOW below HIGH, as in -1:1 or ids=0:30000")
    return name, Range(low, high)


def _from_files(ports: Sequence[InputSpec], wanted: Wanted, sizes: Mapping[str, int]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    order = iter([p for p in ports if p.name not in {name for name, _ in wanted.files}])
    for name, path in _each_file(wanted.files):
        if path.suffix == ".npz":
            found.update(_archive(path))
            continue
        port = next((p for p in ports if p.name == name), None) if name else next(order, None)
        if port is None:
            raise InputError(
                f"the file {path} belongs to no input", why=f"the inputs are {', '.join(p.name for p in ports)}."
            )
        found[port.name] = _read(path, port, sizes)
    _check_names("input", list(found), [p.name for p in ports])
    return found


def _each_file(files: Sequence[tuple[str, Path]]) -> list[tuple[str, Path]]:
    """The files; a folder of test data is replaced by its files, in order."""
    found: list[tuple[str, Path]] = []
    for name, path in files:
        if not path.is_dir():
            found.append((name, path))
            continue
        inputs = [(int(m[1]), p) for p in path.iterdir() if (m := _TEST_INPUT.fullmatch(p.name))]
        if not inputs or name:
            why = "it is a folder, which holds several." if name else "there is no input_0.pb in it."
            raise InputError(f"the folder {path} is not an input", why=why)
        found += [("", p) for _, p in sorted(inputs)]
    return found


def _archive(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise _unreadable(path, error) from error
    except Exception as error:  # zipfile's errors have no documented common base
        raise _unreadable(path, error) from error


def _read(path: Path, port: InputSpec, sizes: Mapping[str, int]) -> Array:
    try:
        if path.suffix == ".npy":
            return np.asarray(np.load(path, allow_pickle=False))
        if path.suffix == ".pb":
            return np.asarray(_to_array(_load_tensor(path.read_bytes())))
        if path.suffix == ".bin":
            return _raw(path, port, _shape(port, sizes, {}))
    except InputError:
        raise
    except Exception as error:  # a damaged file can raise anything in protobuf and numpy
        raise _unreadable(path, error) from error
    raise InputError(f"the file {path} has an unknown format", hint=f"Give {_SUFFIXES}.")


def _raw(path: Path, port: InputSpec, shape: tuple[int, ...]) -> Array:
    values = np.fromfile(path, _type(port))
    if values.size != math.prod(shape):
        raise InputError(
            f"the file {path} does not fit the input {port.name!r}",
            why=f"it holds {values.size} numbers of {values.dtype}, and {list(shape)} are {math.prod(shape)}.",
            hint="A raw file has no shape: give the size of a symbolic dimension by --shape.",
        )
    return values.reshape(shape)


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"the file {path} cannot be read", why=f"{type(error).__name__}: {error}.")


def _random(port: InputSpec, shape: tuple[int, ...], span: Range | None, draw: np.random.Generator) -> Array:
    kind = _type(port)
    if math.prod(shape) * max(kind.itemsize, 8) > _MOST_BYTES:
        raise InputError(f"a random input {port.name!r} of shape {list(shape)} would be larger than 8 GiB")
    if kind == np.bool_:
        return draw.random(shape) < 0.5
    if kind.kind in "iu":
        low, high = (0, 2) if span is None else (math.ceil(span.low), math.ceil(span.high))
        return draw.integers(low, max(high, low + 1), shape).astype(kind)
    values = draw.random(shape) * (2 if span is None else span.high - span.low) + (-1 if span is None else span.low)
    return values.astype(kind)


def _type(port: InputSpec) -> np.dtype[Any]:
    if port.dtype is None or port.dtype.kind not in "biufV":
        why = "it is not a tensor of numbers." if port.dtype is None else f"it is of {port.dtype}."
        hint = f"Give it as a file: {_SUFFIXES}."
        raise InputError(f"the input {port.name!r} cannot be random", why=why, hint=hint)
    return port.dtype


def _shape(port: InputSpec, sizes: Mapping[str, int], assumed: dict[str, int]) -> tuple[int, ...]:
    if port.shape is None:
        raise InputError(f"the input {port.name!r} has no shape", hint=f"Give it as a file: {_SUFFIXES}.")
    found = []
    for number, dim in enumerate(port.shape):
        if isinstance(dim, int):
            found.append(dim)
            continue
        name = dim or f"{port.name}.{number}"
        if name not in sizes:
            assumed[name] = 1
        found.append(sizes.get(name, 1))
    return tuple(found)


def _check_names(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise InputError(f"the model has no {what} {name!r}", why=f"it has {', '.join(known) or 'none'}.")
