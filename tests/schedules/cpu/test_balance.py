"""Panels as wide as the registers allow that divide evenly over the cores."""

from __future__ import annotations

import pytest

from taskmap.schedules.cpu.support.balance import blocks, even_width, makespan

EVEN = [(896, 2, 112), (896, 1, 128), (128, 2, 64), (4864, 2, 128), (128, 1, 128), (4864, 16, 80), (896, 64, 32)]


@pytest.mark.parametrize(("columns", "cores", "width"), EVEN)
def test_the_busiest_core_has_least_to_read(columns: int, cores: int, width: int) -> None:
    assert even_width(128, columns, 16, cores) == width


@pytest.mark.parametrize("cores", [1, 2, 3, 8, 48])
@pytest.mark.parametrize("columns", [16, 100, 896, 1000, 4864])
def test_no_core_reads_more_than_with_the_widest(columns: int, cores: int) -> None:
    width = even_width(128, columns, 16, cores)
    assert width % 16 == 0
    assert makespan(blocks(columns, width), cores) <= max(makespan(blocks(columns, 128), cores), 32)
