"""The software model of tile registers (tile_model.c): a library to which kernels of the feature amx_sim are bound."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from taskmap.backend.image import load_image
from taskmap.backend.store.key import KernelSource

FEATURE = "amx_sim"
"""The feature of kernels that need the library."""
_SYMBOL, _COUNTS = "tm_sim_tile_configure_1", "tm_sim_tile_counts_1"


@dataclass(frozen=True, slots=True)
class TileCounts:
    """The instructions that the model has executed in this process."""

    configure: int = 0
    release: int = 0
    zero: int = 0
    load: int = 0
    store: int = 0
    product: int = 0


@lru_cache(maxsize=1)
def tile_model_source() -> KernelSource:
    """The C of the library, stored under the name of one of its functions."""
    return KernelSource(_SYMBOL, Path(__file__).with_name("tile_model.c").read_text(encoding="utf-8"), "/* tiles */")


def have_tile_model() -> bool:
    """True if this process has the library loaded and visible to kernels."""
    return hasattr(ctypes.CDLL(None), _SYMBOL)


def load_tile_model(content: bytes) -> None:
    """Loads the library, once in a process. Raises OSError with the loader's reason."""
    load_image(content, visible=True)


def tile_counts() -> TileCounts:
    """The counts of the model; zeros before it is loaded."""
    if not have_tile_model():
        return TileCounts()
    return TileCounts(*(ctypes.c_longlong * 6).in_dll(ctypes.CDLL(None), _COUNTS))
