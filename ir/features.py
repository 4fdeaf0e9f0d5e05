"""CPU features: the instruction-set extensions that kernels may use, by their names in /proc/cpuinfo.

An instruction set ("avx2") is shorthand for a set of features. ``Target.features`` lists all features of a target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from taskmap.ir.errors import InvalidOptionError

__all__ = [
    "FEATURES", "ISA_FEATURES", "SIMULATED_ISA", "SIMULATED_TILES", "closest_isa", "extra_features", "in_order",
    "isa_text", "missing_features", "read_features", "read_isa_text",
]  # fmt: skip

_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")

ISA_FEATURES: dict[str, tuple[str, ...]] = {"generic": (), "avx2": _AVX2, "avx512": _AVX512}
"""The features of each instruction set; each includes those of the ones before it."""

FEATURES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_AVX2, ()),
    **dict.fromkeys(_AVX512[len(_AVX2) :], _AVX2),
    "avx_vnni": _AVX2,
    "avx512_vnni": _AVX512,
    "avx512_bf16": _AVX512,
    "avx512vbmi": _AVX512,
    "amx_tile": _AVX512,
    "amx_int8": (*_AVX512, "amx_tile"),
    "amx_bf16": (*_AVX512, "amx_tile"),
    "amx_sim": (),
}
"""Every feature that taskmap knows, with the features that it needs. Sources: "Intel 64 and IA-32 Architectures
Software Developer's Manual", volume 1, chapters 14 to 18; Linux, arch/x86/include/asm/cpufeatures.h."""

SIMULATED_TILES, SIMULATED_ISA = "amx_sim", "amx-sim"
"""The feature that every CPU has on request, a software model of AMX; and the name, in place of an instruction set, of
the host's own with this feature."""


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The known features among ``names``, each once, in the order of FEATURES."""
    given = frozenset(names)
    return tuple(name for name in FEATURES if name in given)


def closest_isa(features: Collection[str]) -> str:
    """The largest instruction set whose features are all among ``features``."""
    return next(isa for isa in reversed(ISA_FEATURES) if frozenset(ISA_FEATURES[isa]) <= frozenset(features))


def extra_features(features: Iterable[str], isa: str) -> tuple[str, ...]:
    """The features beyond those of ``isa``."""
    return tuple(name for name in features if name not in ISA_FEATURES[isa])


def missing_features(wanted: Iterable[str], present: Collection[str]) -> tuple[str, ...]:
    """The ``wanted`` features that are not ``present``, in the order of FEATURES."""
    return tuple(name for name in in_order(wanted) if name not in present)


def isa_text(isa: str, features: Iterable[str]) -> str:
    """An instruction set and the features beyond it, as records of kernels and archives name them: avx512+amx_tile."""
    return "+".join([isa, *features])


def read_isa_text(text: str) -> tuple[str, tuple[str, ...]]:
    """The instruction set and the features that ``isa_text`` wrote; neither need be known."""
    isa, *features = text.split("+")
    return isa, tuple(features)


def read_features(text: str) -> tuple[str, ...]:
    """The features that a list such as "avx512_bf16, avx512_vnni" names, in the order of FEATURES; "none" is empty.

    Raises InvalidOptionError for an unknown name, and for an empty text.
    """
    names = [name.strip() for name in text.split(",")]
    if names == ["none"]:
        return ()
    for name in names:
        if name not in FEATURES:
            close = get_close_matches(name, FEATURES, n=1)
            guess = f"Did you mean {close[0]!r}? " if close else ""
            raise InvalidOptionError(
                f"unknown CPU feature {name!r}", hint=f"{guess}Use a list of {', '.join(FEATURES)}, or none."
            )
    return in_order(names)
