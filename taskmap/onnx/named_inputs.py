"""Matches the arrays of a call, given in order or by name, to the model's inputs, and checks their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.errors import InputError

Shown = Callable[[str], str]
"""A name from the model for a message: quoted, without control characters."""


def in_order(
    names: Sequence[str], optional: Sequence[str], args: Sequence[Any], named: Mapping[str, Any], shown: Shown
) -> list[Any]:
    """The value given for each of ``names``: in order, by name, or as one mapping from names; None for those of
    ``optional`` that were not given.

    Raises InputError for too many inputs, and for inputs that are unknown, given twice or missing.
    """

    def several(some: Sequence[str]) -> str:
        return ", ".join(map(shown, some)) or "none"

    if len(args) == 1 and isinstance(args[0], Mapping):
        named, args = {**args[0], **named}, ()
    if len(args) > len(names):
        raise InputError(f"the model takes {len(names)} inputs, not {len(args)}")
    found = dict(zip(names, args, strict=False))
    for name, value in named.items():
        if name not in names:
            raise InputError(f"the model has no input {shown(name)}", why=f"its inputs are {several(names)}.")
        if name in found:
            raise InputError(f"the input {shown(name)} is given twice")
        found[name] = value
    missing = [name for name in names if name not in found and name not in optional]
    if missing:
        raise InputError(f"the inputs {several(missing)} are missing", why=f"the model takes {several(names)}.")
    return [found.get(name) for name in names]


def as_array(name: str, value: Any, wanted: np.dtype[Any], known_as: str) -> NDArray[Any]:
    """``value`` as an array of type ``wanted``; arrays must have it, numbers are converted. ``name`` is already quoted;
    ``known_as`` names the type that the model takes.

    Raises InputError for a value that is not an array, and for an array of another type.
    """
    try:
        array = np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else np.asarray(value, dtype=wanted)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"the input {name} cannot be made an array of {wanted}", why=str(error)) from error
    if array.dtype != wanted:
        raise InputError(
            f"the input {name} is of {array.dtype}",
            why=f"the model takes {known_as}.",
            hint=f"Convert it: x.astype({wanted.name!r}).",
        )
    return array


def as_strings(name: str, value: Any) -> NDArray[Any]:
    """``value``, text or arrays of it, as an array of str objects. ``name`` is already quoted.

    Raises InputError for a value of another kind, and for bytes that are not UTF-8.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "OSU":
        raise InputError(
            f"the input {name} is of {array.dtype}", why="the model takes strings.", hint="Convert it: x.astype(str)."
        )
    made = np.empty(array.shape, object)
    flat = made.reshape(-1)
    for place, text in enumerate(array.reshape(-1).tolist()):
        if not isinstance(text, (str, bytes)):
            raise InputError(f"the input {name} holds {text!r}", why="the model takes strings.")
        try:
            flat[place] = text.decode() if isinstance(text, bytes) else text
        except UnicodeDecodeError as error:
            raise InputError(f"the input {name} is not text", why=str(error)) from error
    return made
