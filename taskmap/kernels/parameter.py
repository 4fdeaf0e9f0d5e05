"""Parameters of kernels: a number with choices, among which tuning finds the fastest.

def product(m: Dim, n: Dim, k: Dim, block_m: int = param("block_m", (64, 128, 256))) -> Strategy:
    return MatMul(m, n, k).tile(block_m, 64).to(BLOCK)...

A parameter is an int, its first choice: a function that is called without tuning uses that.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from taskmap.ir.errors import InputError

Configuration = Mapping[str, int]
"""A choice for each parameter, by name."""
_MOST = 200


class TunableParameter(int):
    """The first of its ``choices``, under a ``name``."""

    name: str
    choices: tuple[int, ...]

    def __new__(cls, name: str, choices: tuple[int, ...]) -> TunableParameter:  # noqa: PYI034  Self needs Python 3.11
        made = int.__new__(cls, choices[0])
        made.name, made.choices = name, choices
        return made


def param(name: str, choices: tuple[int, ...]) -> TunableParameter:
    """A parameter as the default of an argument; the first choice is used where nothing is tuned.

    Raises InputError for choices that are not different ints.
    """
    numbers = [n for n in choices if isinstance(n, int) and not isinstance(n, bool)]
    if not numbers or len(numbers) != len(choices) or len({*numbers}) != len(numbers):
        raise InputError(
            f"the parameter {name!r} cannot have the choices {choices!r}",
            hint='Give different ints, the default first: param("block_m", (64, 128, 256)).',
        )
    return TunableParameter(name, tuple(numbers))


def parameters_of(function: Callable[..., Any]) -> dict[str, TunableParameter]:
    """The parameters of a function, by the names of its arguments."""
    arguments = inspect.signature(function).parameters.items()
    return {name: a.default for name, a in arguments if isinstance(a.default, TunableParameter)}


def configurations(parameters: Mapping[str, TunableParameter]) -> Iterator[Configuration]:
    """Every combination of choices, the default first. Raises InputError for more than 200."""
    count = 1
    for p in parameters.values():
        count *= len(p.choices)
    if count > _MOST:
        raise InputError(f"the parameters have {count} combinations", hint=f"Tuning takes at most {_MOST}.")
    for values in itertools.product(*(p.choices for p in parameters.values())):
        yield dict(zip(parameters, values, strict=True))


def config_text(config: Configuration) -> str:
    """A configuration as the tuning cache keeps it: ``block_m=64 block_n=128``."""
    return " ".join(f"{name}={value}" for name, value in config.items())
