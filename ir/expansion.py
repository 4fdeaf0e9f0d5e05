"""Expansions: products whose only reader is a depthwise convolution, which computes them where it reads them."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.nodes import Dim

ATTRIBUTE = "expands"
"""The attribute of a depthwise convolution whose template computes its image."""
WIDTH = "panel_width"
"""The attribute of the product that makes this image: the columns of a panel of its weights."""


@dataclass(frozen=True, slots=True)
class ExpansionSizes:
    """A product of ``terms`` terms whose results, of shape ``image`` [n, channels, rows, columns], a window slides over
    (rows, then columns)."""

    image: tuple[Dim, ...]
    terms: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ExpansionChoice:
    """The ``width`` of the panels with which the kernel of a convolution computes the product before it, and the
    reason; 0: a kernel for each."""

    width: int
    reason: str
