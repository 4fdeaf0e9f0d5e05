"""--shape, with one meaning in all commands: the size of a named dimension, or the shape of an input."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from taskmap.ir.errors import InputError

_SIZES = re.compile(r"\d{1,18}(?:,\d{1,18})*")
_EXTENTS = re.compile(r"(\d{1,9}(?:x\d{1,9})*|scalar)(?::(\w+))?")
METAVAR = "SHAPE"
HELP = (
    "DIM=SIZE, the size of a named dimension (DIM=SIZE,SIZE,... for several), or "
    "[INPUT=]SIZExSIZE..., the shape of an input, the next one without a name"
)


class Port(Protocol):
    """An input of a model."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int | str | None, ...] | None: ...


@dataclass(frozen=True, slots=True)
class Shape:
    """One --shape. name: of a dimension or an input, or empty. sizes: of the dimension, or the input's extents.
    dtype: of the input's elements, if given. extents: it can only be an input's shape."""

    text: str
    name: str
    sizes: tuple[int, ...]
    dtype: str = ""
    extents: bool = False


def named_shape(text: str) -> Shape:
    """The meaning of ``text``, for argparse."""
    name, equals, said = text.rpartition("=")
    if name and _SIZES.fullmatch(said):
        return Shape(text, name, tuple(dict.fromkeys(int(n) for n in said.split(","))))
    found = _EXTENTS.fullmatch(said)
    if found is None or (equals and not name):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither the size of a dimension, as in batch=8, nor the shape of an input, as in 1x3x224x224"
        )
    extents = () if found[1] == "scalar" else tuple(int(n) for n in found[1].split("x"))
    return Shape(text, name, extents, found[2] or "", extents=True)


def shape_option(p: argparse.ArgumentParser, more: str = "") -> None:
    """Add --shape; ``more`` describes its effect on the command."""
    text = f"{HELP}{f'; {more}' if more else ''}"
    p.add_argument("--shape", action="append", default=[], type=named_shape, metavar=METAVAR, help=text)


def dimension_sizes(shapes: Sequence[Shape], ports: Sequence[Port]) -> dict[str, tuple[int, ...]]:
    """The sizes of a model's dimensions; repeated options for a dimension add sizes.

    Raises InputError for a dimension or an input that the model lacks, and a shape that does not fit the input.
    """
    dimensions = dimensions_of(ports)
    found: dict[str, tuple[int, ...]] = {}
    rest = iter(ports)
    for shape in shapes:
        if not shape.extents and shape.name in dimensions:
            sizes = {shape.name: shape.sizes}
        else:
            sizes = _of_input(shape, ports, next(rest, None) if not shape.name else None, dimensions)
        for name, given in sizes.items():
            found[name] = tuple(dict.fromkeys((*found.get(name, ()), *given)))
    return found


def one_size(sizes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The size of each dimension. Raises InputError for a dimension with several."""
    for name, given in sizes.items():
        if len(given) != 1:
            raise InputError(
                f"the dimension {name!r} has several sizes: {', '.join(map(str, given))}",
                why="a run has one; `taskmap compile` takes several.",
            )
    return {name: given[0] for name, given in sizes.items()}


def dimensions_of(ports: Sequence[Port]) -> list[str]:
    """The names of the sizes that are not fixed; input.number for one without a name."""
    shapes = [(p.name, p.shape) for p in ports if p.shape is not None]
    return list(dict.fromkeys(d or f"{p}.{n}" for p, s in shapes for n, d in enumerate(s) if not isinstance(d, int)))


def _of_input(
    shape: Shape, ports: Sequence[Port], following: Port | None, dimensions: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    port = following if not shape.name else next((p for p in ports if p.name == shape.name), None)
    if port is None:
        names = ", ".join(p.name for p in ports)
        what = "input" if shape.extents else "dimension"
        raise InputError(
            f"the model has no {what} {shape.name!r}" if shape.name else f"--shape {shape.text} belongs to no input",
            why=f"it has {', '.join(dimensions) or 'none'}." if what == "dimension" else f"its inputs are {names}.",
        )
    wanted = port.shape
    if wanted is None:
        raise InputError(f"the input {port.name!r} has no shape", hint="Give it as a file: --input.")
    text = ", ".join("?" if n is None else str(n) for n in wanted)
    fits = len(wanted) == len(shape.sizes) and all(
        not isinstance(n, int) or n == size for n, size in zip(wanted, shape.sizes, strict=True)
    )
    if not fits:
        raise InputError(f"--shape {shape.text} is not a shape of the input {port.name!r}", why=f"it takes [{text}].")
    return {
        dim or f"{port.name}.{number}": (size,)
        for number, (dim, size) in enumerate(zip(wanted, shape.sizes, strict=True))
        if not isinstance(dim, int)
    }
