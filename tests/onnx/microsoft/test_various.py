"""Distances, samples, hashes, tokens and others, against ONNX Runtime; the refusal of what is not read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from taskmap.errors import UnsupportedError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.models import FLOAT, model
from tests.onnx.rival import MICROSOFT, Array, Case, compare, onnxruntime_results

pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(5)


def f32(*shape: int) -> Array:
    """Normal numbers."""
    return RANDOM.standard_normal(shape).astype(np.float32)


def i16(*shape: int) -> Array:
    """Small integers."""
    return RANDOM.integers(-99, 100, shape).astype(np.int16)


BOXES = np.array([[0, 0, 1, 1], [0.1, 0.2, 0.7, 1.2], [0.8, 0.3, 0.2, 0.9]], np.float32)
CROPS: dict[str, Array | None] = {
    "X": f32(2, 3, 7, 5),
    "rois": BOXES,
    "batch_indices": np.array([0, 1, 1], np.int32),
    "crop_size": np.array([4, 3], np.int32),
}
TURN: dict[str, Array | None] = {"X": f32(2, 3, 5, 6), "W": f32(3, 4, 3, 3), "Pads": np.array([1, 0, 1, 2])}
WORDS = np.array([["abc", "ab cd"], ["", "e,fgh i"]], object)
TOKENS: dict[str, Any] = {"mincharnum": 1, "pad_value": "#", "mark": 0}
CASES = [
    Case("SampleOp", {"X": f32(3, 4)}),
    Case("CDist", {"A": f32(5, 7), "B": f32(4, 7)}, {"metric": "euclidean"}),
    Case("CDist", {"A": f32(5, 7), "B": f32(4, 7)}, {"metric": "sqeuclidean"}, name="squared"),
    Case("GridSample", {"X": f32(2, 3, 5, 6), "Grid": f32(2, 4, 3, 2)}),
    Case(
        "GridSample",
        {"X": f32(2, 3, 5, 6), "Grid": f32(2, 4, 3, 2)},
        {"mode": "bicubic", "padding_mode": "border", "align_corners": 1},
        name="cubic",
    ),
    Case("Unique", {"x": np.array([2, 1, 1, 3, 4, 3, 2], np.float32)}, results=3),
    Case("UnfoldTensor", {"input": f32(3, 9, 2)}, {"dim": 1, "size": 4, "step": 2}),
    Case("UnfoldTensor", {"input": f32(3, 9)}, {"size": 3}, name="last"),
    Case("MatMulInteger16", {"A": i16(3, 4), "B": i16(4, 5)}),
    Case("ConvTransposeWithDynamicPads", TURN, {"strides": [2, 1]}, stored=["Pads"]),
    Case("Inverse", {"X": f32(2, 4, 4) + 3 * np.eye(4, dtype=np.float32)}),
    Case("DynamicTimeWarping", {"input": np.abs(f32(6, 9))}),
    Case("DynamicTimeWarping", {"input": np.abs(f32(1, 9, 4))}, name="one matrix"),
    Case("NGramRepeatBlock", {"input_ids": RANDOM.integers(0, 3, (4, 12)), "scores": f32(4, 3)}, {"ngram_size": 3}),
    Case("NGramRepeatBlock", {"input_ids": np.array([[1, 2]]), "scores": f32(1, 3)}, {"ngram_size": 3}, name="short"),
    *(Case("MurmurHash3", {"X": x}, {"seed": 7}, name=str(x.dtype)) for x in (
        np.array([1, -5, 2**31 - 1], np.int32), np.array([3, 2**40]), f32(2, 3), f32(3).astype(np.float64), WORDS,
    )),
    Case("MurmurHash3", {"X": np.array([1, -5], np.int32)}, {"positive": 0}, name="signed"),
    Case("CropAndResize", CROPS, {"extrapolation_value": -1.5}, stored=["crop_size"], near=1e-4),
    Case("CropAndResize", CROPS, {"mode": "nearest"}, name="nearest", stored=["crop_size"]),
    Case("Tokenizer", {"X": WORDS}, TOKENS | {"separators": [" ", ","]}),
    Case("Tokenizer", {"X": WORDS}, TOKENS | {"separators": [""], "mark": 1}, name="characters"),
    Case("Tokenizer", {"X": WORDS[0]}, TOKENS | {"tokenexp": "[a-z]+", "mincharnum": 2}, name="expression"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_onnxruntime(case: Case) -> None:
    if any(v is not None and v.dtype == object for v in case.inputs.values()):
        proto, feeds = case.model(), case.feeds()
        (theirs,), (ours,) = onnxruntime_results(proto, feeds), load_model(proto, engine=by_definition)(feeds)
        assert (ours.shape, ours.dtype, ours.tolist()) == (theirs.shape, theirs.dtype, theirs.tolist())
        return
    compare(case)


def test_refusals_stand_together_by_their_reason() -> None:
    nodes = [
        helper.make_node("Rfft", ["x"], ["a"], domain=MICROSOFT),
        helper.make_node("BeamSearch", ["a"], ["b"], domain=MICROSOFT),
        helper.make_node("GemmFloat8", ["b"], ["c"], domain=MICROSOFT),
        helper.make_node("Conv", ["c"], ["d"], domain=f"{MICROSOFT}.nchwc"),
        helper.make_node("Rfft", ["d"], ["e"], domain=MICROSOFT),
    ]
    proto = model(nodes, {"x": (FLOAT, [2])}, ["e"])
    for domain in (MICROSOFT, f"{MICROSOFT}.nchwc"):
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    with pytest.raises(UnsupportedError, match="4 operators that taskmap does not have, in 5 nodes") as caught:
        load_model(proto, engine=by_definition)
    lines = str(caught.value).splitlines()[1:5]
    found = [line.strip().partition(" ")[0].rpartition(".")[2] for line in lines]
    assert found == ["Rfft", "GemmFloat8", "BeamSearch", "Conv"]
    assert "on GPUs only" in lines[0]
    assert "in a loop" in lines[2]
    assert "ORT_ENABLE_EXTENDED" in lines[3]
