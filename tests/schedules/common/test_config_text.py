"""The canonical text of configurations: what is written is read back, and nothing else is."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmap.schedules.common.config_text import ConfigText
from taskmap.schedules.cpu.attention.config import AttentionConfig
from taskmap.schedules.cpu.attention.config import read_config as read_attention
from taskmap.schedules.cpu.convolution.config import ConvolutionConfig
from taskmap.schedules.cpu.convolution.config import read_config as read_convolution
from taskmap.schedules.cpu.convolution.depthwise_config import DepthwiseConfig, read_depthwise
from taskmap.schedules.cpu.matmul.config import MatmulConfig
from taskmap.schedules.cpu.matmul.config import read_config as read_matmul
from taskmap.schedules.cpu.matmul.microkernel import Tile

READERS = (read_attention, read_convolution, read_depthwise, read_matmul)
SIZES = st.integers(0, 9999)
TILES = st.builds(Tile, SIZES, SIZES)
CONFIGS = st.one_of(
    st.builds(AttentionConfig, SIZES, SIZES, TILES),
    st.builds(ConvolutionConfig, TILES, SIZES, SIZES, SIZES, st.sampled_from(["image", "weights"])),
    st.builds(DepthwiseConfig, SIZES, SIZES, SIZES, SIZES),
    st.builds(MatmulConfig, TILES, SIZES, SIZES),
)


@given(CONFIGS)
def test_one_reader_reads_what_is_written(config: object) -> None:
    assert [found for read in READERS if (found := read(str(config))) is not None] == [config]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (MatmulConfig(Tile(6, 2), 12, 2), "tile=6x2v, rows=12, k_blocks=2"),
        (AttentionConfig(64, 256, Tile(7, 4)), "queries=64, keys=256, tile=7x4v"),
        (
            ConvolutionConfig(Tile(7, 4), 1, 28, 3, "weights"),
            "tile=7x4v, block=1x28, panels=3, neighbours=weights",
        ),
        (DepthwiseConfig(8, 2, 28, 96), "columns=8, block=2x28, channels=96"),
    ],
)
def test_databases_of_earlier_versions_hold_these_texts(config: object, text: str) -> None:
    assert str(config) == text


@dataclass(frozen=True, slots=True)
class Example:
    """A number and a word."""

    count: int
    word: str


TEXT = ConfigText(Example, "a.b={count:3}, word={word:up|down}")


@pytest.mark.parametrize(
    "text",
    ["", "a.b=1", "a.b=01, word=up", "a.b=1000, word=up", "a.b=1, word=left", "axb=1, word=up", "a.b=1, word=up\n"],
)
def test_other_text_is_no_configuration(text: str) -> None:
    assert TEXT.read("a.b=100, word=down") == Example(100, "down")
    assert TEXT.read(text) is None
