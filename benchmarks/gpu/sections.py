"""The sections of figures by name, each with its cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.gpu.cases import Case, attention, convolution, decode, matmul, memory
from benchmarks.gpu.strategies import strategies

SECTIONS: dict[str, Callable[[], Iterator[Case]]] = {
    "matmul": matmul,
    "attention": attention,
    "memory": memory,
    "decode": decode,
    "convolution": convolution,
    "strategies": strategies,
}
