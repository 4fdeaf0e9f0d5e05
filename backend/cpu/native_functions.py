"""Functions of the prelude that a CPU feature makes faster, under names of their own.

    tm_cast_f32x16_to_bf16x16(x)    ->    tm_vcvtneps2bf16_f32x16(x)      avx512_bf16
    tm_look_up_u8x16(p, i)          ->    tm_vpermi2b_u8x16(p, i)         avx512vbmi

A kernel's features follow from the names in its text (``taskmap.backend.store.key``), so a text that uses such a name
is compiled with the feature, and has a key of its own. Results are the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_FASTER: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("avx512_bf16", re.compile(r"\btm_cast_(f32x(?:16|8))_to_bf16x(?:16|8)\("), r"tm_vcvtneps2bf16_\1("),
    ("avx512vbmi", re.compile(r"\btm_look_up_([iu]8x(?:16|32|64))\("), r"tm_vpermi2b_\1("),
)
"""The feature, the name without it, and the name with it."""


def with_features(text: str, features: Collection[str]) -> str:
    """``text`` with the functions that ``features`` make faster."""
    for feature, plain, faster in _FASTER:
        if feature in features:
            text = plain.sub(faster, text)
    return text
